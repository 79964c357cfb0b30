"""Clients that request the completion of an upload and disconnect at once.

usage: gone.py ENDPOINT ACCESS_KEY SECRET_KEY BUCKET; exits with an assertion's text on failure."""

import sys
import time
import urllib.parse
import socket

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

ENDPOINT, ACCESS, SECRET, BUCKET = sys.argv[1:5]
ADDRESS = urllib.parse.urlsplit(ENDPOINT)
PART = bytes(range(256)) * (5 << 12)
COMPLETIONS = 24

s3 = boto3.client(
    "s3", endpoint_url=ENDPOINT, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET, region_name="us-east-1",
    config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}))
s3.create_bucket(Bucket=BUCKET)


def ask_and_go(upload, body, delay):
    url = urllib.parse.urlsplit(s3.generate_presigned_url("complete_multipart_upload", Params=upload))
    head = f"POST {url.path}?{url.query} HTTP/1.1\r\nHost: {ADDRESS.netloc}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((ADDRESS.hostname, ADDRESS.port)) as connection:
        connection.sendall(head.encode() + body)
        time.sleep(delay)


def patient(call, **args):
    """Repeats the request while the server is busy."""
    for _ in range(600):
        try:
            return call(**args)
        except ClientError as error:
            if error.response["Error"]["Code"] != "SlowDown":
                raise
            time.sleep(0.05)
    raise AssertionError("told to slow down for ever")


for n in range(COMPLETIONS):
    key = f"key {n}"
    upload = {"Bucket": BUCKET, "Key": key}
    upload["UploadId"] = s3.create_multipart_upload(**upload)["UploadId"]
    tags = [s3.upload_part(**upload, PartNumber=number, Body=PART)["ETag"] for number in (1, 2)]
    body = "<CompleteMultipartUpload>" + "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>" for number, tag in enumerate(tags[:1], 1)
    ) + "</CompleteMultipartUpload>"
    # At different steps.
    ask_and_go(upload, body.encode(), n / 2000)
    parts = {"Parts": [{"PartNumber": 1, "ETag": tags[0]}]}
    patient(s3.complete_multipart_upload, **upload, MultipartUpload=parts)
    assert s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == PART, key
left = s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
assert left == [], left
