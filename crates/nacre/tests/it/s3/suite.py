"""A gateway as boto3 sees it.

usage: suite.py ENDPOINT ACCESS_KEY SECRET_KEY OTHERS_ACCESS_KEY OTHERS_SECRET_KEY; exits with an assertion's text on failure."""

import hashlib
import io
import json
import os
import sys
import threading
import urllib.error
import urllib.request

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

ENDPOINT, ACCESS, SECRET = sys.argv[1:4]
OTHER = sys.argv[4:6]


def client(access=ACCESS, secret=SECRET, **config):
    return boto3.client(
        "s3", endpoint_url=ENDPOINT, aws_access_key_id=access, aws_secret_access_key=secret, region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}, **config))


S3 = client()


def refused(code, call, **args):
    try:
        call(**args)
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, (code, error.response)
        return error.response
    raise AssertionError(f"{call} was not refused ({code})")


def keys(**args):
    return [entry["Key"] for entry in S3.list_objects_v2(**args).get("Contents", [])]


def buckets():
    S3.create_bucket(Bucket="one")
    S3.create_bucket(Bucket="one")
    assert "one" in [b["Name"] for b in S3.list_buckets()["Buckets"]]
    S3.head_bucket(Bucket="one")
    refused("404", S3.head_bucket, Bucket="nonesuch")
    refused("NoSuchBucket", S3.list_objects_v2, Bucket="nonesuch")
    refused("InvalidBucketName", S3.create_bucket, Bucket="No_Such")
    S3.put_object(Bucket="one", Key="k", Body=b"x")
    refused("BucketNotEmpty", S3.delete_bucket, Bucket="one")
    # It is open again.
    S3.put_object(Bucket="one", Key="k", Body=b"y")
    S3.delete_object(Bucket="one", Key="k")
    refused("NoSuchTagSet", S3.get_bucket_tagging, Bucket="one")
    S3.put_bucket_tagging(Bucket="one", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    assert S3.get_bucket_tagging(Bucket="one")["TagSet"] == [{"Key": "a", "Value": "b"}]
    S3.delete_bucket(Bucket="one")
    refused("404", S3.head_bucket, Bucket="one")
    S3.create_bucket(Bucket="one")
    assert keys(Bucket="one") == []
    S3.delete_bucket(Bucket="one")


def objects():
    S3.create_bucket(Bucket="objects")
    for size in (0, 1, 4096, 1 << 20, (1 << 20) + 1, (4 << 20) - 1, 9_000_001):
        data = os.urandom(size)
        put = S3.put_object(Bucket="objects", Key=f"size {size}/ü", Body=data, ContentType="text/x-nacre",
                            Metadata={"colour": "green"}, CacheControl="max-age=5")
        etag = '"' + hashlib.md5(data).hexdigest() + '"'
        assert put["ETag"] == etag
        got = S3.get_object(Bucket="objects", Key=f"size {size}/ü")
        assert got["Body"].read() == data, size
        assert (got["ETag"], got["ContentLength"], got["ContentType"]) == (etag, size, "text/x-nacre"), got
        assert (got["Metadata"], got["CacheControl"]) == ({"colour": "green"}, "max-age=5")
        head = S3.head_object(Bucket="objects", Key=f"size {size}/ü")
        assert (head["ContentLength"], head["ETag"]) == (size, etag)
        for first, last in ((0, 0), (1, 5), (size // 2, size - 1), ((4 << 20) - 3, (4 << 20) + 3)):
            if first <= last and first < size:
                part = S3.get_object(Bucket="objects", Key=f"size {size}/ü", Range=f"bytes={first}-{last}")
                assert part["Body"].read() == data[first:last + 1], (size, first, last)
                assert part["ContentRange"] == f"bytes {first}-{min(last, size - 1)}/{size}"
        refused("InvalidRange", S3.get_object, Bucket="objects", Key=f"size {size}/ü", Range=f"bytes={size}-")
    refused("NoSuchKey", S3.get_object, Bucket="objects", Key="nonesuch")
    S3.delete_object(Bucket="objects", Key="nonesuch")
    # Replaced by a smaller one and a larger one.
    for data in (b"a" * 5_000_000, b"b", b"c" * 6_000_000):
        S3.put_object(Bucket="objects", Key="k", Body=data)
        assert S3.get_object(Bucket="objects", Key="k")["Body"].read() == data
    listed = S3.list_objects_v2(Bucket="objects", Prefix="k")["Contents"]
    assert [(e["Key"], e["Size"]) for e in listed] == [("k", 6_000_000)], listed
    copied = S3.copy_object(Bucket="objects", Key="copy", CopySource={"Bucket": "objects", "Key": "k"})
    assert S3.get_object(Bucket="objects", Key="copy")["Body"].read() == b"c" * 6_000_000
    assert copied["CopyObjectResult"]["ETag"] == listed[0]["ETag"]
    refused("InvalidRequest", S3.copy_object, Bucket="objects", Key="k", CopySource={"Bucket": "objects", "Key": "k"})
    S3.copy_object(Bucket="objects", Key="k", CopySource={"Bucket": "objects", "Key": "k"},
                   MetadataDirective="REPLACE", Metadata={"new": "1"})
    assert S3.head_object(Bucket="objects", Key="k")["Metadata"] == {"new": "1"}
    gone = S3.delete_objects(Bucket="objects", Delete={"Objects": [{"Key": "k"}, {"Key": "copy"}, {"Key": "nonesuch"}]})
    assert sorted(d["Key"] for d in gone["Deleted"]) == ["copy", "k", "nonesuch"], gone
    refused("NoSuchKey", S3.get_object, Bucket="objects", Key="k")
    assert "k" not in keys(Bucket="objects")


def conditions():
    S3.create_bucket(Bucket="conditions")
    etag = S3.put_object(Bucket="conditions", Key="k", Body=b"one")["ETag"]
    assert S3.get_object(Bucket="conditions", Key="k", IfMatch=etag)["Body"].read() == b"one"
    refused("PreconditionFailed", S3.get_object, Bucket="conditions", Key="k", IfMatch='"other"')
    refused("304", S3.get_object, Bucket="conditions", Key="k", IfNoneMatch=etag)

    def put(key, body, header, value):
        # This release of boto3 does not support conditions on writes.
        def add(request, **_):
            request.headers[header] = value
        own = client()
        own.meta.events.register("before-sign.s3.PutObject", add)
        return own.put_object(Bucket="conditions", Key=key, Body=body)

    refused("PreconditionFailed", lambda: put("k", b"two", "If-None-Match", "*"))
    refused("PreconditionFailed", lambda: put("k", b"two", "If-Match", '"00"'))
    refused("NoSuchKey", lambda: put("absent", b"two", "If-Match", '"00"'))
    etag = put("k", b"two", "If-Match", etag)["ETag"]
    assert S3.get_object(Bucket="conditions", Key="k")["Body"].read() == b"two"
    # Of many that create one key, one succeeds.
    outcomes = []

    def race(at):
        try:
            put("raced", b"%d" % at, "If-None-Match", "*")
            outcomes.append(at)
        except ClientError as error:
            assert error.response["Error"]["Code"] == "PreconditionFailed", error.response

    threads = [threading.Thread(target=race, args=(at,)) for at in range(12)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(outcomes) == 1, outcomes
    assert S3.get_object(Bucket="conditions", Key="raced")["Body"].read() == b"%d" % outcomes[0]
    refused("BadDigest", S3.put_object, Bucket="conditions", Key="bad", Body=b"x", ContentMD5="AAAAAAAAAAAAAAAAAAAAAA==")
    refused("NoSuchKey", S3.get_object, Bucket="conditions", Key="bad")
    for algorithm in ("CRC32", "SHA1", "SHA256"):
        S3.put_object(Bucket="conditions", Key="sum", Body=b"hello", ChecksumAlgorithm=algorithm)
        got = S3.get_object(Bucket="conditions", Key="sum", ChecksumMode="ENABLED")
        assert got[f"Checksum{algorithm}"] and got["Body"].read() == b"hello", got
    refused("BadDigest", S3.put_object, Bucket="conditions", Key="sum", Body=b"x", ChecksumCRC32="AAAAAA==")


def listing():
    S3.create_bucket(Bucket="listing")
    names = sorted(f"{a}/{b}/{c:03}" for a in ("a", "b", "ä") for b in ("x", "y") for c in range(40))
    names += ["a", "z with blank", "zz"]
    for name in names:
        S3.put_object(Bucket="listing", Key=name, Body=name.encode())
    names.sort(key=lambda name: name.encode())
    assert keys(Bucket="listing") == names
    paged = [e["Key"] for page in S3.get_paginator("list_objects_v2").paginate(Bucket="listing", PaginationConfig={"PageSize": 7})
             for e in page.get("Contents", [])]
    assert paged == names
    paged = [e["Key"] for page in S3.get_paginator("list_objects").paginate(Bucket="listing", PaginationConfig={"PageSize": 11})
             for e in page.get("Contents", [])]
    assert paged == names
    top = S3.list_objects_v2(Bucket="listing", Delimiter="/")
    assert [p["Prefix"] for p in top["CommonPrefixes"]] == ["a/", "b/", "ä/"]
    assert [e["Key"] for e in top["Contents"]] == ["a", "z with blank", "zz"]
    pages = list(S3.get_paginator("list_objects_v2").paginate(Bucket="listing", Delimiter="/", PaginationConfig={"PageSize": 1}))
    flat = [x for page in pages for x in [p["Prefix"] for p in page.get("CommonPrefixes", [])] + [e["Key"] for e in page.get("Contents", [])]]
    assert flat == ["a", "a/", "b/", "z with blank", "zz", "ä/"], flat
    assert keys(Bucket="listing", Prefix="b/y/", MaxKeys=3) == ["b/y/000", "b/y/001", "b/y/002"]
    assert keys(Bucket="listing", StartAfter="z") == [n for n in names if n.encode() > b"z"]
    assert S3.list_objects_v2(Bucket="listing", MaxKeys=0)["KeyCount"] == 0
    # Immediately after each change.
    for at in range(30):
        S3.put_object(Bucket="listing", Key="now", Body=b"x" * at)
        now = S3.list_objects_v2(Bucket="listing", Prefix="now")["Contents"]
        assert [e["Size"] for e in now] == [at], (at, now)
        S3.delete_object(Bucket="listing", Key="now")
        assert keys(Bucket="listing", Prefix="now") == [], at


def multipart():
    S3.create_bucket(Bucket="parts")
    sizes = [5 << 20, 6 << 20, 1000]
    parts = [os.urandom(size) for size in sizes]
    data = b"".join(parts)
    upload = S3.create_multipart_upload(Bucket="parts", Key="big", Metadata={"m": "1"})["UploadId"]
    assert [u["Key"] for u in S3.list_multipart_uploads(Bucket="parts")["Uploads"]] == ["big"]
    etags = {}
    for number in (3, 1, 2):
        S3.upload_part(Bucket="parts", Key="big", UploadId=upload, PartNumber=number, Body=b"replaced")
        etags[number] = S3.upload_part(Bucket="parts", Key="big", UploadId=upload, PartNumber=number, Body=parts[number - 1])["ETag"]
    listed = S3.list_parts(Bucket="parts", Key="big", UploadId=upload)["Parts"]
    assert [(p["PartNumber"], p["Size"]) for p in listed] == list(enumerate(sizes, 1)), listed
    named = [{"PartNumber": n, "ETag": etags[n]} for n in (1, 2, 3)]
    refused("InvalidPartOrder", S3.complete_multipart_upload, Bucket="parts", Key="big", UploadId=upload,
            MultipartUpload={"Parts": named[::-1]})
    refused("InvalidPart", S3.complete_multipart_upload, Bucket="parts", Key="big", UploadId=upload,
            MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": '"00"'}]})
    assert keys(Bucket="parts") == []
    done = S3.complete_multipart_upload(Bucket="parts", Key="big", UploadId=upload, MultipartUpload={"Parts": named})
    expected = hashlib.md5(b"".join(hashlib.md5(p).digest() for p in parts)).hexdigest() + "-3"
    assert done["ETag"] == f'"{expected}"', done
    got = S3.get_object(Bucket="parts", Key="big")
    assert got["Body"].read() == data and got["Metadata"] == {"m": "1"}
    got = S3.get_object(Bucket="parts", Key="big", Range="bytes=5242870-5242899")
    assert got["Body"].read() == data[5242870:5242900]
    got = S3.get_object(Bucket="parts", Key="big", PartNumber=2)
    assert got["Body"].read() == parts[1] and got["PartsCount"] == 3
    # A repeated completion returns the result of the first one.
    again = S3.complete_multipart_upload(Bucket="parts", Key="big", UploadId=upload, MultipartUpload={"Parts": named})
    assert again["ETag"] == done["ETag"]
    refused("NoSuchUpload", S3.list_parts, Bucket="parts", Key="big", UploadId=upload)
    upload = S3.create_multipart_upload(Bucket="parts", Key="small")["UploadId"]
    tiny = [S3.upload_part(Bucket="parts", Key="small", UploadId=upload, PartNumber=n, Body=b"tiny")["ETag"] for n in (1, 2)]
    refused("EntityTooSmall", S3.complete_multipart_upload, Bucket="parts", Key="small", UploadId=upload,
            MultipartUpload={"Parts": [{"PartNumber": n + 1, "ETag": t} for n, t in enumerate(tiny)]})
    S3.abort_multipart_upload(Bucket="parts", Key="small", UploadId=upload)
    refused("NoSuchUpload", S3.upload_part, Bucket="parts", Key="small", UploadId=upload, PartNumber=1, Body=b"x")
    assert "Uploads" not in S3.list_multipart_uploads(Bucket="parts")
    upload = S3.create_multipart_upload(Bucket="parts", Key="copied")["UploadId"]
    copied = S3.upload_part_copy(Bucket="parts", Key="copied", UploadId=upload, PartNumber=1,
                                 CopySource={"Bucket": "parts", "Key": "big"}, CopySourceRange="bytes=100-6000099")
    S3.complete_multipart_upload(Bucket="parts", Key="copied", UploadId=upload,
                                 MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": copied["CopyPartResult"]["ETag"]}]})
    assert S3.get_object(Bucket="parts", Key="copied")["Body"].read() == data[100:6000100]
    S3.upload_fileobj(io.BytesIO(data * 3), "parts", "managed")
    assert S3.get_object(Bucket="parts", Key="managed")["Body"].read() == data * 3


def access():
    S3.create_bucket(Bucket="access")
    S3.put_object(Bucket="access", Key="secret", Body=b"s")
    S3.put_object(Bucket="access", Key="public", Body=b"p", ACL="public-read")
    url = S3.generate_presigned_url("get_object", Params={"Bucket": "access", "Key": "secret"})
    assert urllib.request.urlopen(url).read() == b"s"

    def status(url, **headers):
        try:
            return urllib.request.urlopen(urllib.request.Request(url, headers=headers)).status
        except urllib.error.HTTPError as error:
            return error.code

    assert status(url.replace("secret?", "public?")) == 403
    assert status(url, **{"x-amz-acl": "public-read"}) == 403
    assert status(f"{ENDPOINT}/access/secret") == 403
    assert status(f"{ENDPOINT}/access/public") == 200
    assert status(f"{ENDPOINT}/access/nonesuch") == 403
    assert status(f"{ENDPOINT}/access") == 403
    assert status(f"{ENDPOINT}/healthz") == 200
    refused("SignatureDoesNotMatch", client(secret="wrong").list_buckets)
    refused("InvalidAccessKeyId", client(access="WRONG").list_buckets)
    # Keys are names, not paths.
    for key in ("../../etc/passwd", "a//b", "./x", "..", "tail_0", "_multipart"):
        S3.put_object(Bucket="access", Key=key, Body=key.encode())
        assert S3.get_object(Bucket="access", Key=key)["Body"].read() == key.encode()
    signed = client(signature_version="s3v4")
    signed.put_object(Bucket="access", Key="signed", Body=b"z" * 3_000_000)
    assert signed.get_object(Bucket="access", Key="signed")["ContentLength"] == 3_000_000


def lists_and_tags():
    S3.create_bucket(Bucket="acls")
    S3.put_object(Bucket="acls", Key="k", Body=b"k", Tagging="a=1&b=two+words")
    assert S3.get_object(Bucket="acls", Key="k")["TagCount"] == 2
    tags = S3.get_object_tagging(Bucket="acls", Key="k")["TagSet"]
    assert tags == [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "two words"}], tags
    S3.put_object_tagging(Bucket="acls", Key="k", Tagging={"TagSet": [{"Key": "c", "Value": ""}]})
    assert S3.get_object_tagging(Bucket="acls", Key="k")["TagSet"] == [{"Key": "c", "Value": ""}]
    S3.delete_object_tagging(Bucket="acls", Key="k")
    assert S3.get_object_tagging(Bucket="acls", Key="k")["TagSet"] == []
    refused("InvalidTag", S3.put_object_tagging, Bucket="acls", Key="k",
            Tagging={"TagSet": [{"Key": "x", "Value": "1"}, {"Key": "x", "Value": "2"}]})
    refused("NoSuchKey", S3.get_object_tagging, Bucket="acls", Key="nonesuch")

    other = client(*OTHER)
    for call in (other.list_objects_v2, other.get_bucket_acl):
        refused("AccessDenied", call, Bucket="acls")
    refused("AccessDenied", other.get_object, Bucket="acls", Key="k")
    refused("AccessDenied", other.put_object, Bucket="acls", Key="k", Body=b"mine")
    refused("BucketAlreadyExists", other.create_bucket, Bucket="acls")
    own = S3.get_bucket_acl(Bucket="acls")
    assert [(g["Grantee"]["ID"], g["Permission"]) for g in own["Grants"]] == [("admin", "FULL_CONTROL")], own
    S3.put_bucket_acl(Bucket="acls", ACL="public-read")
    assert [e["Key"] for e in other.list_objects_v2(Bucket="acls")["Contents"]] == ["k"]
    refused("AccessDenied", other.get_object, Bucket="acls", Key="k")
    S3.put_object_acl(Bucket="acls", Key="k", AccessControlPolicy={
        "Owner": {"ID": "admin"}, "Grants": [{"Grantee": {"Type": "CanonicalUser", "ID": "other"}, "Permission": "READ"}]})
    assert other.get_object(Bucket="acls", Key="k")["Body"].read() == b"k"
    refused("AccessDenied", S3.get_object, Bucket="acls", Key="k")
    grants = S3.get_object_acl(Bucket="acls", Key="k")["Grants"]
    assert [(g["Grantee"]["ID"], g["Permission"]) for g in grants] == [("other", "READ")], grants
    refused("InvalidArgument", S3.put_object_acl, Bucket="acls", Key="k", GrantRead="id=nonesuch")
    S3.put_object_acl(Bucket="acls", Key="k", GrantFullControl="id=admin", GrantRead="id=other")
    assert S3.get_object(Bucket="acls", Key="k")["Body"].read() == b"k"
    S3.put_bucket_acl(Bucket="acls", ACL="public-read-write")
    other.put_object(Bucket="acls", Key="theirs", Body=b"theirs")
    refused("AccessDenied", S3.get_object, Bucket="acls", Key="theirs")
    other.put_object(Bucket="acls", Key="theirs", Body=b"theirs", ACL="bucket-owner-full-control")
    assert S3.get_object(Bucket="acls", Key="theirs")["Body"].read() == b"theirs"
    S3.put_bucket_acl(Bucket="acls", ACL="private")
    refused("AccessDenied", other.put_object, Bucket="acls", Key="k", Body=b"mine")


def policies():
    S3.create_bucket(Bucket="policies")
    for key in ("k", "home/x", "keep/k"):
        S3.put_object(Bucket="policies", Key=key, Body=key.encode())
    other = client(*OTHER)
    refused("NoSuchBucketPolicy", S3.get_bucket_policy, Bucket="policies")
    own = "arn:aws:s3:::policies"
    policy = {"Version": "2012-10-17", "Statement": [
        {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam:::user/other"}, "Action": ["s3:GetObject", "s3:PutObject"], "Resource": f"{own}/*"},
        {"Effect": "Allow", "Principal": "*", "Action": "s3:ListBucket", "Resource": own, "Condition": {"StringLike": {"s3:prefix": "home/*"}}},
        {"Effect": "Deny", "Principal": "*", "Action": "s3:DeleteObject", "Resource": f"{own}/keep/*"},
        {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": "*", "Condition": {"NotIpAddress": {"aws:SourceIp": "127.0.0.0/8"}}},
    ]}
    S3.put_bucket_policy(Bucket="policies", Policy=json.dumps(policy))
    assert json.loads(S3.get_bucket_policy(Bucket="policies")["Policy"]) == policy
    assert other.get_object(Bucket="policies", Key="k")["Body"].read() == b"k"
    other.put_object(Bucket="policies", Key="theirs", Body=b"t")
    refused("AccessDenied", other.list_objects_v2, Bucket="policies")
    assert other.list_objects_v2(Bucket="policies", Prefix="home/")["KeyCount"] == 1
    refused("AccessDenied", other.delete_object, Bucket="policies", Key="k")
    refused("AccessDenied", S3.delete_object, Bucket="policies", Key="keep/k")
    some = S3.delete_objects(Bucket="policies", Delete={"Objects": [{"Key": "keep/k"}, {"Key": "k"}]})
    assert ([e["Code"] for e in some["Errors"]], [d["Key"] for d in some["Deleted"]]) == (["AccessDenied"], ["k"]), some
    refused("AccessDenied", other.put_bucket_policy, Bucket="policies", Policy=json.dumps(policy))
    assert S3.get_bucket_policy_status(Bucket="policies")["PolicyStatus"]["IsPublic"] is True
    for wrong in ("{", json.dumps({"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::other/*"}]}),
                  json.dumps({"Statement": [{"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": f"{own}/*",
                                             "Condition": {"StringEquals": {"s3:Nonesuch/a": "b"}}}]})):
        refused("MalformedPolicy", S3.put_bucket_policy, Bucket="policies", Policy=wrong)
    # Users can't lock themselves out.
    nobody = {"Statement": {"Effect": "Deny", "Principal": "*", "Action": "*", "Resource": [own, f"{own}/*"]}}
    S3.put_bucket_policy(Bucket="policies", Policy=json.dumps(nobody))
    refused("AccessDenied", S3.get_object, Bucket="policies", Key="keep/k")
    S3.delete_bucket_policy(Bucket="policies")
    assert S3.get_object(Bucket="policies", Key="keep/k")["Body"].read() == b"keep/k"
    refused("AccessDenied", other.get_object, Bucket="policies", Key="keep/k")


def browsers():
    S3.create_bucket(Bucket="browsers")
    S3.put_object(Bucket="browsers", Key="k", Body=b"k", ACL="public-read")
    refused("NoSuchCORSConfiguration", S3.get_bucket_cors, Bucket="browsers")
    rules = [{"AllowedOrigins": ["http://*.example.com"], "AllowedMethods": ["GET", "PUT"], "AllowedHeaders": ["x-amz-*"],
              "ExposeHeaders": ["ETag"], "MaxAgeSeconds": 60}]
    S3.put_bucket_cors(Bucket="browsers", CORSConfiguration={"CORSRules": rules})
    assert S3.get_bucket_cors(Bucket="browsers")["CORSRules"] == rules

    def ask(method, **headers):
        request = urllib.request.Request(f"{ENDPOINT}/browsers/k", method=method, headers={k.replace("_", "-"): v for k, v in headers.items()})
        try:
            return urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            return error

    origin = "http://www.example.com"
    answer = ask("OPTIONS", Origin=origin, Access_Control_Request_Method="PUT", Access_Control_Request_Headers="x-amz-date")
    assert answer.status == 200 and answer.headers["Access-Control-Allow-Origin"] == origin, answer.headers
    assert answer.headers["Access-Control-Allow-Methods"] == "GET, PUT" and answer.headers["Access-Control-Max-Age"] == "60"
    assert ask("OPTIONS", Origin=origin, Access_Control_Request_Method="DELETE").status == 403
    assert ask("OPTIONS", Origin="http://evil.org", Access_Control_Request_Method="GET").status == 403
    assert ask("OPTIONS", Origin=origin, Access_Control_Request_Method="PUT", Access_Control_Request_Headers="cookie").status == 403
    assert ask("OPTIONS", Origin=origin).status == 400
    got = ask("GET", Origin=origin)
    assert got.read() == b"k" and got.headers["Access-Control-Allow-Origin"] == origin and got.headers["Access-Control-Expose-Headers"] == "ETag"
    assert ask("GET", Origin="http://evil.org").headers["Access-Control-Allow-Origin"] is None
    refused("InvalidRequest", S3.put_bucket_cors, Bucket="browsers",
            CORSConfiguration={"CORSRules": [{"AllowedOrigins": ["*"], "AllowedMethods": ["PATCH"]}]})
    S3.delete_bucket_cors(Bucket="browsers")
    assert ask("GET", Origin=origin).headers["Access-Control-Allow-Origin"] is None


for check in (lists_and_tags, policies, browsers, buckets, objects, conditions, listing, multipart, access):
    check()
    print(check.__name__, "ok", flush=True)
