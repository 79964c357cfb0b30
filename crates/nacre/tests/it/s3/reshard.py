"""Writers, removers and listers of a bucket while it is resharded.

usage: reshard.py ENDPOINT ACCESS_KEY SECRET_KEY STOP; works until the file STOP exists; exits with an assertion's text on failure."""

import os
import sys
import threading

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

ENDPOINT, ACCESS, SECRET, STOP = sys.argv[1:5]


def client():
    return boto3.client(
        "s3", endpoint_url=ENDPOINT, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET, region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}))


def patient(call, **args):
    """Repeats the request while the server is busy."""
    for _ in range(600):
        try:
            return call(**args)
        except ClientError as error:
            if error.response["Error"]["Code"] != "SlowDown":
                raise
    raise AssertionError("told to slow down for ever")


def listed(s3, prefix):
    found, args = [], {}
    while True:
        page = patient(s3.list_objects_v2, Bucket="busy", Prefix=prefix, MaxKeys=100, **args)
        found += [entry["Key"] for entry in page.get("Contents", [])]
        if not page["IsTruncated"]:
            return found
        args = {"ContinuationToken": page["NextContinuationToken"]}


failures, done = [], []


def work(number, s3):
    try:
        there, round_ = {}, 0
        while not os.path.exists(STOP):
            for n in range(20):
                key = f"{number}/{n}"
                if (n + round_) % 3:
                    patient(s3.put_object, Bucket="busy", Key=key, Body=f"{round_}".encode())
                    there[key] = f"{round_}"
                else:
                    patient(s3.delete_object, Bucket="busy", Key=key)
                    there.pop(key, None)
            # There is no other writer here.
            assert listed(s3, f"{number}/") == sorted(there), (number, round_)
            round_ += 1
        for key, value in there.items():
            assert s3.get_object(Bucket="busy", Key=key)["Body"].read().decode() == value
        done.append((number, round_, len(there)))
    except Exception as error:
        failures.append(error)
        open(STOP, "w").close()
        raise


threads = [threading.Thread(target=work, args=(number, client())) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
assert all(rounds > 0 for _, rounds, _ in done), done
print(sum(count for _, _, count in done))
