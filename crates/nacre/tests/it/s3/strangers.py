"""The answers of a gateway to strangers and attackers.

usage: strangers.py ENDPOINT ACCESS_KEY SECRET_KEY OTHERS_ACCESS_KEY OTHERS_SECRET_KEY; the other user's id is 'other'."""

import json
import sys
import urllib.error
import urllib.parse
import urllib.request

import boto3
from botocore import UNSIGNED
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.client import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

ENDPOINT, ACCESS, SECRET = sys.argv[1:4]
OTHERS = tuple(sys.argv[4:6])


def client(access=ACCESS, secret=SECRET, signature_version="s3v4", **config):
    return boto3.client(
        "s3", endpoint_url=ENDPOINT, aws_access_key_id=access, aws_secret_access_key=secret, region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}, signature_version=signature_version, **config))


S3, OTHER, NOBODY = client(), client(*OTHERS), client(signature_version=UNSIGNED)


def code(call, **args):
    try:
        call(**args)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return None


def send(method, path, keys=None, headers=None, body=None):
    """Sends a request as it is written. Returns the status."""
    request = AWSRequest(method=method, url=ENDPOINT + path, data=body, headers=headers or {})
    if keys:
        S3SigV4Auth(Credentials(*keys), "s3", "us-east-1").add_auth(request)
    try:
        sent = urllib.request.Request(ENDPOINT + path, method=method, headers=dict(request.headers), data=body)
        with urllib.request.urlopen(sent) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def operations():
    """Every operation, by an unknown user and by another user."""
    S3.create_bucket(Bucket="mine")
    S3.put_object(Bucket="mine", Key="k", Body=b"k")
    upload = S3.create_multipart_upload(Bucket="mine", Key="parts")["UploadId"]
    S3.upload_part(Bucket="mine", Key="parts", UploadId=upload, PartNumber=1, Body=b"p")
    OTHER.create_bucket(Bucket="theirs")
    bucket, key = {"Bucket": "mine"}, {"Bucket": "mine", "Key": "k"}
    part = dict(bucket, Key="parts", UploadId=upload)
    statement = {"Statement": {"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "*"}}
    rules = {"CORSRules": [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}]}
    calls = [
        ("head_bucket", bucket), ("get_bucket_location", bucket), ("get_bucket_versioning", bucket), ("get_bucket_tagging", bucket),
        ("put_bucket_tagging", dict(bucket, Tagging={"TagSet": []})), ("delete_bucket_tagging", bucket), ("get_bucket_acl", bucket),
        ("put_bucket_acl", dict(bucket, ACL="public-read")), ("get_bucket_policy", bucket), ("get_bucket_policy_status", bucket),
        ("put_bucket_policy", dict(bucket, Policy=json.dumps(statement))), ("delete_bucket_policy", bucket),
        ("get_bucket_cors", bucket), ("put_bucket_cors", dict(bucket, CORSConfiguration=rules)), ("delete_bucket_cors", bucket),
        ("get_public_access_block", bucket), ("put_public_access_block", dict(bucket, PublicAccessBlockConfiguration={})),
        ("delete_public_access_block", bucket), ("get_bucket_ownership_controls", bucket),
        ("put_bucket_ownership_controls", dict(bucket, OwnershipControls={"Rules": [{"ObjectOwnership": "ObjectWriter"}]})),
        ("delete_bucket_ownership_controls", bucket), ("delete_bucket", bucket), ("list_objects", bucket), ("list_objects_v2", bucket),
        ("list_multipart_uploads", bucket), ("put_object", dict(key, Body=b"x")), ("get_object", key), ("head_object", key),
        ("get_object", dict(bucket, Key="nonesuch")), ("delete_object", key), ("delete_object", dict(bucket, Key="nonesuch")),
        ("get_object_acl", key), ("put_object_acl", dict(key, ACL="public-read")), ("get_object_tagging", key),
        ("put_object_tagging", dict(key, Tagging={"TagSet": []})), ("delete_object_tagging", key),
        ("create_multipart_upload", key), ("upload_part", dict(part, PartNumber=2, Body=b"x")), ("list_parts", part),
        ("upload_part_copy", dict(part, PartNumber=3, CopySource="mine/k")), ("abort_multipart_upload", part),
        ("complete_multipart_upload", dict(part, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": "x"}]})),
        ("copy_object", dict(bucket, Key="copy", CopySource="mine/k")),
        ("copy_object", {"Bucket": "theirs", "Key": "copy", "CopySource": "mine/k"}),
    ]
    for name, args in calls:
        for who in (NOBODY, OTHER):
            assert code(getattr(who, name), **args) in ("AccessDenied", "403"), (name, who is NOBODY, code(getattr(who, name), **args))
        # A key that was removed, or never existed.
        assert code(getattr(client("GONE", "x"), name), **args) in ("InvalidAccessKeyId", "403"), name
        assert code(getattr(client(ACCESS, "wrong"), name), **args) in ("SignatureDoesNotMatch", "403"), name
    for who in (NOBODY, OTHER):
        gone = who.delete_objects(Delete={"Objects": [{"Key": "k"}]}, **bucket)
        assert [e["Code"] for e in gone["Errors"]] == ["AccessDenied"] and not gone.get("Deleted"), gone
    assert code(NOBODY.list_buckets) == code(NOBODY.create_bucket, Bucket="nobodys") == "AccessDenied"
    assert code(OTHER.create_bucket, Bucket="mine") == "BucketAlreadyExists"
    assert S3.get_object(Bucket="mine", Key="k")["Body"].read() == b"k"
    assert len(S3.list_parts(**part)["Parts"]) == 1
    S3.abort_multipart_upload(**part)
    # A user with another expected bucket owner gets an error.
    assert code(S3.get_object, ExpectedBucketOwner="other", **key) == "AccessDenied"
    S3.get_object(ExpectedBucketOwner="admin", **key)


def spelling():
    """Authorization evaluates the actual resource, whatever its spelling."""
    own = "arn:aws:s3:::mine"
    S3.put_bucket_policy(Bucket="mine", Policy=json.dumps({"Statement": [
        {"Effect": "Allow", "Principal": "*", "Action": ["s3:ListBucket", "s3:GetObject"], "Resource": [own, own + "/*"]},
        {"Effect": "Deny", "Principal": "*", "Action": "s3:ListBucket", "Resource": own, "Condition": {"StringLike": {"s3:prefix": "secret*"}}},
        {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": own + "/secret/*"}]}))
    S3.put_object(Bucket="mine", Key="secret/1", Body=b"s")
    assert send("GET", "/mine?list-type=2&prefix=k") == 200
    for query in ("prefix=secret/", "pre%66ix=secret/", "prefix=s%65cret/", "prefix=k&prefix=secret/", "prefix=secret/&prefix=k",
                  "prefix=secret/&pre%66ix=k", "acl", "policy", "acl&policy", "prefix=k&acl", "uploads&prefix=k", "tagging", "policy&policy"):
        assert send("GET", f"/mine?{query}") in (400, 403), query
    assert send("GET", "/mine/k") == 200
    for path in ("/mine/secret/1", "/mine/secret%2F1", "/mine/%73ecret/1", "/mine%2Fsecret/1", "//mine/secret/1"):
        assert send("GET", path) in (400, 403, 404), path
    # Keys that look like paths are keys.
    for key in ("../mine/k", "a//b", "/lead", "a/./b", "..", ".", "a/../k", "trail/", "new\nline", "a?b&c=d", "%2e%2e", "+ +", "ü" * 512):
        S3.put_object(Bucket="mine", Key=key, Body=key.encode())
        assert S3.get_object(Bucket="mine", Key=key)["Body"].read() == key.encode(), key
        assert send("GET", "/mine/" + urllib.parse.quote(key, safe="")) == 200, key
        S3.delete_object(Bucket="mine", Key=key)
    assert send("PUT", "/mine/" + "k" * 1024, keys=(ACCESS, SECRET), body=b"x") == 200
    assert code(S3.put_object, Bucket="mine", Key="k" * 1025, Body=b"x") == "KeyTooLongError"
    assert code(S3.create_multipart_upload, Bucket="mine", Key="ü" * 513) == "KeyTooLongError"
    S3.delete_object(Bucket="mine", Key="k" * 1024)
    S3.delete_bucket_policy(Bucket="mine")
    # A copy's source is authorized separately.
    OTHER.put_bucket_acl(Bucket="theirs", ACL="public-read-write")
    for source in ("mine/k", "/mine/k", "mine%2Fk", "theirs/../mine/k", "mine/secret%2F1"):
        status = send("PUT", "/theirs/copy", keys=OTHERS, headers={"x-amz-copy-source": source})
        assert status in (400, 403, 404), (source, status)
    OTHER.put_object(Bucket="theirs", Key="copied", Body=b"c", ACL="public-read")


def signatures():
    """A signature covers everything that it is used for."""
    url = S3.generate_presigned_url("put_object", {"Bucket": "mine", "Key": "signed"})
    path = url[len(ENDPOINT):]
    assert send("PUT", path, body=b"s") == 200
    public = {"x-amz-acl": "public-read"}
    hidden = path.replace("X-Amz-SignedHeaders", "X-Amz-Signed%48eaders")
    assert hidden != path
    bogus = dict(public, Authorization="AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-acl, Signature=00")
    for changed, headers in ((path, public), (hidden, public), (path, bogus), (path + "&X-Amz-SignedHeaders=host%3Bx-amz-acl", public),
                             (path.replace("/signed", "/other"), {}), (path + "&acl", {})):
        assert send("PUT", changed, headers=headers, body=b"s") in (400, 403), (changed, headers)
    assert send("GET", "/mine/signed") == 403
    assert send("GET", path) == 403
    token = dict(public, **{"x-amz-security-token": "x"})
    assert send("GET", "/mine/k", keys=(ACCESS, SECRET), headers=token) in (400, 403)


for test in (operations, spelling, signatures):
    test()
    print(test.__name__)
