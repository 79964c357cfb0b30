"""The indexes of buckets are closed while buckets are removed or get versions, and open again even if the gateway or client that
closed them fails; and the caches of gateways.

usage: closures.py ENDPOINT ACCESS_KEY SECRET_KEY CONF NACRE; exits with an assertion's text on failure."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

from gateway import Gateway, wait

ENDPOINT, ACCESS, SECRET, CONF, NACRE = sys.argv[1:6]


def client(endpoint=ENDPOINT):
    return boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET, region_name="us-east-1",
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}, retries={"max_attempts": 1}, read_timeout=120))


S3 = client()


def code_of(call, **args):
    try:
        call(**args)
        return None
    except ClientError as error:
        return error.response["Error"]["Code"]


def nacre(*args):
    out = subprocess.run([NACRE, "-c", CONF, *args], capture_output=True, text=True)
    assert out.returncode == 0, (args, out.stderr)
    return out.stdout


def index(*args):
    return nacre("rados", "-p", "default.rgw.buckets.index", *args)


def shards(bucket):
    id = json.loads(nacre("bucket", "stats", "--bucket", bucket))["id"]
    return [name for name in index("ls").split() if name.startswith(f".dir.{id}.")]


def is_closed(bucket):
    return all("closed by" in index("getxattr", shard, "rgw.state") for shard in shards(bucket))


class Slow:
    """A write that is started, and ends on request."""

    SIZE = 6 << 20

    def __init__(self, bucket):
        url = S3.generate_presigned_url("put_object", {"Bucket": bucket, "Key": "slow"})
        self.conn = http.client.HTTPConnection(ENDPOINT.removeprefix("http://"), timeout=120)
        self.conn.putrequest("PUT", url.removeprefix(ENDPOINT))
        self.conn.putheader("Content-Length", str(self.SIZE))
        self.conn.endheaders(bytes(self.SIZE - 1))
        wait("prepared", lambda: any(index("listomapkeys", shard).startswith("Pslow") for shard in shards(bucket)))

    def end(self):
        self.conn.send(b"\0")
        return self.conn.getresponse().status


def left_frozen():
    """A resharding process was killed before it opened the index that it had frozen: the next reshard opens it, though it moves
    nothing."""
    S3.create_bucket(Bucket="frozen")
    states = lambda: {index("getxattr", shard, "rgw.state").strip() for shard in shards("frozen")}
    (open_state,) = states()
    for shard in shards("frozen"):
        index("setxattr", shard, "rgw.state", "~frozen by an attempt that ended")
    nacre("bucket", "reshard", "--bucket", "frozen", "--num-shards", str(len(shards("frozen"))))
    assert states() == {open_state}, states()


def given_up():
    """The client that requests a bucket's removal disconnects while it waits: the bucket is in use again."""
    S3.create_bucket(Bucket="kept")
    slow = Slow("kept")
    url = S3.generate_presigned_url("delete_bucket", {"Bucket": "kept"})
    asking = http.client.HTTPConnection(ENDPOINT.removeprefix("http://"))
    asking.request("DELETE", url.removeprefix(ENDPOINT))
    wait("closed", lambda: is_closed("kept"))
    asking.close()
    # It waits for this one for a while, and others wait for it.
    assert code_of(S3.put_object, Bucket="kept", Key="k", Body=b"k") is None
    assert slow.end() == 200
    assert sorted(entry["Key"] for entry in S3.list_objects_v2(Bucket="kept")["Contents"]) == ["k", "slow"]
    assert code_of(S3.delete_bucket, Bucket="kept") == "BucketNotEmpty"


def left():
    """Shards that no operation keeps closed are open to operations that need them."""
    S3.create_bucket(Bucket="left")
    for shard in shards("left"):
        index("setxattr", shard, "rgw.state", "closed by 0123456789abcdef0123456789abcdef")
    assert is_closed("left")
    report = subprocess.run([NACRE, "-c", CONF, "bucket", "check", "--bucket", "left"], capture_output=True, text=True)
    assert report.returncode != 0 and report.stdout.count("closed_shard") == len(shards("left")), report
    for n in range(30):
        S3.put_object(Bucket="left", Key=str(n), Body=b"")
    S3.create_multipart_upload(Bucket="left", Key="0")
    S3.put_bucket_versioning(Bucket="left", VersioningConfiguration={"Status": "Enabled"})
    assert "VersionId" in S3.put_object(Bucket="left", Key="k", Body=b"")


def at_once():
    """Of two operations that close a bucket's index one gives way, and the effect of the other one remains."""
    S3.create_bucket(Bucket="both")
    slow = Slow("both")
    enabling = []
    args = {"Bucket": "both", "VersioningConfiguration": {"Status": "Enabled"}}
    thread = threading.Thread(target=lambda: enabling.append(code_of(client().put_bucket_versioning, **args)))
    thread.start()
    wait("closed", lambda: is_closed("both"))
    report = nacre("bucket", "check", "--bucket", "both", "--fix")
    assert json.loads(report)["num_problems"] == 0 and is_closed("both"), report
    assert code_of(S3.put_bucket_versioning, **args) == "SlowDown"
    assert code_of(S3.delete_bucket, Bucket="both") == "SlowDown"
    assert slow.end() == 200
    thread.join()
    assert enabling == [None], enabling
    assert not any("closed by" in index("getxattr", shard, "rgw.state") for shard in shards("both"))
    versions = [S3.put_object(Bucket="both", Key="slow", Body=b"v")["VersionId"] for _ in range(2)]
    assert len(S3.list_object_versions(Bucket="both")["Versions"]) == 3, versions


def remembered():
    """A gateway that was stopped does not use cached data from before."""
    S3.create_bucket(Bucket="told")
    S3.put_object(Bucket="told", Key="k", Body=b"k")
    statement = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::told/*"}
    S3.put_bucket_policy(Bucket="told", Policy=json.dumps({"Statement": [statement]}))
    other = Gateway(NACRE, CONF)

    def status():
        try:
            return urllib.request.urlopen(f"{other.url}/told/k", timeout=60).status
        except urllib.error.HTTPError as error:
            return error.code

    assert status() == 200
    for _ in range(2):
        S3.put_bucket_policy(Bucket="told", Policy=json.dumps({"Statement": [statement]}))
        wait("allowed", lambda: status() == 200)
        os.kill(other.process.pid, signal.SIGSTOP)
        S3.delete_bucket_policy(Bucket="told")
        os.kill(other.process.pid, signal.SIGCONT)
        assert status() == 403
    other.end()


for test in (left_frozen, given_up, left, at_once, remembered):
    test()
    print(test.__name__)
