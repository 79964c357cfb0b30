"""A PUT that stops in the middle.

usage: stalled.py ENDPOINT ACCESS_KEY SECRET_KEY BUCKET; creates the bucket, sends half of an object, prints 'half', sends the rest
when a line is read, and checks that the stored object is the sent one."""

import hashlib
import http.client
import sys
import urllib.parse

import boto3
from botocore.client import Config

ENDPOINT, ACCESS, SECRET, BUCKET = sys.argv[1:5]
S3 = boto3.client(
    "s3", endpoint_url=ENDPOINT, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET, region_name="us-east-1",
    config=Config(s3={"addressing_style": "path"}, signature_version="s3v4", retries={"max_attempts": 5}))
BODY = b"".join(hashlib.sha256(str(n).encode()).digest() for n in range(12 << 15))

S3.create_bucket(Bucket=BUCKET)
url = urllib.parse.urlsplit(S3.generate_presigned_url("put_object", {"Bucket": BUCKET, "Key": "stalled"}))
connection = http.client.HTTPConnection(url.netloc, timeout=120)
connection.putrequest("PUT", f"{url.path}?{url.query}")
connection.putheader("Content-Length", str(len(BODY)))
connection.endheaders()
half = len(BODY) * 3 // 4
connection.send(BODY[:half])
print("half", flush=True)
sys.stdin.readline()
connection.send(BODY[half:])
answer = connection.getresponse()
assert answer.status == 200, (answer.status, answer.read())
answer.read()
assert S3.get_object(Bucket=BUCKET, Key="stalled")["Body"].read() == BODY
