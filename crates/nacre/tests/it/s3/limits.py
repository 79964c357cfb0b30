"""A gateway's limits, and its end, as boto3 and raw requests see them.

usage: limits.py ENDPOINT TLS_ADDRESS ACCESS_KEY SECRET_KEY FOLDER PID NACRE; exits with an assertion's text on failure."""

import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

from gateway import Gateway, wait

ENDPOINT, TLS, ACCESS, SECRET, FOLDER, PID, NACRE = sys.argv[1:8]
CONF = f"{FOLDER}/data/ceph.conf"


def client(endpoint=ENDPOINT, access=ACCESS, secret=SECRET, attempts=1):
    return boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id=access, aws_secret_access_key=secret, region_name="us-east-1",
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}, retries={"max_attempts": attempts, "mode": "standard"}))


S3 = client()


def code_of(call, **args):
    try:
        call(**args)
        return None
    except ClientError as error:
        return error.response["Error"]["Code"]


def nacre(*args):
    out = subprocess.run([NACRE, "-c", CONF, *args], capture_output=True, text=True)
    assert out.returncode == 0, (args, out.stderr)
    return out.stdout


def fetch(url):
    try:
        return urllib.request.urlopen(url, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code


def rates():
    nacre("user", "create", "--uid", "limited", "--display-name", "L", "--access-key", "LIMITED", "--secret-key", "secret")
    s3 = client(access="LIMITED", secret="secret")
    s3.create_bucket(Bucket="limited")
    s3.put_object(Bucket="limited", Key="k", Body=b"x" * 1000)
    shown = json.loads(nacre("ratelimit", "get", "--ratelimit-scope=user", "--uid=limited"))["user_ratelimit"]
    assert shown == {"max_read_ops": 0, "max_write_ops": 0, "max_read_bytes": 0, "max_write_bytes": 0, "enabled": False}
    # The settings apply when the limit is enabled.
    nacre("ratelimit", "set", "--ratelimit-scope=user", "--uid=limited", "--max-read-ops=5", "--max-write-ops=3")
    assert [code_of(s3.head_object, Bucket="limited", Key="k") for _ in range(20)] == [None] * 20
    nacre("ratelimit", "enable", "--ratelimit-scope=user", "--uid=limited")
    begin = time.monotonic()
    codes = [code_of(s3.get_object, Bucket="limited", Key="k") for _ in range(20)]
    more = (time.monotonic() - begin) / 60 * 5
    assert 5 <= codes.count(None) <= 6 + more and set(codes) == {None, "SlowDown"}, codes
    codes = [code_of(s3.put_object, Bucket="limited", Key="k", Body=b"x" * 1000) for _ in range(10)]
    assert 3 <= codes.count(None) <= 5 and set(codes) == {None, "SlowDown"}, codes
    # Some may have been released meanwhile.
    answers = []
    while not answers:
        try:
            s3.get_object(Bucket="limited", Key="k")
        except ClientError as error:
            answers.append(error.response["ResponseMetadata"])
    assert answers[0]["HTTPStatusCode"] == 503 and answers[0]["HTTPHeaders"]["retry-after"] == "1", answers
    assert code_of(S3.list_buckets) is None, "others are not concerned"
    nacre("ratelimit", "disable", "--ratelimit-scope=user", "--uid=limited")
    assert code_of(s3.get_object, Bucket="limited", Key="k") is None
    # Bytes of a bucket, for all readers: started answers continue, then no more.
    nacre("ratelimit", "set", "--ratelimit-scope=bucket", "--bucket=limited", "--max-read-bytes=1500")
    nacre("ratelimit", "enable", "--ratelimit-scope=bucket", "--bucket=limited")
    shown = json.loads(nacre("ratelimit", "get", "--ratelimit-scope=bucket", "--bucket=limited"))["bucket_ratelimit"]
    assert shown["max_read_bytes"] == 1500 and shown["enabled"], shown
    codes = []
    for _ in range(10):
        try:
            codes.append(len(s3.get_object(Bucket="limited", Key="k")["Body"].read()))
        except ClientError as error:
            codes.append(error.response["Error"]["Code"])
    assert codes[:2] == [1000, 1000] and codes[-1] == "SlowDown", codes
    assert code_of(s3.put_object, Bucket="limited", Key="k", Body=b"x") is None
    nacre("ratelimit", "disable", "--bucket=limited")
    assert code_of(s3.get_object, Bucket="limited", Key="k") is None


def concurrency():
    gateway = Gateway(NACRE, CONF, "--rgw_max_concurrent_requests=2")
    s3 = client(gateway.url)
    s3.create_bucket(Bucket="concurrent")
    # Two requests without their bodies take both places.
    def begin(n):
        url = s3.generate_presigned_url("put_object", Params={"Bucket": "concurrent", "Key": str(n)})
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
        connection.putrequest("PUT", url[len(gateway.url):])
        connection.putheader("Content-Length", "10")
        connection.endheaders(b"12345")
        return connection
    begun = [begin(n) for n in range(2)]

    def are_held():
        slow = code_of(s3.list_buckets) == "SlowDown"
        # One may have arrived before the end of the request that created the bucket was counted.
        refused = [n for n in range(2) if select.select([begun[n].sock], [], [], 0)[0]]
        for n in refused:
            begun[n].close()
            begun[n] = begin(n)
        return slow and not refused
    wait("told to slow down", are_held)
    assert fetch(f"{gateway.url}/healthz") == 200
    for connection in begun:
        connection.send(b"67890")
        assert connection.getresponse().status == 200
    wait("taken again", lambda: code_of(s3.list_buckets) is None)
    gateway.end()


def sizes():
    host = ENDPOINT[len("http://"):]

    def raw(head, body=b""):
        with socket.create_connection(host.split(":")) as sock:
            sock.settimeout(60)
            try:
                sock.sendall(head.encode() + body)
            except OSError:
                pass
            answer = b""
            try:
                while chunk := sock.recv(65536):
                    answer += chunk
            except OSError:
                pass
            return answer

    for head in (
            "GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + "a" * 70_000 + "\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + "a" * 600_000 + "\r\n\r\n",
            "GET /" + "a" * 70_000 + " HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\n" + "X-Many: 1\r\n" * 200 + "\r\n"):
        assert raw(head).startswith(b"HTTP/1.1 431"), raw(head)[:100]
    assert raw("GET /?" + "a" * 60_000 + " HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 403")


def health():
    gateway = Gateway(NACRE, CONF)
    assert fetch(f"{gateway.url}/healthz") == 200
    os.kill(int(PID), signal.SIGSTOP)
    try:
        wait("the cluster's silence is told of", lambda: fetch(f"{gateway.url}/healthz") == 503)
    finally:
        os.kill(int(PID), signal.SIGCONT)
    wait("well again", lambda: fetch(f"{gateway.url}/healthz") == 200)
    gateway.end()


def drain():
    S3.create_bucket(Bucket="drain")
    gateway = Gateway(NACRE, CONF)
    data = os.urandom(9_000_000)
    url = client(gateway.url).generate_presigned_url("put_object", Params={"Bucket": "drain", "Key": "k"})
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    connection.putrequest("PUT", url[len(gateway.url):])
    connection.putheader("Content-Length", str(len(data)))
    connection.endheaders()
    connection.send(data[:5_000_000])
    # It is in progress when some of it is stored.
    wait("a part is stored", lambda: "shadow" in nacre("rados", "-p", "default.rgw.buckets.data", "ls"))
    gateway.process.terminate()

    def is_refused():
        try:
            socket.create_connection(("127.0.0.1", gateway.port), timeout=60).close()
            return False
        except ConnectionRefusedError:
            return True

    wait("new connections are refused", is_refused)
    for at in range(5_000_000, len(data), 500_000):
        # A slow client.
        time.sleep(0.2)
        assert gateway.process.poll() is None, "it ended before the request did"
        connection.send(data[at:at + 500_000])
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    gateway.ended()
    assert S3.get_object(Bucket="drain", Key="k")["Body"].read() == data
    listed = S3.list_objects_v2(Bucket="drain")["Contents"]
    assert [(entry["Key"], entry["Size"]) for entry in listed] == [("k", len(data))], listed
    # A request that never ends is dropped.
    gateway = Gateway(NACRE, CONF, "--rgw_exit_timeout_secs=1")
    url = client(gateway.url).generate_presigned_url("put_object", Params={"Bucket": "drain", "Key": "never"})
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as sock:
        sock.sendall(f"PUT {url[len(gateway.url):]} HTTP/1.1\r\nHost: 127.0.0.1:{gateway.port}\r\n"
                     "Content-Length: 10\r\nExpect: 100-continue\r\n\r\n".encode())
        # It is in progress when its body is requested.
        answer = sock.recv(1024)
        assert answer.startswith(b"HTTP/1.1 100 "), answer
        sock.sendall(b"12345")
        log = gateway.end()
        assert "took too long" in log, log
    assert code_of(S3.head_object, Bucket="drain", Key="never") == "404"


for test in (rates, concurrency, sizes, health, drain):
    print(test.__name__, flush=True)
    test()
