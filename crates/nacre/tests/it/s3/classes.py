"""Storage classes as boto3 sees them. usage: classes.py STAGE ENDPOINT ACCESS_KEY SECRET_KEY; exits with an assertion's text on
failure.

Stage `write` stores objects in the classes STANDARD, COLD and STANDARD_IA in every possible way; `check` reads all of them; `delete`
removes them. `write` and `check` print the required number of RADOS objects in each class's pool, as JSON."""

import base64
import datetime
import hashlib
import hmac
import json
import sys
import urllib.request
import uuid

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

STAGE, ENDPOINT, ACCESS, SECRET = sys.argv[1:5]
S3 = boto3.client(
    "s3", endpoint_url=ENDPOINT, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET, region_name="us-east-1",
    config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}))
MIB = 1 << 20
STRIPE = 4 * MIB
CHUNK, SEALED = 64 << 10, (64 << 10) + 16


def body(name, size):
    """The data of an object, which is derived from its name."""
    block = hashlib.sha256(name.encode()).digest()
    return (block * (size // len(block) + 1))[:size]


def tails(size):
    return -(-size // STRIPE)


def sealed(size):
    """Size in bytes of encrypted data."""
    return size + -(-size // CHUNK) * 16


def refused(code, call, **args):
    try:
        call(**args)
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, (code, error.response)
        return
    raise AssertionError(f"{call} was not refused ({code})")


# Of the bucket `plain`: class, data, RADOS objects of the data.
PLAIN = {
    "standard/small": ("STANDARD", body("a", 10), 0),
    "standard/large": ("STANDARD", body("b", 9 * MIB), 3),
    "cold/empty": ("COLD", b"", 0),
    "cold/small": ("COLD", body("c", 10), 1),
    "cold/large": ("COLD", body("d", 9 * MIB), 3),
    "cold/sealed": ("COLD", body("e", STRIPE), tails(sealed(STRIPE))),
    "cold/form": ("COLD", body("f", 1000), 1),
    "cold/parts": ("COLD", body("g", 5 * MIB) + body("h", MIB), 3),
    "cold/copied": ("COLD", body("b", 9 * MIB), 3),
    "cold/replaced": ("COLD", body("i", 5), 1),
    "cold/_name.with_COLD_ in it": ("COLD", body("j", 5), 1),
    "standard/copied": ("STANDARD", body("d", 9 * MIB), 3),
    "standard/replaced": ("STANDARD", body("k", 5), 0),
    "standard/copied parts": ("STANDARD", body("g", 5 * MIB) + body("h", MIB), 2),
    "ia/moved twice": ("STANDARD_IA", body("l", 6 * MIB), 2),
    "ia/moved sealed": ("STANDARD_IA", body("m", 7), 1),
    "standard/moved back": ("STANDARD", body("n", 6 * MIB), 2),
}
# Of `versioned`, newest first.
VERSIONED = {
    "k": [("STANDARD", body("1", 20), 0), ("COLD", body("2", 5 * MIB), 2), ("STANDARD_IA", body("3", 30), 1),
          ("STANDARD", body("4", 100_000), 1)],
    "parts": [("COLD", body("5", 5 * MIB) + body("6", 1), 3)],
}


def copy(source, key, **more):
    S3.copy_object(Bucket="plain", Key=key, CopySource={"Bucket": "plain", "Key": source}, **more)


def upload(bucket, key, *parts, **more):
    """An upload with its parts, the first of which is replaced once."""
    upload = S3.create_multipart_upload(Bucket=bucket, Key=key, **more)["UploadId"]
    S3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=body("no part", MIB))
    done = []
    for number, part in enumerate(parts, 1):
        etag = S3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=part)["ETag"]
        done.append({"PartNumber": number, "ETag": etag})
    return upload, done


def complete(bucket, key, upload, done):
    S3.complete_multipart_upload(Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": done})


def post(key, data, storage_class):
    """An upload by a form. Returns the status."""
    end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=5)
    fields = {"key": key, "x-amz-storage-class": storage_class}
    conditions = [{"bucket": "plain"}] + [{name: value} for name, value in fields.items()]
    policy = {"expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ"), "conditions": conditions}
    policy = base64.b64encode(json.dumps(policy).encode()).decode()
    signature = base64.b64encode(hmac.new(SECRET.encode(), policy.encode(), hashlib.sha1).digest()).decode()
    fields |= {"AWSAccessKeyId": ACCESS, "policy": policy, "signature": signature}
    edge = uuid.uuid4().hex
    form = b"".join(f'--{edge}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
                    for name, value in fields.items())
    form += f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'.encode() + data
    form += f"\r\n--{edge}--\r\n".encode()
    request = urllib.request.Request(f"{ENDPOINT}/plain", form, {"Content-Type": f"multipart/form-data; boundary={edge}"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def write():
    S3.create_bucket(Bucket="plain")
    for call in (S3.put_object, S3.create_multipart_upload):
        refused("InvalidStorageClass", call, Bucket="plain", Key="no", StorageClass="GLACIER")
    status, text = post("no", b"x", "GLACIER")
    assert status == 400 and b"InvalidStorageClass" in text, (status, text)

    def put(key, **more):
        kind, data, _ = PLAIN[key]
        S3.put_object(Bucket="plain", Key=key, Body=data, **({} if kind == "STANDARD" else {"StorageClass": kind}), **more)

    for key in ("standard/small", "standard/large", "cold/empty", "cold/small", "cold/large", "cold/_name.with_COLD_ in it"):
        put(key, Metadata={"from": "put"})
    refused("InvalidStorageClass", copy, source="standard/small", key="no", StorageClass="GLACIER")
    put("cold/sealed", ServerSideEncryption="AES256")
    status, text = post("cold/form", PLAIN["cold/form"][1], "COLD")
    assert status in (200, 204), (status, text)

    # The class is that of the upload, and is also reported during the upload.
    parts = body("g", 5 * MIB), body("h", MIB)
    id, done = upload("plain", "cold/parts", *parts, StorageClass="COLD")
    listed = S3.list_parts(Bucket="plain", Key="cold/parts", UploadId=id)
    assert listed["StorageClass"] == "COLD" and len(listed["Parts"]) == 2, listed
    other, _ = upload("plain", "ended", *parts, StorageClass="COLD")
    standard, _ = upload("plain", "ended", parts[1])
    listed = S3.list_multipart_uploads(Bucket="plain")["Uploads"]
    assert {(entry["UploadId"], entry["StorageClass"]) for entry in listed} == \
        {(id, "COLD"), (other, "COLD"), (standard, "STANDARD")}, listed
    complete("plain", "cold/parts", id, done)
    for upload_id in (other, standard):
        S3.abort_multipart_upload(Bucket="plain", Key="ended", UploadId=upload_id)

    # A copy is in the requested class, whatever the class of its source.
    copy("standard/large", "cold/copied", StorageClass="COLD")
    copy("cold/large", "standard/copied")
    copy("cold/parts", "standard/copied parts")
    # A copy onto itself that only changes the class.
    put_as = lambda key, kind, **more: S3.put_object(Bucket="plain", Key=key, Body=PLAIN[key][1], StorageClass=kind, **more)
    put_as("ia/moved twice", "STANDARD", Metadata={"kept": "yes"}, Tagging="t=1")
    refused("InvalidRequest", copy, source="ia/moved twice", key="ia/moved twice")
    copy("ia/moved twice", "ia/moved twice", StorageClass="COLD")
    copy("ia/moved twice", "ia/moved twice", StorageClass="COLD")
    copy("ia/moved twice", "ia/moved twice", StorageClass="STANDARD_IA")
    assert S3.head_object(Bucket="plain", Key="ia/moved twice")["Metadata"] == {"kept": "yes"}
    assert S3.get_object_tagging(Bucket="plain", Key="ia/moved twice")["TagSet"] == [{"Key": "t", "Value": "1"}]
    put_as("ia/moved sealed", "COLD", ServerSideEncryption="AES256")
    copy("ia/moved sealed", "ia/moved sealed", StorageClass="STANDARD_IA", ServerSideEncryption="AES256")
    put_as("standard/moved back", "COLD")
    copy("standard/moved back", "standard/moved back", StorageClass="STANDARD")
    # Replacing an object in another class leaves nothing of it behind.
    S3.put_object(Bucket="plain", Key="cold/replaced", Body=body("x", 9 * MIB), StorageClass="STANDARD_IA")
    put("cold/replaced")
    S3.put_object(Bucket="plain", Key="standard/replaced", Body=body("x", 9 * MIB), StorageClass="COLD")
    put("standard/replaced")
    S3.put_object(Bucket="plain", Key="gone", Body=body("x", 9 * MIB), StorageClass="COLD")
    S3.delete_object(Bucket="plain", Key="gone")

    S3.create_bucket(Bucket="versioned")
    first = VERSIONED["k"][-1]
    S3.put_object(Bucket="versioned", Key="k", Body=first[1])
    S3.put_object(Bucket="versioned", Key="old", Body=body("o", 5 * MIB), StorageClass="COLD")
    S3.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    for key, versions in VERSIONED.items():
        for kind, data, _ in reversed(versions):
            if key == "parts":
                complete("versioned", key, *upload("versioned", key, data[:5 * MIB], data[5 * MIB:], StorageClass=kind))
            elif data is not first[1]:
                S3.put_object(Bucket="versioned", Key=key, Body=data, StorageClass=kind)
    # Another one of an object from before versioning, and then neither.
    S3.put_object(Bucket="versioned", Key="old", Body=b"x", StorageClass="STANDARD_IA")
    S3.delete_object(Bucket="versioned", Key="old")
    found = S3.list_object_versions(Bucket="versioned", Prefix="old")
    assert [entry["StorageClass"] for entry in found["Versions"]] == ["STANDARD_IA", "COLD"], found
    for entry in found["Versions"] + found["DeleteMarkers"]:
        S3.delete_object(Bucket="versioned", Key="old", VersionId=entry["VersionId"])


def told(answer):
    return answer.get("StorageClass", "STANDARD")


def check():
    listed = {entry["Key"]: entry for entry in S3.list_objects_v2(Bucket="plain")["Contents"]}
    assert listed.keys() == PLAIN.keys(), listed.keys() ^ PLAIN.keys()
    older = {entry["Key"]: entry for entry in S3.list_objects(Bucket="plain")["Contents"]}
    versions = {entry["Key"]: entry for entry in S3.list_object_versions(Bucket="plain")["Versions"]}
    for key, (kind, data, _) in PLAIN.items():
        for page in (listed, older, versions):
            assert (page[key]["StorageClass"], page[key]["Size"]) == (kind, len(data)), (key, page[key])
        head = S3.head_object(Bucket="plain", Key=key)
        got = S3.get_object(Bucket="plain", Key=key)
        # S3 does not name the standard class there.
        for answer in (head, got):
            assert told(answer) == kind and (kind == "STANDARD") == ("StorageClass" not in answer), (key, answer)
        assert got["Body"].read() == data, key
        attributes = S3.get_object_attributes(Bucket="plain", Key=key, ObjectAttributes=["StorageClass"])
        assert attributes["StorageClass"] == kind, (key, attributes)
        if len(data) > 6:
            part = S3.get_object(Bucket="plain", Key=key, Range=f"bytes=3-{len(data) - 2}")
            assert part["Body"].read() == data[3:-1] and told(part) == kind, key
    part = S3.get_object(Bucket="plain", Key="cold/parts", PartNumber=2)
    assert part["Body"].read() == body("h", MIB)
    found = S3.list_object_versions(Bucket="versioned")["Versions"]
    for key, wanted in VERSIONED.items():
        own = [entry for entry in found if entry["Key"] == key]
        assert [(entry["StorageClass"], entry["Size"]) for entry in own] == \
            [(kind, len(data)) for kind, data, _ in wanted], own
        for entry, (kind, data, _) in zip(own, wanted):
            got = S3.get_object(Bucket="versioned", Key=key, VersionId=entry["VersionId"])
            assert got["Body"].read() == data and told(got) == kind, (key, entry)
    everything = list(PLAIN.values()) + [version for versions in VERSIONED.values() for version in versions]
    wanted = {kind: sum(count for own, _, count in everything if own == kind) for kind in ("COLD", "STANDARD_IA")}
    print(json.dumps(wanted | {"bytes": sum(len(data) for _, data, _ in PLAIN.values())}))


def delete():
    for key in PLAIN:
        S3.delete_object(Bucket="plain", Key=key)
    for entry in S3.list_object_versions(Bucket="versioned")["Versions"]:
        S3.delete_object(Bucket="versioned", Key=entry["Key"], VersionId=entry["VersionId"])


{"write": lambda: (write(), check()), "check": check, "delete": delete}[STAGE]()
