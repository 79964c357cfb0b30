"""A bucket that was given to another user, as both users see it.

usage: linked.py ENDPOINT ACCESS_KEY SECRET_KEY OTHERS_ACCESS_KEY OTHERS_SECRET_KEY."""

import sys

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

ENDPOINT = sys.argv[1]


def client(access, secret):
    return boto3.client("s3", endpoint_url=ENDPOINT, aws_access_key_id=access, aws_secret_access_key=secret,
                        region_name="us-east-1", config=Config(s3={"addressing_style": "path"}))


FIRST, OTHER = client(*sys.argv[2:4]), client(*sys.argv[4:6])
assert [b["Name"] for b in OTHER.list_buckets()["Buckets"]] == ["bkt"]
assert FIRST.list_buckets()["Buckets"] == []
OTHER.put_object(Bucket="bkt", Key="theirs", Body=b"t")
assert len(OTHER.list_objects_v2(Bucket="bkt")["Contents"]) == 2
try:
    FIRST.list_objects_v2(Bucket="bkt")
    raise SystemExit("who gave a bucket away still lists it")
except ClientError as error:
    assert error.response["Error"]["Code"] == "AccessDenied", error.response
# Objects keep their owners.
assert FIRST.head_object(Bucket="bkt", Key="a/b")["ContentLength"] == 6 << 20
