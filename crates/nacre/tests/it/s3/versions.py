"""Versions and object lock as boto3 sees them. usage: versions.py ENDPOINT ACCESS_KEY SECRET_KEY; exits with an assertion's text on failure."""

import datetime
import http.client
import os
import sys
import threading
import time

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

ENDPOINT, ACCESS, SECRET = sys.argv[1:4]


def client():
    return boto3.client(
        "s3", endpoint_url=ENDPOINT, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET, region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}))


S3 = client()


def refused(code, call, **args):
    try:
        call(**args)
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, (code, error.response)
        return error.response
    raise AssertionError(f"{call} was not refused ({code})")


def body(bucket, key, **args):
    return S3.get_object(Bucket=bucket, Key=key, **args)["Body"].read()


def listed(bucket, **args):
    """All versions and markers: key, id, whether it is the latest, whether it is a marker."""
    found = S3.list_object_versions(Bucket=bucket, **args)
    assert not found["IsTruncated"], found
    all_ = [(v["Key"], v["VersionId"], v["IsLatest"], False) for v in found.get("Versions", [])]
    return all_ + [(m["Key"], m["VersionId"], m["IsLatest"], True) for m in found.get("DeleteMarkers", [])]


def keys(bucket):
    return [entry["Key"] for entry in S3.list_objects_v2(Bucket=bucket).get("Contents", [])]


def set_versioning(bucket, status):
    S3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})
    assert S3.get_bucket_versioning(Bucket=bucket)["Status"] == status


