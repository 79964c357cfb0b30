"""Lifecycle as boto3 sees it, on a gateway whose days last a second.

usage: lifecycle.py ENDPOINT ACCESS_KEY SECRET_KEY; exits with an assertion's text on failure."""

import sys
import time

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

ENDPOINT, ACCESS, SECRET = sys.argv[1:4]
S3 = boto3.client(
    "s3", endpoint_url=ENDPOINT, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET, region_name="us-east-1",
    config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}))
# More seconds than this test takes.
NEVER = 10_000


def refused(code, call, **args):
    try:
        call(**args)
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, (code, error.response)
        return
    raise AssertionError(f"{call} was not refused ({code})")


def until(what, wanted):
    deadline = time.time() + 60
    while True:
        found = what()
        if found == wanted:
            return
        assert time.time() < deadline, (found, wanted)
        time.sleep(0.2)


def keys(bucket):
    return [entry["Key"] for entry in S3.list_objects_v2(Bucket=bucket).get("Contents", [])]


def put_rules(bucket, *rules):
    for number, rule in enumerate(rules):
        rule.setdefault("Status", "Enabled")
        rule.setdefault("Filter", {"Prefix": ""})
        rule.setdefault("ID", f"rule {number}")
    S3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": list(rules)})


S3.create_bucket(Bucket="plain")
refused("NoSuchLifecycleConfiguration", S3.get_bucket_lifecycle_configuration, Bucket="plain")
for rule in ({"Expiration": {"Days": 0}}, {}, {"Expiration": {"Days": 1}, "Status": "On"},
             {"Transitions": [{"Days": 1}]}, {"Transitions": [{"StorageClass": "GLACIER"}]},
             {"Transitions": [{"Days": 1, "StorageClass": "GLACIER"}]}):
    try:
        put_rules("plain", rule)
        raise AssertionError(f"{rule} was not refused")
    except ClientError as error:
        code = error.response["Error"]["Code"]
        assert code in ("InvalidArgument", "MalformedXML", "InvalidStorageClass"), error.response
for key in ("old/small", "old/large", "tagged/yes", "tagged/no", "stays", "off/k", "dated/k"):
    S3.put_object(Bucket="plain", Key=key, Body=b"x" * (5000 if key == "old/large" else 10),
                  Tagging="go=yes" if key == "tagged/yes" else "")
upload = S3.create_multipart_upload(Bucket="plain", Key="uploads/k")["UploadId"]
S3.upload_part(Bucket="plain", Key="uploads/k", UploadId=upload, PartNumber=1, Body=b"part")
kept = S3.create_multipart_upload(Bucket="plain", Key="k")["UploadId"]
put_rules(
    "plain",
    {"Filter": {"And": {"Prefix": "old/", "ObjectSizeLessThan": 1000}}, "Expiration": {"Days": 2}},
    {"Filter": {"Tag": {"Key": "go", "Value": "yes"}}, "Expiration": {"Days": 1}},
    {"Filter": {"Prefix": "off/"}, "Expiration": {"Days": 1}, "Status": "Disabled"},
    {"Filter": {"Prefix": "dated/"}, "Expiration": {"Date": "2020-01-01T00:00:00Z"}},
    {"Filter": {"Prefix": "uploads/"}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}},
    {"Filter": {"Prefix": "stays"}, "Expiration": {"Days": NEVER}, "ID": "far & away"})
rules = S3.get_bucket_lifecycle_configuration(Bucket="plain")["Rules"]
assert len(rules) == 6 and rules[5]["ID"] == "far & away" and rules[2]["Status"] == "Disabled", rules
told = S3.head_object(Bucket="plain", Key="stays")["Expiration"]
assert 'rule-id="far%20%26%20away"' in told and "expiry-date=" in told, told
until(lambda: keys("plain"), ["off/k", "old/large", "stays", "tagged/no"])
until(lambda: [u["UploadId"] for u in S3.list_multipart_uploads(Bucket="plain").get("Uploads", [])], [kept])

S3.create_bucket(Bucket="versioned")
S3.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
ids = [S3.put_object(Bucket="versioned", Key="k", Body=f"{n}".encode())["VersionId"] for n in range(5)]
S3.put_object(Bucket="versioned", Key="hidden", Body=b"")
put_rules("versioned",
          {"NoncurrentVersionExpiration": {"NoncurrentDays": 1, "NewerNoncurrentVersions": 1}, "Filter": {"Prefix": "k"}},
          {"Expiration": {"Days": 1}, "Filter": {"Prefix": "hidden"}})


def versions(key):
    found = S3.list_object_versions(Bucket="versioned", Prefix=key)
    return [v["VersionId"] for v in found.get("Versions", [])], len(found.get("DeleteMarkers", []))


until(lambda: versions("k"), ([ids[4], ids[3]], 0))
# Its version remains behind a marker.
until(lambda: (len(versions("hidden")[0]), versions("hidden")[1]), (1, 1))
assert keys("versioned") == ["k"]
put_rules("versioned", {"NoncurrentVersionExpiration": {"NoncurrentDays": 1}, "Filter": {"Prefix": "hidden"}},
          {"Expiration": {"ExpiredObjectDeleteMarker": True}})
until(lambda: versions("hidden"), ([], 0))
assert versions("k") == ([ids[4], ids[3]], 0)
S3.delete_bucket_lifecycle(Bucket="versioned")
refused("NoSuchLifecycleConfiguration", S3.get_bucket_lifecycle_configuration, Bucket="versioned")
