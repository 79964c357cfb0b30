"""Events of objects' changes at an HTTP endpoint.

usage: events.py ENDPOINT ACCESS_KEY SECRET_KEY. Leaves the topics 'queued', 'immediate' and 'dead'; the last one has an event that
can't be delivered, of the key 'dead'."""

import http.server
import json
import sys
import threading
import time

import boto3
from botocore.client import Config

ENDPOINT, ACCESS, SECRET = sys.argv[1:4]


def client(service):
    return boto3.client(
        service, endpoint_url=ENDPOINT, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET, region_name="default",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}))


S3, SNS = client("s3"), client("sns")
RECORDS, SEEN, LOCK = [], set(), threading.Lock()


class Sink(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        records = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["Records"]
        with LOCK:
            # An event may be delivered again, under the same id.
            RECORDS.extend(record for record in records if record["eventId"] not in SEEN)
            SEEN.update(record["eventId"] for record in records)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


SERVER = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sink)
threading.Thread(target=SERVER.serve_forever, daemon=True).start()
SINK = f"http://127.0.0.1:{SERVER.server_address[1]}/events"


def topic(name, **attributes):
    SNS.create_topic(Name=name, Attributes={"push-endpoint": SINK, "OpaqueData": name, **attributes})


def configure(bucket, *configurations):
    of = lambda id, topic, events, **more: dict(Id=id, TopicArn=f"arn:aws:sns:default::{topic}", Events=events, **more)
    S3.put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={"TopicConfigurations": [of(*c[:3], **(c[3] if c[3:] else {})) for c in configurations]})


def expect(*wanted):
    """Waits for exactly these events, each a configuration, a type and a key. Returns the records in that order."""
    of = lambda r: (r["s3"]["configurationId"], r["eventName"], r["s3"]["object"]["key"])
    deadline = time.monotonic() + 60
    while True:
        with LOCK:
            found = list(RECORDS)
        if len(found) >= len(wanted):
            break
        assert time.monotonic() < deadline, (wanted, [of(r) for r in found])
        time.sleep(0.02)
    assert sorted(map(of, found)) == sorted(wanted), (wanted, [of(r) for r in found])
    with LOCK:
        del RECORDS[:len(found)]
    return sorted(found, key=lambda r: wanted.index(of(r)))


topic("queued", persistent="true")
topic("immediate")
S3.create_bucket(Bucket="plain")
S3.put_object(Bucket="plain", Key="before", Body=b"1")
configure("plain", ("q", "queued", []), ("i", "immediate", ["s3:ObjectCreated:*", "s3:ObjectTagging:*"]))

# Both ways, with the fields of the same change.
answer = S3.put_object(Bucket="plain", Key="k", Body=b"hello", Metadata={"colour": "green"}, Tagging="state=final")
queued, immediate = expect(("q", "ObjectCreated:Put", "k"), ("i", "ObjectCreated:Put", "k"))
for record in (queued, immediate):
    described = record["s3"]["object"]
    assert (described["size"], f'"{described["eTag"]}"') == (5, answer["ETag"]), record
    assert described["metadata"] == [{"key": "x-amz-meta-colour", "val": "green"}], record
    assert described["tags"] == [{"key": "state", "val": "final"}], record
    assert record["userIdentity"]["principalId"] == "admin", record
    assert record["requestParameters"]["sourceIPAddress"] == "127.0.0.1", record
    assert record["responseElements"]["x-amz-request-id"] == answer["ResponseMetadata"]["HTTPHeaders"]["x-amz-request-id"], record
assert (queued["opaqueData"], immediate["opaqueData"]) == ("queued", "immediate")

# Every kind of change.
S3.copy_object(Bucket="plain", Key="copy", CopySource="plain/k")
expect(("q", "ObjectCreated:Copy", "copy"), ("i", "ObjectCreated:Copy", "copy"))
S3.put_object_tagging(Bucket="plain", Key="copy", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
S3.delete_object_tagging(Bucket="plain", Key="copy")
expect(("i", "ObjectTagging:Put", "copy"), ("i", "ObjectTagging:Delete", "copy"))
upload = S3.create_multipart_upload(Bucket="plain", Key="parts")["UploadId"]
part = S3.upload_part(Bucket="plain", Key="parts", UploadId=upload, PartNumber=1, Body=b"part")["ETag"]
S3.complete_multipart_upload(Bucket="plain", Key="parts", UploadId=upload,
                             MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part}]})