def multipart(bucket, key, parts):
    upload = S3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    done = [{"PartNumber": n, "ETag": S3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=n, Body=part)["ETag"]}
            for n, part in enumerate(parts, 1)]
    return S3.complete_multipart_upload(Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": done})


def versions():
    S3.create_bucket(Bucket="versions")
    assert "Status" not in S3.get_bucket_versioning(Bucket="versions")
    sizes = (10, 60_000, 700_000, 5_000_000)
    before = {size: os.urandom(size) for size in sizes}
    for size in sizes:
        put = S3.put_object(Bucket="versions", Key=f"k{size}", Body=before[size])
        assert "VersionId" not in put, put
    assert body("versions", "k10", VersionId="null") == before[10]
    set_versioning("versions", "Enabled")
    for size in sizes:
        key = f"k{size}"
        # Objects from before have no version id.
        assert S3.head_object(Bucket="versions", Key=key)["VersionId"] == "null"
        first = os.urandom(size)
        one = S3.put_object(Bucket="versions", Key=key, Body=first)["VersionId"]
        second = [os.urandom(5 << 20), os.urandom(1000)]
        two = multipart("versions", key, second)["VersionId"]
        got = S3.get_object(Bucket="versions", Key=key)
        assert got["Body"].read() == b"".join(second) and got["VersionId"] == two, got
        assert body("versions", key, VersionId=one) == first
        assert body("versions", key, VersionId="null") == before[size]
        assert body("versions", key, VersionId=two, Range="bytes=5242879-5242881") == b"".join(second)[5242879:5242882]
        order = [(key, two, True, False), (key, one, False, False), (key, "null", False, False)]
        assert listed("versions", Prefix=key)[:3] == order
        # A delete marker hides them.
        gone = S3.delete_object(Bucket="versions", Key=key)
        assert gone["DeleteMarker"] is True, gone
        answer = refused("NoSuchKey", S3.get_object, Bucket="versions", Key=key)["ResponseMetadata"]["HTTPHeaders"]
        assert (answer["x-amz-delete-marker"], answer["x-amz-version-id"]) == ("true", gone["VersionId"]), answer
        answer = refused("405", S3.head_object, Bucket="versions", Key=key, VersionId=gone["VersionId"])
        assert answer["ResponseMetadata"]["HTTPHeaders"]["x-amz-delete-marker"] == "true"
        assert key not in keys("versions")
        assert listed("versions", Prefix=key)[-1] == (key, gone["VersionId"], True, True)
        assert body("versions", key, VersionId=one) == first
        # Without it they are visible again.
        back = S3.delete_object(Bucket="versions", Key=key, VersionId=gone["VersionId"])
        assert back["DeleteMarker"] is True and back["VersionId"] == gone["VersionId"], back
        assert body("versions", key) == b"".join(second)
        # The newest is removed permanently; then the one before it is the newest.
        assert "DeleteMarker" not in S3.delete_object(Bucket="versions", Key=key, VersionId=two)
        assert body("versions", key) == first
        refused("NoSuchVersion", S3.get_object, Bucket="versions", Key=key, VersionId=two)
        S3.delete_object(Bucket="versions", Key=key, VersionId=two)
        S3.delete_object(Bucket="versions", Key=key, VersionId="null")
        assert listed("versions", Prefix=key)[0] == (key, one, True, False)
        # A copy of an old one makes it the newest.
        three = S3.put_object(Bucket="versions", Key=key, Body=b"three")["VersionId"]
        copied = S3.copy_object(Bucket="versions", Key=key, CopySource={"Bucket": "versions", "Key": key, "VersionId": one})
        assert copied["CopySourceVersionId"] == one and copied["VersionId"] not in (one, three), copied
        assert body("versions", key) == first
    refused("InvalidArgument", S3.get_object, Bucket="versions", Key="k10", VersionId="nonsense")
    refused("NoSuchKey", S3.get_object, Bucket="versions", Key="nonesuch")
    refused("NoSuchVersion", S3.get_object, Bucket="versions", Key="nonesuch", VersionId="null")
    # Removing an object that never existed creates a marker, too.
    marker = S3.delete_object(Bucket="versions", Key="never")
    assert marker["DeleteMarker"] is True
    refused("BucketNotEmpty", S3.delete_bucket, Bucket="versions")
    gone = S3.delete_objects(Bucket="versions", Delete={"Objects": [
        {"Key": "never", "VersionId": marker["VersionId"]}, {"Key": "k10"}]})["Deleted"]
    assert {d["Key"]: d["DeleteMarker"] for d in gone} == {"never": True, "k10": True}, gone
    assert [d for d in gone if d["Key"] == "never"][0]["VersionId"] == marker["VersionId"], gone
    assert listed("versions", Prefix="never") == []


def properties():
    """Tags, ACLs and conditions belong to a version."""
    S3.create_bucket(Bucket="properties")
    set_versioning("properties", "Enabled")
    one = S3.put_object(Bucket="properties", Key="k", Body=b"one", Tagging="n=1")
    two = S3.put_object(Bucket="properties", Key="k", Body=b"two", Tagging="n=2")
    three = S3.put_object(Bucket="properties", Key="k", Body=b"three")
    S3.put_object_tagging(Bucket="properties", Key="k", VersionId=one["VersionId"], Tagging={"TagSet": [{"Key": "n", "Value": "11"}]})
    S3.put_object_tagging(Bucket="properties", Key="k", Tagging={"TagSet": [{"Key": "n", "Value": "3"}]})
    S3.delete_object_tagging(Bucket="properties", Key="k", VersionId=two["VersionId"])

    def tags(**args):
        return [t["Value"] for t in S3.get_object_tagging(Bucket="properties", Key="k", **args)["TagSet"]]
    assert (tags(VersionId=one["VersionId"]), tags(VersionId=two["VersionId"]), tags()) == (["11"], [], ["3"])
    S3.put_object_acl(Bucket="properties", Key="k", VersionId=one["VersionId"], ACL="public-read")
    assert len(S3.get_object_acl(Bucket="properties", Key="k", VersionId=one["VersionId"])["Grants"]) == 2
    assert len(S3.get_object_acl(Bucket="properties", Key="k")["Grants"]) == 1
    # Changes of the newest version are kept when it is not the newest any more, and when it is again.
    four = S3.put_object(Bucket="properties", Key="k", Body=b"four")
    assert tags(VersionId=three["VersionId"]) == ["3"] and tags() == []
    S3.delete_object(Bucket="properties", Key="k", VersionId=four["VersionId"])
    assert tags() == ["3"]
    head = S3.get_object_attributes(Bucket="properties", Key="k", VersionId=one["VersionId"],
                                    ObjectAttributes=["ETag", "ObjectSize"])
    assert (head["ETag"].strip(chr(34)), head["ObjectSize"]) == (one["ETag"].strip(chr(34)), 3), head

    def put(key, header, value):
        def add(request, **_):
            request.headers[header] = value
        own = client()
        own.meta.events.register("before-sign.s3.PutObject", add)
        return own.put_object(Bucket="properties", Key=key, Body=b"x")
    refused("PreconditionFailed", put, key="k", header="If-None-Match", value="*")
    put("k", "If-Match", three["ETag"])
    refused("PreconditionFailed", put, key="k", header="If-Match", value=three["ETag"])
    S3.delete_object(Bucket="properties", Key="k")
    # A marker has no data.
    put("k", "If-None-Match", "*")


def suspended():
    S3.create_bucket(Bucket="suspended")
    S3.put_object(Bucket="suspended", Key="plain", Body=b"p" * 3_000_000)
    set_versioning("suspended", "Enabled")
    one = S3.put_object(Bucket="suspended", Key="k", Body=b"one")["VersionId"]
    set_versioning("suspended", "Suspended")
    assert S3.put_object(Bucket="suspended", Key="k", Body=b"n" * 2_000_000)["VersionId"] == "null"
    assert S3.put_object(Bucket="suspended", Key="k", Body=b"null again")["VersionId"] == "null"
    assert S3.put_object(Bucket="suspended", Key="plain", Body=b"plain again")["VersionId"] == "null"
    assert listed("suspended") == [("k", "null", True, False), ("k", one, False, False), ("plain", "null", True, False)]
    assert body("suspended", "k") == b"null again" and body("suspended", "k", VersionId=one) == b"one"
    for _ in range(2):
        assert S3.delete_object(Bucket="suspended", Key="k")["VersionId"] == "null"
    assert listed("suspended", Prefix="k") == [("k", one, False, False), ("k", "null", True, True)]
    set_versioning("suspended", "Enabled")
    two = S3.put_object(Bucket="suspended", Key="k", Body=b"two")["VersionId"]
    assert [v[1] for v in sorted(listed("suspended", Prefix="k"))] == sorted([one, two, "null"])
    S3.delete_object(Bucket="suspended", Key="k", VersionId="null")
    assert listed("suspended", Prefix="k") == [("k", two, True, False), ("k", one, False, False)]
    refused("IllegalVersioningConfigurationException", S3.put_bucket_versioning, Bucket="suspended",
            VersioningConfiguration={"Status": "Nonsense"})


def paging():
    S3.create_bucket(Bucket="paging")
    S3.put_object(Bucket="paging", Key="b", Body=b"null")
    set_versioning("paging", "Enabled")
    for key in ("a", "b", "b", "b", "d/x", "d/y", "d/y", "e"):
        S3.put_object(Bucket="paging", Key=key, Body=key.encode())
    S3.delete_object(Bucket="paging", Key="b")
    S3.delete_object(Bucket="paging", Key="d/x")
    whole = S3.list_object_versions(Bucket="paging")
    count = len(whole["Versions"]) + len(whole["DeleteMarkers"])
    assert count == 11, whole
    for delimiter in ("", "/"):
        args = {"Delimiter": delimiter} if delimiter else {}
        wanted = S3.list_object_versions(Bucket="paging", **args)
        for step in (1, 2, 3, 5):
            found, marks = {"Versions": [], "DeleteMarkers": [], "CommonPrefixes": []}, {}
            while True:
                page = S3.list_object_versions(Bucket="paging", MaxKeys=step, **args, **marks)
                parts = [page.get(kind, []) for kind in found]
                assert sum(map(len, parts)) <= step
                for kind, part in zip(found, parts):
                    found[kind] += part
                if not page["IsTruncated"]:
                    break
                assert sum(map(len, parts)) == step, page
                marks = {"KeyMarker": page["NextKeyMarker"]}
                if "NextVersionIdMarker" in page:
                    marks["VersionIdMarker"] = page["NextVersionIdMarker"]
            for kind in found:
                assert found[kind] == wanted.get(kind, []), (delimiter, step, kind, found[kind], wanted.get(kind))
    assert [p["Prefix"] for p in wanted["CommonPrefixes"]] == ["d/"]
    assert keys("paging") == ["a", "d/y", "e"]
    # A program that removes what it lists gets the older versions behind a version `null` that it has removed.
    set_versioning("paging", "Suspended")
    S3.put_object(Bucket="paging", Key="a", Body=b"null")
    page = S3.list_object_versions(Bucket="paging", Prefix="a", MaxKeys=1)
    assert page["NextVersionIdMarker"] == page["Versions"][0]["VersionId"] == "null", page
    S3.delete_object(Bucket="paging", Key="a", VersionId="null")
    rest = S3.list_object_versions(Bucket="paging", Prefix="a", KeyMarker="a", VersionIdMarker="null")
    older = [v for v in whole["Versions"] if v["Key"] == "a"]
    assert older and rest["Versions"] == older, (rest, older)
    # The version that becomes the newest between two pages is the latest one.
    set_versioning("paging", "Enabled")
    S3.put_object(Bucket="paging", Key="e", Body=b"newer")
    page = S3.list_object_versions(Bucket="paging", Prefix="e", MaxKeys=1)
    newest = page["Versions"][0]
    assert newest["IsLatest"] and page["NextVersionIdMarker"] == newest["VersionId"], page
    S3.delete_object(Bucket="paging", Key="e", VersionId=newest["VersionId"])
    rest = S3.list_object_versions(Bucket="paging", Prefix="e", KeyMarker="e", VersionIdMarker=newest["VersionId"])
    assert [version["IsLatest"] for version in rest["Versions"]] == [True], rest


def together():
    """Many writers of one key: each write creates one version, with any concurrent operations."""
    S3.create_bucket(Bucket="together")
    set_versioning("together", "Enabled")
    made, errors = [], []

    def write(thread, own):
        for n in range(12):
            for _ in range(50):
                try:
                    made.append((own.put_object(Bucket="together", Key="k", Body=f"{thread} {n}".encode())["VersionId"],
                                 f"{thread} {n}".encode()))
                    break
                except ClientError as error:
                    # Too many at a time: the client tries again.
                    if error.response["Error"]["Code"] != "SlowDown":
                        errors.append(error)
                        break
            else:
                errors.append("told to slow down for ever")

    threads = [threading.Thread(target=write, args=(n, client())) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert len(made) == 96
    for version, data in made:
        assert body("together", "k", VersionId=version) == data
    assert sorted(v[1] for v in listed("together")) == sorted(version for version, _ in made)
    # And as many that remove them, some twice.
    def remove(part, own):
        for version, _ in part:
            for _ in range(50):
                try:
                    own.delete_object(Bucket="together", Key="k", VersionId=version)
                    break
                except ClientError as error:
                    if error.response["Error"]["Code"] != "SlowDown":
                        errors.append(error)
                        break
    threads = [threading.Thread(target=remove, args=(made[n * 10:n * 10 + 20], client())) for n in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert listed("together") == []
    S3.delete_bucket(Bucket="together")


def locks():
    S3.create_bucket(Bucket="locks", ObjectLockEnabledForBucket=True)
    assert S3.get_bucket_versioning(Bucket="locks")["Status"] == "Enabled"
    assert S3.get_object_lock_configuration(Bucket="locks")["ObjectLockConfiguration"] == {"ObjectLockEnabled": "Enabled"}
    refused("InvalidBucketState", S3.put_bucket_versioning, Bucket="locks", VersioningConfiguration={"Status": "Suspended"})
    later = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1)
    one = S3.put_object(Bucket="locks", Key="k", Body=b"one", ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate=later)["VersionId"]
    head = S3.head_object(Bucket="locks", Key="k")
    assert head["ObjectLockMode"] == "GOVERNANCE" and abs(head["ObjectLockRetainUntilDate"] - later) < datetime.timedelta(seconds=1), head
    # It may be hidden, but not removed.
    marker = S3.delete_object(Bucket="locks", Key="k")["VersionId"]
    S3.delete_object(Bucket="locks", Key="k", VersionId=marker)
    refused("AccessDenied", S3.delete_object, Bucket="locks", Key="k", VersionId=one)
    answer = S3.delete_objects(Bucket="locks", Delete={"Objects": [{"Key": "k", "VersionId": one}]})
    assert answer["Errors"][0]["Code"] == "AccessDenied", answer
    refused("AccessDenied", S3.put_object_retention, Bucket="locks", Key="k", VersionId=one,
            Retention={"Mode": "GOVERNANCE", "RetainUntilDate": later - datetime.timedelta(hours=1)})
    S3.put_object_retention(Bucket="locks", Key="k", VersionId=one,
                            Retention={"Mode": "GOVERNANCE", "RetainUntilDate": later + datetime.timedelta(hours=1)})
    got = S3.get_object_retention(Bucket="locks", Key="k", VersionId=one)["Retention"]
    assert got["Mode"] == "GOVERNANCE" and got["RetainUntilDate"] > later, got
    # A hold is independent.
    S3.put_object_legal_hold(Bucket="locks", Key="k", VersionId=one, LegalHold={"Status": "ON"})
    assert S3.get_object_legal_hold(Bucket="locks", Key="k")["LegalHold"]["Status"] == "ON"
    refused("AccessDenied", S3.delete_object, Bucket="locks", Key="k", VersionId=one, BypassGovernanceRetention=True)
    S3.put_object_legal_hold(Bucket="locks", Key="k", LegalHold={"Status": "OFF"})
    S3.delete_object(Bucket="locks", Key="k", VersionId=one, BypassGovernanceRetention=True)
    assert listed("locks") == []
    # An object that is locked for compliance can't be removed until its time is over.
    soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=6)
    # Another mode is not a longer time: it requires the right to bypass governance.
    strict = {"Mode": "COMPLIANCE", "RetainUntilDate": soon}
    S3.put_object(Bucket="locks", Key="mode", Body=b"", ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate=soon)
    refused("AccessDenied", S3.put_object_retention, Bucket="locks", Key="mode", Retention=strict)
    S3.put_object_retention(Bucket="locks", Key="mode", Retention=strict, BypassGovernanceRetention=True)
    assert S3.get_object_retention(Bucket="locks", Key="mode")["Retention"]["Mode"] == "COMPLIANCE"
    two = S3.put_object(Bucket="locks", Key="c", Body=b"two", ObjectLockMode="COMPLIANCE", ObjectLockRetainUntilDate=soon)["VersionId"]
    refused("AccessDenied", S3.delete_object, Bucket="locks", Key="c", VersionId=two, BypassGovernanceRetention=True)
    refused("AccessDenied", S3.put_object_retention, Bucket="locks", Key="c", BypassGovernanceRetention=True,
            Retention={"Mode": "GOVERNANCE", "RetainUntilDate": later})
    refused("InvalidArgument", S3.put_object, Bucket="locks", Key="c", Body=b"", ObjectLockMode="COMPLIANCE",
            ObjectLockRetainUntilDate=datetime.datetime(2001, 1, 1))
    for wrong in ({"Days": 0}, {"Years": -1}, {"Days": 36_501}):
        rule = {"DefaultRetention": {"Mode": "GOVERNANCE", **wrong}}
        refused("InvalidRetentionPeriod", S3.put_object_lock_configuration, Bucket="locks",
                ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule})
    S3.put_object_lock_configuration(Bucket="locks", ObjectLockConfiguration={
        "ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 2}}})
    S3.put_object(Bucket="locks", Key="default", Body=b"x")
    held = S3.head_object(Bucket="locks", Key="default")
    assert held["ObjectLockMode"] == "GOVERNANCE" and held["ObjectLockRetainUntilDate"] > later, held
    multi = multipart("locks", "multi", [b"part"])
    assert S3.head_object(Bucket="locks", Key="multi", VersionId=multi["VersionId"])["ObjectLockMode"] == "GOVERNANCE"
    S3.create_bucket(Bucket="unlocked")
    refused("ObjectLockConfigurationNotFoundError", S3.get_object_lock_configuration, Bucket="unlocked")
    refused("InvalidRequest", S3.put_object, Bucket="unlocked", Key="k", Body=b"", ObjectLockLegalHoldStatus="ON")
    refused("InvalidBucketState", S3.put_object_lock_configuration, Bucket="unlocked",
            ObjectLockConfiguration={"ObjectLockEnabled": "Enabled"})
    S3.delete_bucket(Bucket="unlocked")
    deadline = time.time() + 60
    while True:
        try:
            S3.delete_object(Bucket="locks", Key="c", VersionId=two)
            break
        except ClientError:
            assert time.time() < deadline
            assert datetime.datetime.now(datetime.timezone.utc) < soon + datetime.timedelta(seconds=30)
            time.sleep(0.2)
    assert datetime.datetime.now(datetime.timezone.utc) >= soon - datetime.timedelta(seconds=1)


def late():
    """A write that is started while the bucket is suspended, and ends when the object that it would replace is locked."""
    S3.create_bucket(Bucket="late")
    set_versioning("late", "Enabled")
    set_versioning("late", "Suspended")
    for key in ("k", "new"):
        S3.put_object(Bucket="late", Key=key, Body=b"kept")

    class Slow:
        def __init__(self, key):
            url = S3.generate_presigned_url("put_object", {"Bucket": "late", "Key": key})
            self.conn = http.client.HTTPConnection(ENDPOINT.removeprefix("http://"), timeout=60)
            self.conn.putrequest("PUT", url.removeprefix(ENDPOINT))
            self.conn.putheader("Content-Length", "4")
            self.conn.endheaders(b"la")

        def end(self):
            self.conn.send(b"te")
            return self.conn.getresponse().status

    slow = [Slow("k"), Slow("new")]
    # Both are sending their bodies: later requests on their own connections are answered.
    S3.head_object(Bucket="late", Key="k")
    time.sleep(0.5)
    set_versioning("late", "Enabled")
    S3.put_object_lock_configuration(Bucket="late", ObjectLockConfiguration={"ObjectLockEnabled": "Enabled"})
    refused("InvalidBucketState", S3.put_bucket_versioning, Bucket="late", VersioningConfiguration={"Status": "Suspended"})
    S3.put_object_legal_hold(Bucket="late", Key="k", VersionId="null", LegalHold={"Status": "ON"})
    assert [put.end() for put in slow] == [403, 200]
    assert body("late", "k", VersionId="null") == b"kept" and body("late", "new", VersionId="null") == b"late"
    S3.put_object_legal_hold(Bucket="late", Key="k", VersionId="null", LegalHold={"Status": "OFF"})


for job in (versions, properties, suspended, paging, together, locks, late):
    job()
    print(job.__name__)
