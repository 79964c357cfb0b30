"""Works on a bucket through several gateways while they and OSDs are killed, and checks what they acknowledged.

usage: faults.py ACCESS_KEY SECRET_KEY BUCKET ENDPOINT...; prints `acked N` periodically; ends, after a check of everything, when its
standard input ends. Exits with 1 and the error. A bucket named ...versions has versions.

Each key has one writer. The effect of an attempt that was not acknowledged is unknown: such a key is not written again. It must have
its earlier contents or those of the attempt, complete, and the same for GET and for listings. Every acknowledged version exists, is
listed once, and has the written contents, until its removal is requested."""

import hashlib
import os
import random
import sys
import threading
import time

import boto3
from botocore.client import Config
from botocore.exceptions import BotoCoreError, ClientError

ACCESS, SECRET, BUCKET = sys.argv[1:4]
ENDPOINTS = sys.argv[4:]
VERSIONED = BUCKET.endswith("versions")
WRITERS = 6
KEYS = 6
PATIENCE = 90
MIB = 1 << 20

stop = threading.Event()
failures = []
lock = threading.Lock()
acked = 0
unknown = 0
# Of all keys that readers may check: key -> writer's own record.
everything = {}


def connect(endpoint):
    return boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET, region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=60))


def body_of(key, seq, size):
    head = f"{key} {seq} {size}\n".encode()
    return head + random.Random(f"{key} {seq}").randbytes(size)


def check_whole(key, body):
    """Fails unless the whole body is from one write. Returns which write."""
    head = body.split(b"\n", 1)[0].decode(errors="replace").split(" ")
    assert len(head) == 3 and head[0] == key, f"{key}: foreign data {head}"
    seq, size = int(head[1]), int(head[2])
    assert body == body_of(key, seq, size), f"{key}: torn data of write {seq}: {len(body)} bytes, {size} and a line wanted"
    return seq


class Session:
    """Requests to any gateway that is running."""

    def __init__(self, at):
        self.clients = [connect(endpoint) for endpoint in ENDPOINTS]
        self.at = at

    def once(self, call):
        """One attempt. Returns its result, a ClientError for a definite refusal, or None if the outcome is not known."""
        try:
            return call(self.clients[self.at % len(self.clients)])
        except ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            if status < 500:
                raise
        except BotoCoreError:
            pass
        self.at += 1
        time.sleep(0.1)
        return None

    def surely(self, call):
        """Repeats an idempotent request until it is answered."""
        deadline = time.time() + PATIENCE
        while time.time() < deadline:
            result = self.once(call)
            if result is not None:
                return result
        raise AssertionError(f"not answered within {PATIENCE} s")

    def get(self, key, **version):
        """The number of the write that is read, or None for no object."""
        def call(client):
            found = client.get_object(Bucket=BUCKET, Key=key, **version)
            body = found["Body"].read()
            if len(body) != found["ContentLength"]:
                return None
            return body, found
        try:
            body, found = self.surely(call)
        except ClientError as error:
            assert error.response["Error"]["Code"] in ("NoSuchKey", "NoSuchVersion"), f"{key}: {error}"
            return None, None
        etag = found["ETag"].strip('"')
        if "-" not in etag:
            assert hashlib.md5(body).hexdigest() == etag, f"{key}: ETag of another write"
        seq = check_whole(key, body)
        assert found["Metadata"].get("seq") == str(seq), f"{key}: metadata {found['Metadata']} with write {seq}"
        return seq, found["ETag"]

    def listed(self, key):
        """The ETag of a key in a listing, or None if it is not listed."""
        page = self.surely(lambda client: client.list_objects_v2(Bucket=BUCKET, Prefix=key))
        return {entry["Key"]: entry["ETag"] for entry in page.get("Contents", [])}.get(key)


    def versions(self, key):
        """The versions and delete markers of a key in a listing, newest first: id, whether it is the latest, and of versions the
        ETag."""
        page = self.surely(lambda client: client.list_object_versions(Bucket=BUCKET, Prefix=key))
        found = page.get("Versions", []) + page.get("DeleteMarkers", [])
        assert not page["IsTruncated"]
        return [(entry["VersionId"], entry["IsLatest"], entry.get("ETag")) for entry in found if entry["Key"] == key]


class Record:
    """The known state of a key."""

    def __init__(self):
        self.versions = {}  # of acknowledged ones: id -> write, None for a delete marker
        self.removals = set()  # ids whose removal was requested, but not acknowledged
        self.last = None  # the last acknowledged write, None for no object
        self.attempts = []  # writes whose outcome is unknown
        self.seq = 0

    def allowed(self):
        return [self.last] + self.attempts


def put(session, key, record, size):
    seq = record.seq
    body = body_of(key, seq, size)
    return session.once(lambda client: client.put_object(Bucket=BUCKET, Key=key, Body=body, Metadata={"seq": str(seq)}))


def put_parts(session, key, record):
    seq = record.seq
    body = body_of(key, seq, 5 * MIB + 300_000)
    begun = session.once(lambda client: client.create_multipart_upload(Bucket=BUCKET, Key=key, Metadata={"seq": str(seq)}))
    if begun is None:
        return False
    upload, parts = begun["UploadId"], []
    for number, data in enumerate([body[:5 * MIB], body[5 * MIB:]], 1):
        part = session.surely(lambda client: client.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=number, Body=data))
        parts.append({"PartNumber": number, "ETag": part["ETag"]})
    def complete(client):
        return client.complete_multipart_upload(Bucket=BUCKET, Key=key, UploadId=upload, MultipartUpload={"Parts": parts})
    # Can be repeated: it is the same object each time.
    return session.surely(complete)


