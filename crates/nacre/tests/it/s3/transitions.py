"""Transitions between storage classes, on a gateway whose days last a second.

usage: transitions.py STAGE ENDPOINT ACCESS_KEY SECRET_KEY; exits with an assertion's text on failure.

Stage `write` stores objects; `move CLASS` sets the rule that moves those under `go/` there, and waits for them; `versions` does it
with versions; `delete` removes all of them. `many` starts to move more data, and `stopped` ends that."""

import hashlib
import json
import sys
import time

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

ENDPOINT, ACCESS, SECRET = sys.argv[2:5]
S3 = boto3.client(
    "s3", endpoint_url=ENDPOINT, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET, region_name="us-east-1",
    config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}))
MIB = 1 << 20


def body(name, size):
    block = hashlib.sha256(name.encode()).digest()
    return (block * (size // len(block) + 1))[:size]


OBJECTS = {
    "go/empty": b"", "go/small": body("a", 10), "go/large": body("b", 9 * MIB), "go/sealed": body("c", 4 * MIB),
    "go/parts": body("d", 5 * MIB) + body("e", MIB), "go/sealed parts": body("f", 5 * MIB) + body("g", 7),
    "stays": body("h", 5 * MIB),
}


def told(answer):
    return answer.get("StorageClass", "STANDARD")


def upload(bucket, key, *parts, **more):
    upload = S3.create_multipart_upload(Bucket=bucket, Key=key, ChecksumAlgorithm="CRC32", **more)["UploadId"]
    done = []
    for number, part in enumerate(parts, 1):
        got = S3.upload_part(
            Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=part, ChecksumAlgorithm="CRC32")
        done.append({"PartNumber": number, "ETag": got["ETag"], "ChecksumCRC32": got["ChecksumCRC32"]})
    S3.complete_multipart_upload(Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": done})


def until(what, wanted):
    deadline = time.time() + 60
    while (found := what()) != wanted:
        assert time.time() < deadline, (found, wanted)
        time.sleep(0.2)


def put_rules(bucket, *rules):
    rules = [{"ID": str(number), "Status": "Enabled", "Filter": {"Prefix": "go/"}} | rule for number, rule in enumerate(rules)]
    S3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": rules})


def seen(key):
    """An object without its class, as a client sees it."""
    head = S3.head_object(Bucket="plain", Key=key, ChecksumMode="ENABLED")
    names = ("ETag", "LastModified", "ContentLength", "ContentType", "Metadata", "ServerSideEncryption", "ChecksumCRC32")
    shown = {name: str(head.get(name)) for name in names}
    shown["tags"] = S3.get_object_tagging(Bucket="plain", Key=key)["TagSet"]
    if "parts" in key:
        part = S3.get_object(Bucket="plain", Key=key, PartNumber=2)
        assert part["Body"].read() == OBJECTS[key][5 * MIB:], key
        shown["part"] = (part["PartsCount"], part["ContentRange"])
    return shown


def write():
    S3.create_bucket(Bucket="plain")
    for key, data in OBJECTS.items():
        sealed = {"ServerSideEncryption": "AES256"} if "sealed" in key else {}
        more = {"ContentType": "text/x", "Metadata": {"m": key}, "Tagging": "t=1"} | sealed
        if "parts" in key:
            upload("plain", key, data[:5 * MIB], data[5 * MIB:], **more)
        else:
            S3.put_object(Bucket="plain", Key=key, Body=data, ChecksumAlgorithm="CRC32", **more)


def move(kind):
    before = {key: seen(key) for key in OBJECTS}
    put_rules("plain", {"Transitions": [{"Days": 1, "StorageClass": kind}]})
    listed = lambda: {entry["Key"]: entry["StorageClass"] for entry in S3.list_objects_v2(Bucket="plain")["Contents"]}
    until(listed, {key: kind if key.startswith("go/") else "STANDARD" for key in OBJECTS})
    for key, data in OBJECTS.items():
        assert seen(key) == before[key], (key, seen(key), before[key])
        got = S3.get_object(Bucket="plain", Key=key)
        assert got["Body"].read() == data and told(got) == listed()[key], key


def many():
    """Objects that take a while to move."""
    S3.create_bucket(Bucket="many")
    for number in range(4):
        upload("many", f"go/{number}", *[body(f"{number} {part}", 8 * MIB) for part in range(6)])
    put_rules("many", {"Transitions": [{"Days": 1, "StorageClass": "COLD"}]})


def stopped():
    """Reports how many of them have moved, each complete."""
    S3.delete_bucket_lifecycle(Bucket="many")
    moved = 0
    for entry in S3.list_objects_v2(Bucket="many")["Contents"]:
        got = S3.get_object(Bucket="many", Key=entry["Key"])
        number = entry["Key"].removeprefix("go/")
        assert got["Body"].read() == b"".join(body(f"{number} {part}", 8 * MIB) for part in range(6)), entry
        assert told(got) == entry["StorageClass"], entry
        moved += told(got) == "COLD"
    print(moved)


def versions():
    S3.create_bucket(Bucket="versioned")
    bodies = [body(str(number), size) for number, size in enumerate((3, 100_000, 5 * MIB, 5 * MIB + 7, 20))]
    S3.put_object(Bucket="versioned", Key="go/k", Body=bodies[0])
    S3.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    for data in bodies[1:3]:
        S3.put_object(Bucket="versioned", Key="go/k", Body=data)
    upload("versioned", "go/k", bodies[3][:5 * MIB], bodies[3][5 * MIB:])
    S3.put_object(Bucket="versioned", Key="go/k", Body=bodies[4])
    S3.put_object(Bucket="versioned", Key="stays", Body=bodies[1])
    # In the order of listings.
    bodies.reverse()
    listed = lambda: [
        (entry["VersionId"], entry["ETag"], entry["Size"], entry["LastModified"])
        for entry in S3.list_object_versions(Bucket="versioned", Prefix="go/")["Versions"]]
    classes = lambda: [
        entry["StorageClass"] for entry in S3.list_object_versions(Bucket="versioned", Prefix="go/")["Versions"]]
    before = listed()
    assert len(before) == 5 and before[-1][0] == "null", before

    def check(wanted):
        until(classes, wanted)
        assert listed() == before, (listed(), before)
        for (version, *_), data, kind in zip(before, bodies, wanted):
            got = S3.get_object(Bucket="versioned", Key="go/k", VersionId=version)
            assert got["Body"].read() == data and told(got) == kind, (version, kind)
        assert S3.get_object(Bucket="versioned", Key="go/k")["Body"].read() == bodies[0]
        assert told(S3.head_object(Bucket="versioned", Key="stays")) == "STANDARD"

    # The newest noncurrent version stays where it is.
    noncurrent = {"NoncurrentDays": 1, "StorageClass": "COLD", "NewerNoncurrentVersions": 1}
    put_rules("versioned", {"NoncurrentVersionTransitions": [noncurrent]})
    check(["STANDARD", "STANDARD", "COLD", "COLD", "COLD"])
    put_rules(
        "versioned",
        {"Transitions": [{"Days": 1, "StorageClass": "COLD"}],
         "NoncurrentVersionTransitions": [{"NoncurrentDays": 1, "StorageClass": "STANDARD_IA"}]})
    check(["COLD"] + ["STANDARD_IA"] * 4)
    [current] = S3.list_objects_v2(Bucket="versioned", Prefix="go/")["Contents"]
    assert current["StorageClass"] == "COLD", current


def delete():
    for bucket in ("plain", "versioned"):
        S3.delete_bucket_lifecycle(Bucket=bucket)
        for entry in S3.list_object_versions(Bucket=bucket)["Versions"]:
            S3.delete_object(Bucket=bucket, Key=entry["Key"], VersionId=entry["VersionId"])


stage, *args = sys.argv[1].split()
try:
    {"write": write, "move": move, "versions": versions, "many": many, "stopped": stopped, "delete": delete}[stage](*args)
except ClientError as error:
    raise AssertionError(json.dumps(error.response, default=str)) from error
