"""PUTs objects under new keys until the gateway is gone. usage: flood.py ENDPOINT ACCESS_KEY SECRET_KEY BUCKET..."""

import sys
import threading

import boto3
from botocore.client import Config

ENDPOINT, ACCESS, SECRET, *BUCKETS = sys.argv[1:]
S3 = boto3.client(
    "s3", endpoint_url=ENDPOINT, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET, region_name="default",
    # A request is never sent twice: each key is put at most once.
    config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, max_pool_connections=32))


def put(bucket, thread):
    number = 0
    while True:
        try:
            S3.put_object(Bucket=bucket, Key=f"{thread}-{number}", Body=b"x")
        except Exception:
            return
        number += 1


THREADS = [threading.Thread(target=put, args=(bucket, thread)) for bucket in BUCKETS for thread in range(4)]
for one in THREADS:
    one.start()
for one in THREADS:
    one.join()