def remove(session, key):
    return session.once(lambda client: client.delete_object(Bucket=BUCKET, Key=key))


def remove_version(session, key, record, chance):
    """Removes a version that is not the newest."""
    version = chance.choice(list(record.versions)[:-1])
    if session.once(lambda client: client.delete_object(Bucket=BUCKET, Key=key, VersionId=version)) is None:
        record.removals.add(version)
        record.versions.pop(version)
        return
    assert session.get(key, VersionId=version)[0] is None, f"{key}: version {version} is read after its removal"
    record.versions.pop(version)


def look_at_versions(session, key, record):
    shown = session.versions(key)
    ids = [version for version, _, _ in shown]
    assert len(ids) == len(set(ids)), f"{key}: a version is listed twice: {shown}"
    assert set(record.versions) <= set(ids), f"{key}: {ids} are listed, {record.versions} were acknowledged"
    others = set(ids) - set(record.versions) - record.removals
    assert len(others) <= len(record.attempts), f"{key}: versions that nobody wrote: {others}"
    assert [latest for _, latest, _ in shown].count(True) == (1 if shown else 0), f"{key}: {shown}"
    for version, latest, etag in shown:
        if etag is None:
            continue
        seq, read = session.get(key, VersionId=version)
        assert read == etag, f"{key}: version {version} is {read}, {etag} is listed"
        wanted = [record.versions[version]] if version in record.versions else range(record.seq + 1)
        assert seq in wanted, f"{key}: version {version} is write {seq}, not {wanted}"
        if latest:
            assert session.get(key)[0] == seq, f"{key}: the latest version is not what is read"


def write(number):
    global acked, unknown
    session = Session(number)
    chance = random.Random(number)
    fresh = 0
    keys = []
    while not stop.is_set():
        while len(keys) < KEYS:
            keys.append(f"w{number}/k{fresh}")
            fresh += 1
            with lock:
                everything[keys[-1]] = Record()
        key = chance.choice(keys)
        record = everything[key]
        record.seq += 1
        kind = chance.random()
        with lock:
            record.attempts.append(None if kind < 0.15 else record.seq)
        if kind < 0.15:
            done = remove(session, key)
        elif kind < 0.7:
            done = put(session, key, record, chance.randrange(0, 100_000))
        elif kind < 0.93:
            done = put(session, key, record, chance.randrange(MIB, 9 * MIB))
        else:
            done = put_parts(session, key, record)
            if done is False:
                # Nothing was written.
                with lock:
                    record.attempts.clear()
                continue
        if done is None:
            with lock:
                unknown += 1
            keys.remove(key)
            continue
        with lock:
            record.last, record.attempts = record.attempts[-1], []
            if VERSIONED:
                record.versions[done["VersionId"]] = record.last
            acked += 1
            if acked % 10 == 0:
                print(f"acked {acked}", flush=True)
        # There is no other writer: both must show exactly this.
        seq, etag = session.get(key)
        assert seq == record.last, f"{key}: write {seq} is read, {record.last} was acknowledged"
        shown = session.listed(key)
        assert shown == etag, f"{key}: {shown} is listed, {etag} is read"
        if len(record.versions) > 1 and chance.random() < 0.2:
            remove_version(session, key, record, chance)


def read(number):
    """Reads must return complete objects, during all faults."""
    session = Session(number)
    chance = random.Random(number)
    while not stop.is_set():
        with lock:
            keys = list(everything)
        if not keys:
            time.sleep(0.05)
            continue
        session.get(chance.choice(keys))


def guarded(work, number):
    try:
        work(number)
    except BaseException as error:  # any error is a failure of this test
        failures.append(f"{work.__name__} {number}: {type(error).__name__}: {error}")
        stop.set()


def look_at_all():
    session = Session(0)
    shown, token = {}, {}
    while True:
        page = session.surely(lambda client: client.list_objects_v2(Bucket=BUCKET, MaxKeys=7, **token))
        shown.update({entry["Key"]: entry["ETag"] for entry in page.get("Contents", [])})
        if not page["IsTruncated"]:
            break
        token = {"ContinuationToken": page["NextContinuationToken"]}
    for key, record in everything.items():
        seq, etag = session.get(key)
        assert seq in record.allowed(), f"{key}: write {seq} at the end, one of {record.allowed()} wanted"
        assert shown.get(key) == etag, f"{key}: {shown.get(key)} is listed at the end, {etag} is read"
        if VERSIONED:
            look_at_versions(session, key, record)
    assert set(shown) <= set(everything), f"listed and never written: {set(shown) - set(everything)}"


def main():
    Session(0).surely(lambda client: client.create_bucket(Bucket=BUCKET))
    if VERSIONED:
        enabled = {"Status": "Enabled"}
        Session(0).surely(lambda client: client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration=enabled))
    threads = [threading.Thread(target=guarded, args=(write, n)) for n in range(WRITERS)]
    threads += [threading.Thread(target=guarded, args=(read, WRITERS + n)) for n in range(2)]
    def wait_for_end():
        os.read(0, 1)
        stop.set()
    threading.Thread(target=wait_for_end, daemon=True).start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not failures:
        guarded(lambda _: look_at_all(), 0)
    print(f"end: acked {acked}, unknown {unknown}, keys {len(everything)}", flush=True)
    if failures:
        sys.exit("\n".join(failures))


main()