expect(("q", "ObjectCreated:CompleteMultipartUpload", "parts"), ("i", "ObjectCreated:CompleteMultipartUpload", "parts"))

# Without effect there is no event; each of several keys has its own.
S3.delete_object(Bucket="plain", Key="none")
aborted = S3.create_multipart_upload(Bucket="plain", Key="aborted")["UploadId"]
S3.abort_multipart_upload(Bucket="plain", Key="aborted", UploadId=aborted)
S3.delete_objects(Bucket="plain", Delete={"Objects": [{"Key": key} for key in ("copy", "none", "parts", "before")]})
records = expect(*(("q", "ObjectRemoved:Delete", key) for key in ("copy", "parts", "before")))
assert len({r["responseElements"]["x-amz-request-id"] for r in records}) == 1, records

# The events of a key are in order.
for size in range(1, 21):
    S3.put_object(Bucket="plain", Key="k", Body=b"x" * size)
with_key = expect(*[("q", "ObjectCreated:Put", "k"), ("i", "ObjectCreated:Put", "k")] * 20)
sequence = [(r["s3"]["object"]["sequencer"], r["s3"]["object"]["size"]) for r in with_key if r["s3"]["configurationId"] == "q"]
assert sequence == sorted(sequence) and [size for _, size in sequence] == list(range(1, 21)), sequence

# A removal reports the metadata and the tags of the removed object, whether the index knows that there are none or not.
S3.create_bucket(Bucket="removals")
configure("removals", ("r", "queued", ["s3:ObjectRemoved:*"]))
metadata, tags = [{"key": "x-amz-meta-colour", "val": "red"}], [{"key": "a", "val": "b"}]
for turn in range(3):
    S3.put_object(Bucket="removals", Key="plain", Body=b"123")
    S3.put_object(Bucket="removals", Key="metadata", Body=b"1234", Metadata={"colour": "red"})
    S3.put_object(Bucket="removals", Key="tagged", Body=b"12345", Tagging="a=b")
    S3.put_object(Bucket="removals", Key="tagged later", Body=b"123456")
    S3.put_object_tagging(Bucket="removals", Key="tagged later", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    S3.put_object(Bucket="removals", Key="replaced", Body=b"1", Metadata={"colour": "red"}, Tagging="a=b")
    S3.put_object(Bucket="removals", Key="replaced", Body=b"1234567")
    keys = ("plain", "metadata", "tagged", "tagged later", "replaced")
    for key in keys:
        S3.delete_object(Bucket="removals", Key=key)
    told = [[r["s3"]["object"][field] for field in ("size", "metadata", "tags")] for r in expect(*[("r", "ObjectRemoved:Delete", key) for key in keys])]
    assert told == [[3, [], []], [4, metadata, []], [5, [], tags], [6, [], tags], [7, [], []]], told

# Versions and delete markers; filters by key.
S3.create_bucket(Bucket="versions")
S3.put_bucket_versioning(Bucket="versions", VersioningConfiguration={"Status": "Enabled"})
prefix = {"Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": "in/"}]}}}
configure("versions", ("v", "queued", ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"], prefix))
S3.put_object(Bucket="versions", Key="out/k", Body=b"1")
version = S3.put_object(Bucket="versions", Key="in/k", Body=b"12")["VersionId"]
marker = S3.delete_object(Bucket="versions", Key="in/k")["VersionId"]
S3.delete_object(Bucket="versions", Key="in/k", VersionId=version)
records = expect(("v", "ObjectCreated:Put", "in/k"), ("v", "ObjectRemoved:DeleteMarkerCreated", "in/k"),
                 ("v", "ObjectRemoved:Delete", "in/k"))
assert [r["s3"]["object"]["versionId"] for r in records] == [version, marker, version], records

# A removed configuration has no more events; an endpoint that fails does not prevent others from receiving theirs.
configure("plain")
S3.put_object(Bucket="plain", Key="k", Body=b"1")
topic("dead", persistent="true", **{"push-endpoint": "http://127.0.0.1:9/", "max_retries": "1"})
configure("plain", ("d", "dead", []))
S3.put_object(Bucket="plain", Key="dead", Body=b"1")
S3.put_object(Bucket="versions", Key="in/last", Body=b"1")
expect(("v", "ObjectCreated:Put", "in/last"))
