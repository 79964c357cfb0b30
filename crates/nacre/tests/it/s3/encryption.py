"""Server-side encryption as boto3 sees it. usage: encryption.py ENDPOINT ACCESS_KEY SECRET_KEY; exits with an assertion's text on failure."""

import base64
import hashlib
import os
import sys

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

ENDPOINT, ACCESS, SECRET = sys.argv[1:4]
S3 = boto3.client(
    "s3", endpoint_url=ENDPOINT, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET, region_name="us-east-1",
    config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}))


def refused(codes, call, **args):
    try:
        call(**args)
    except ClientError as error:
        assert error.response["Error"]["Code"] in codes, (codes, error.response)
        return
    raise AssertionError(f"{call} was not refused ({codes})")


def customer(key):
    return {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key}


def source(key):
    return {"CopySourceSSECustomerAlgorithm": "AES256", "CopySourceSSECustomerKey": key}


MARK = b"plain text that must not be found in the store. "
KEY, OTHER = os.urandom(32), os.urandom(32)
S3.create_bucket(Bucket="secret")
for size in (0, 1, 4096, 65536, 65537, 1 << 20, (1 << 20) + 1, (4 << 20) + 77, 9_000_001):
    data = (MARK * (size // len(MARK) + 1))[:size]
    for name, args, back in (("customer", customer(KEY), customer(KEY)), ("cluster", {"ServerSideEncryption": "AES256"}, {})):
        key = f"{name}/{size}"
        put = S3.put_object(Bucket="secret", Key=key, Body=data, **args)
        assert put["ETag"] == '"' + hashlib.md5(data).hexdigest() + '"'
        assert put.get("ServerSideEncryption") == args.get("ServerSideEncryption")
        assert put.get("SSECustomerAlgorithm") == args.get("SSECustomerAlgorithm")
        got = S3.get_object(Bucket="secret", Key=key, **back)
        assert got["Body"].read() == data and got["ContentLength"] == size, key
        assert got.get("ServerSideEncryption") == args.get("ServerSideEncryption"), got
        assert S3.head_object(Bucket="secret", Key=key, **back)["ContentLength"] == size
        for first, last in ((0, 0), (65535, 65536), (size // 2, size - 1), ((4 << 20) - 3, (4 << 20) + 70)):
            if first <= last and first < size:
                part = S3.get_object(Bucket="secret", Key=key, Range=f"bytes={first}-{last}", **back)
                assert part["Body"].read() == data[first:last + 1], (key, first, last)
    refused(["InvalidRequest"], S3.get_object, Bucket="secret", Key=f"customer/{size}")
    refused(["400"], S3.head_object, Bucket="secret", Key=f"customer/{size}")
    refused(["AccessDenied"], S3.get_object, Bucket="secret", Key=f"customer/{size}", **customer(OTHER))
    refused(["InvalidRequest"], S3.get_object, Bucket="secret", Key=f"cluster/{size}", **customer(KEY))
assert [e["Size"] for e in S3.list_objects_v2(Bucket="secret", Prefix="customer/4096")["Contents"]] == [4096]
refused(["NotImplemented"], S3.put_object, Bucket="secret", Key="k", Body=b"", ServerSideEncryption="aws:kms")
for asked in (dict(SSEKMSKeyId="key"), dict(SSEKMSEncryptionContext="e30="), dict(ServerSideEncryption="aws:kms", SSEKMSKeyId="key")):
    refused(["NotImplemented"], S3.put_object, Bucket="secret", Key="k", Body=b"", **asked)
    refused(["NotImplemented"], S3.create_multipart_upload, Bucket="secret", Key="k", **asked)
refused(["InvalidArgument"], S3.put_object, Bucket="secret", Key="k", Body=b"x", SSECustomerAlgorithm="AES256",
        SSECustomerKey=base64.b64encode(os.urandom(32)).decode(), SSECustomerKeyMD5="d3Jvbmc=")
S3.put_object(Bucket="secret", Key="plain", Body=b"plain")
refused(["InvalidRequest"], S3.get_object, Bucket="secret", Key="plain", **customer(KEY))

# Copies are encrypted again, with the other key or without one.
data = (MARK * 100_000)[:4_500_000]
S3.put_object(Bucket="secret", Key="a", Body=data, **customer(KEY))
where = {"Bucket": "secret", "Key": "a"}
refused(["InvalidRequest"], S3.copy_object, Bucket="secret", Key="b", CopySource=where)
S3.copy_object(Bucket="secret", Key="b", CopySource=where, **source(KEY), **customer(OTHER))
assert S3.get_object(Bucket="secret", Key="b", **customer(OTHER))["Body"].read() == data
S3.copy_object(Bucket="secret", Key="b", CopySource={"Bucket": "secret", "Key": "b"}, ServerSideEncryption="AES256",
               MetadataDirective="REPLACE", **source(OTHER))
assert S3.get_object(Bucket="secret", Key="b")["Body"].read() == data

# Multipart uploads: every part has its own key.
for args, back in ((customer(KEY), customer(KEY)), ({"ServerSideEncryption": "AES256"}, {})):
    upload = S3.create_multipart_upload(Bucket="secret", Key="parts", **args)["UploadId"]
    pieces = [(MARK * 120_000)[:5 << 20], (MARK * 120_000)[:(5 << 20) + 9]]
    done = []
    for n, piece in enumerate(pieces, 1):
        if back:
            refused(["InvalidRequest"], S3.upload_part, Bucket="secret", Key="parts", UploadId=upload, PartNumber=n, Body=piece)
        part = S3.upload_part(Bucket="secret", Key="parts", UploadId=upload, PartNumber=n, Body=piece, **back)
        done.append({"PartNumber": n, "ETag": part["ETag"]})
    copied = S3.upload_part_copy(Bucket="secret", Key="parts", UploadId=upload, PartNumber=3, CopySource=where,
                                 CopySourceRange="bytes=100-70000", **source(KEY), **back)
    done.append({"PartNumber": 3, "ETag": copied["CopyPartResult"]["ETag"]})
    pieces.append(data[100:70001])
    S3.complete_multipart_upload(Bucket="secret", Key="parts", UploadId=upload, MultipartUpload={"Parts": done})
    whole = b"".join(pieces)
    assert S3.get_object(Bucket="secret", Key="parts", **back)["Body"].read() == whole
    edge = 5 << 20
    part = S3.get_object(Bucket="secret", Key="parts", Range=f"bytes={edge - 10}-{edge + 200}", **back)
    assert part["Body"].read() == whole[edge - 10:edge + 201]

# A bucket's default.
S3.create_bucket(Bucket="default")
refused(["ServerSideEncryptionConfigurationNotFoundError"], S3.get_bucket_encryption, Bucket="default")
rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
S3.put_bucket_encryption(Bucket="default", ServerSideEncryptionConfiguration={"Rules": [rule]})
got = S3.get_bucket_encryption(Bucket="default")["ServerSideEncryptionConfiguration"]["Rules"][0]
assert got["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256", got
assert S3.put_object(Bucket="default", Key="k", Body=MARK)["ServerSideEncryption"] == "AES256"
assert S3.get_object(Bucket="default", Key="k")["Body"].read() == MARK
# In versions, too.
S3.put_bucket_versioning(Bucket="default", VersioningConfiguration={"Status": "Enabled"})
one = S3.put_object(Bucket="default", Key="k", Body=MARK * 2)["VersionId"]
two = S3.put_object(Bucket="default", Key="k", Body=MARK * 20_000)["VersionId"]
for version, wanted in (("null", MARK), (one, MARK * 2), (two, MARK * 20_000)):
    assert S3.get_object(Bucket="default", Key="k", VersionId=version)["Body"].read() == wanted
S3.delete_bucket_encryption(Bucket="default")
S3.put_object(Bucket="secret", Key="damaged", Body=MARK * 120_000, ServerSideEncryption="AES256")
