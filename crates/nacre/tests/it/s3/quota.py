"""Quotas of buckets, as a user sees them. usage: quota.py ENDPOINT ACCESS_KEY SECRET_KEY PART."""

import sys

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

ENDPOINT, ACCESS, SECRET, PART = sys.argv[1:5]
S3 = boto3.client("s3", endpoint_url=ENDPOINT, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET,
                  region_name="us-east-1", config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}))
MIB = 1 << 20


def put(key, size=1, bucket="full"):
    S3.put_object(Bucket=bucket, Key=key, Body=b"x" * size)


def refused(call, **args):
    try:
        call(**args)
    except ClientError as error:
        response = error.response
        assert response["Error"]["Code"] == "QuotaExceeded", response
        assert response["ResponseMetadata"]["HTTPStatusCode"] == 403, response
        return
    raise AssertionError(f"{call} was not refused")


def unlimited():
    for bucket in ("full", "more"):
        S3.create_bucket(Bucket=bucket)
    put("a")
    put("b")


def not_enabled():
    for n in range(6):
        put(f"n{n}")
    for n in range(6):
        S3.delete_object(Bucket="full", Key=f"n{n}")


def bucket_objects():
    put("c")
    put("d")
    refused(S3.put_object, Bucket="full", Key="e", Body=b"e")
    refused(S3.copy_object, Bucket="full", Key="e", CopySource="full/a")
    # Another bucket has its own quota.
    put("a", bucket="more")
    S3.delete_object(Bucket="more", Key="a")
    S3.delete_object(Bucket="full", Key="d")
    for _ in range(200):
        try:
            return put("e")
        except ClientError as error:
            # The removal is finished a moment later.
            assert error.response["Error"]["Code"] == "QuotaExceeded", error.response
    raise AssertionError("what was removed counts on")


def bucket_size():
    put("big", 6 * MIB)
    refused(S3.put_object, Bucket="full", Key="bigger", Body=b"x" * (5 * MIB))
    upload = S3.create_multipart_upload(Bucket="full", Key="parts")["UploadId"]
    named = dict(Bucket="full", Key="parts", UploadId=upload)
    part = S3.upload_part(PartNumber=1, Body=b"p" * (3 * MIB), **named)
    # Parts count before they are an object.
    refused(S3.upload_part, PartNumber=2, Body=b"p" * (2 * MIB), **named)
    refused(S3.put_object, Bucket="full", Key="bigger", Body=b"x" * (2 * MIB))
    S3.abort_multipart_upload(**named)
    upload = S3.create_multipart_upload(Bucket="full", Key="parts")["UploadId"]
    named = dict(Bucket="full", Key="parts", UploadId=upload)
    part = S3.upload_part(PartNumber=1, Body=b"p" * (3 * MIB), **named)
    # And are not counted twice when they are.
    S3.complete_multipart_upload(MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}, **named)
    refused(S3.put_object, Bucket="full", Key="bigger", Body=b"x" * (2 * MIB))


def user_size():
    # Nine of twelve MiB are in the other bucket.
    put("x", 2 * MIB, bucket="more")
    refused(S3.put_object, Bucket="more", Key="y", Body=b"y" * (2 * MIB))
    refused(S3.put_object, Bucket="full", Key="y", Body=b"y" * (2 * MIB))


globals()[PART]()
