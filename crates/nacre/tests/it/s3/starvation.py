"""Peers that use connections, requests or time without making progress: each is bounded, and other clients are answered promptly.

usage: starvation.py ENDPOINT TLS_ADDRESS ACCESS_KEY SECRET_KEY FOLDER PID NACRE [SOCKETS BODIES]; exits with an assertion's text on
failure. With SOCKETS and BODIES it prints how long requests take in the presence of that many, with a gateway with default options."""

import os
import resource
import select
import signal
import socket
import ssl
import sys
import time

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

from gateway import Gateway, free_port, wait

ENDPOINT, TLS, ACCESS, SECRET, FOLDER, PID, NACRE = sys.argv[1:8]
CONF = f"{FOLDER}/data/ceph.conf"
# A slower answer had to wait for another client.
PROMPT = 5
BUCKET = "starved"


def client(gateway, attempts=1):
    return boto3.client(
        "s3", endpoint_url=gateway.url, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET, region_name="us-east-1",
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}, connect_timeout=20, read_timeout=20,
                      retries={"max_attempts": attempts, "mode": "standard"}))


def works(gateway):
    """A new client writes, reads and lists. Returns the longest time of its requests."""
    s3, longest = client(gateway), 0
    for call in (lambda: s3.put_object(Bucket=BUCKET, Key="k", Body=b"x" * 10_000),
                 lambda: s3.get_object(Bucket=BUCKET, Key="k")["Body"].read(),
                 lambda: s3.list_objects_v2(Bucket=BUCKET)):
        begin = time.monotonic()
        call()
        longest = max(longest, time.monotonic() - begin)
    s3.close()
    assert longest < PROMPT, longest
    return longest


def connect(port, says=b"", source="127.0.0.1"):
    sock = socket.socket()
    sock.bind((source, 0))
    sock.settimeout(60)
    sock.connect(("127.0.0.1", port))
    try:
        sock.sendall(says)
    except OSError:
        pass
    return sock


def is_closed(sock):
    sock.settimeout(0)
    try:
        while data := sock.recv(65536):
            pass
        return data == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def closes(sock, seconds):
    """Waits until the gateway closes the connection, and fails after that time. Returns what it sent before."""
    deadline, said = time.monotonic() + seconds, b""
    while (left := deadline - time.monotonic()) > 0:
        sock.settimeout(left)
        try:
            data = sock.recv(65536)
        except TimeoutError:
            break
        except OSError:
            return said
        if not data:
            return said
        said += data
    raise AssertionError(f"still open after {seconds} s: {said[:200]}")


def presigned(gateway, operation, **params):
    url = client(gateway).generate_presigned_url(operation, Params={"Bucket": BUCKET, **params}, ExpiresIn=3600)
    return url[len(gateway.url):]


def head(method, target, *more):
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: HOST", *more, "", ""])


def stalled(gateway):
    """Requests without their bodies, from strangers and from a user."""
    form = "--b\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nk"
    return {
        "form": head("POST", f"/{BUCKET}", "Content-Type: multipart/form-data; boundary=b", "Content-Length: 1000") + form,
        "iam": head("POST", "/", "Content-Type: application/x-www-form-urlencoded", "Content-Length: 1000",
                    "Authorization: AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/sts/aws4_request, "
                    "SignedHeaders=host;x-amz-date, Signature=00", "x-amz-date: 20260101T000000Z") + "Action=",
        "document": head("POST", f"/{BUCKET}?delete", "Content-Length: 1000") + "<Delete>",
        "put": head("PUT", f"/{BUCKET}/anonymous", "Content-Length: 1000") + "12345",
        "user": head("PUT", presigned(gateway, "put_object", Key="stalled"), "Content-Length: 1000") + "12345",
    }


def said(gateway, text):
    return text.replace("HOST", f"127.0.0.1:{gateway.port}").encode()


def connections():
    """Connections without a request are closed for new ones, the oldest first. Those with a request are not."""
    tls = free_port()
    gateway = Gateway(NACRE, CONF, "--rgw_max_connections=40",
                      frontends=f"ssl_port={tls} ssl_certificate={FOLDER}/tls.crt ssl_private_key={FOLDER}/tls.key")
    client(gateway).create_bucket(Bucket=BUCKET)
    for what, port, says in (
            ("silent", gateway.port, b""), ("TLS that does not begin", tls, b""), ("TLS that stops", tls, b"\x16\x03\x01\x02\x00\x01"),
            ("half a head", gateway.port, b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "), ("half of HTTP/2", gateway.port, b"PRI * HTTP/2.0"),
            ("idle", gateway.port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")):
        held = [connect(port, says) for _ in range(100)]
        works(gateway)
        wait(f"some make way: {what}", lambda: sum(not is_closed(sock) for sock in held) <= 40)
        held += [connect(port, says) for _ in range(100)]
        works(gateway)
        print(f"  {what}", flush=True)
        for sock in held:
            sock.close()
    # Each from its own address: no address exceeds its share, and the total bound applies.
    held = [connect(gateway.port, source=f"127.1.{at // 250}.{at % 250 + 1}") for at in range(200)]
    works(gateway)
    wait("the oldest of many addresses make way", lambda: sum(not is_closed(sock) for sock in held) <= 40)
    assert not is_closed(held[-1]), "the newest was closed"
    for sock in held:
        sock.close()
    # A slow upload in progress is not among them.
    upload = connect(gateway.port, said(gateway, head("PUT", presigned(gateway, "put_object", Key="slow"), "Content-Length: 100",
                                                      "Expect: 100-continue")))
    assert upload.recv(65536).startswith(b"HTTP/1.1 100"), "its body is not asked for"
    held = []
    for _ in range(100):
        upload.sendall(b"x")
        held += [connect(gateway.port) for _ in range(2)]
    assert upload.recv(65536).startswith(b"HTTP/1.1 200"), "an upload was ended for connections that are idle"
    works(gateway)
    gateway.end()


def addresses():
    """A client that uses everything that an address may use does not affect others."""
    gateway = Gateway(NACRE, CONF, "--rgw_max_connections_per_address=10")
    mine = connect(gateway.port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert mine.recv(65536).startswith(b"HTTP/1.1 200")
    theirs = [connect(gateway.port, source="127.0.0.2") for _ in range(50)]
    wait("ten are left", lambda: sum(not is_closed(sock) for sock in theirs) == 10)
    assert not any(is_closed(sock) for sock in theirs[-10:]), "not the oldest were closed"
    mine.settimeout(60)
    mine.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert mine.recv(65536).startswith(b"HTTP/1.1 200")
    gateway.end()


def files():
    """File descriptors are exhausted before connections."""
    gateway = Gateway(NACRE, CONF, files=128)
    held = [connect(gateway.port) for _ in range(400)]
    works(gateway)
    assert not is_closed(held[-1])
    gateway.end()


def requests():
    """Requests that wait for their clients are dropped for others."""
    gateway = Gateway(NACRE, CONF, "--rgw_max_concurrent_requests=20", "--rgw_stalled_request_time=1")
    for what, text in stalled(gateway).items():
        held = [connect(gateway.port, said(gateway, text)) for _ in range(60)]
        if what == "user":
            # A user's requests get their time first.
            def is_served():
                try:
                    client(gateway).list_buckets()
                    return True
                except ClientError as error:
                    assert error.response["Error"]["Code"] == "SlowDown", error
                    return False
            wait("a user's stalled requests make way", is_served, 20)
        works(gateway)
        held += [connect(gateway.port, said(gateway, text)) for _ in range(60)] if what != "user" else []
        works(gateway)
        print(f"  {what}", flush=True)
        for sock in held:
            sock.close()
    gateway.end()


def times():
    """Every wait for a client has a time limit."""
    tls = free_port()
    gateway = Gateway(NACRE, CONF, "--rgw_header_timeout=1", "--rgw_tls_handshake_timeout=1", "--rgw_min_transfer_rate=10240",
                      frontends=f"request_timeout_ms=1500 ssl_port={tls} ssl_certificate={FOLDER}/tls.crt ssl_private_key={FOLDER}/tls.key")
    s3 = client(gateway)
    data = os.urandom(30_000_000)
    s3.put_object(Bucket=BUCKET, Key="large", Body=data)
    for port, says in ((gateway.port, b""), (gateway.port, b"GET / HTTP/1.1\r\nX-Slow: "), (tls, b""), (tls, b"\x16\x03\x01\x02\x00\x01")):
        assert closes(connect(port, says), 20) == b"", says
    # A head that arrives byte by byte has no more time than one that does not arrive.
    slow, begin = connect(gateway.port), time.monotonic()
    while not is_closed(slow):
        assert time.monotonic() - begin < 20
        try:
            slow.send(b"x")
        except OSError:
            break
        time.sleep(0.05)
    assert closes(connect(gateway.port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"), 20).startswith(b"HTTP/1.1 200")
    for what, text in stalled(gateway).items():
        answer = closes(connect(gateway.port, said(gateway, text)), 20)
        is_denied = what in ("put", "document") and answer.startswith(b"HTTP/1.1 403")
        assert is_denied or (answer.startswith(b"HTTP/1.1 400") and b"<Code>RequestTimeout</Code>" in answer), (what, answer)
    # A trickle of bytes is too slow, a steady rate is not.
    upload = connect(gateway.port, said(gateway, head("PUT", presigned(gateway, "put_object", Key="trickle"), "Content-Length: 100000")))
    begin = time.monotonic()
    while not select.select([upload], [], [], 0.1)[0]:
        assert time.monotonic() - begin < 20, "a trickle goes on"
        upload.send(b"x")
    assert b"<Code>RequestTimeout</Code>" in closes(upload, 20)
    upload = connect(gateway.port, said(gateway, head("PUT", presigned(gateway, "put_object", Key="steady"), "Content-Length: 200000")))
    for _ in range(40):
        upload.sendall(b"x" * 5000)
        time.sleep(0.1)
    assert upload.recv(65536).startswith(b"HTTP/1.1 200")
    # Clients that read nothing of an answer, or a byte at a time.
    def get():
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", gateway.port))
        sock.sendall(said(gateway, head("GET", presigned(gateway, "get_object", Key="large"))))
        return sock

    def is_left(sock):
        # The kernel continues to send its buffers, but the gateway has closed the socket.
        ends = f"0100007F:{gateway.port:04X}", f"0100007F:{sock.getsockname()[1]:04X}"
        with open("/proc/net/tcp") as table:
            rows = [line.split() for line in table]
        return not any((row[1], row[2]) == ends and row[9] != "0" for row in rows)

    sock = get()
    wait("an answer is begun", lambda: select.select([sock], [], [], 0)[0], 20)
    assert not is_left(sock)
    wait("who takes nothing is left", lambda: is_left(sock), 20)
    sock, begin = get(), time.monotonic()
    wait("an answer is begun", lambda: select.select([sock], [], [], 0)[0], 20)
    while not is_left(sock):
        assert time.monotonic() - begin < 20, "a reader of single bytes goes on"
        try:
            sock.recv(1)
        except OSError:
            break
        time.sleep(0.05)
    # A reader that pauses and continues receives its answer.
    body = s3.get_object(Bucket=BUCKET, Key="large")["Body"]
    got = b""
    for _ in range(3):
        got += body.read(5_000_000)
        time.sleep(0.5)
    assert got + body.read() == data
    gateway.end()


def backlog():
    """Connections that arrive at once do not wait for each other."""
    gateway = Gateway(NACRE, CONF)
    most = min(600, int(open("/proc/sys/net/core/somaxconn").read()) - 1)
    os.kill(gateway.process.pid, signal.SIGSTOP)
    try:
        burst = []
        for _ in range(most):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", gateway.port))
            burst.append(sock)
        poll = select.poll()
        for sock in burst:
            poll.register(sock, select.POLLOUT)
        # A connection that finds no room is tried again after a second.
        wait("all are connected", lambda: len(poll.poll(0)) == most, 0.9)
    finally:
        os.kill(gateway.process.pid, signal.SIGCONT)
    works(gateway)
    gateway.end()


def protocols():
    """HTTP/2 is not supported, because it has more ways to exhaust a server."""
    gateway = Gateway(NACRE, CONF)
    answer = closes(connect(gateway.port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"), 20)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer
    context = ssl.create_default_context(cafile=f"{FOLDER}/ca.crt")
    context.set_alpn_protocols(["h2", "http/1.1"])
    host, port = TLS.split(":")
    with context.wrap_socket(socket.create_connection((host, int(port))), server_hostname="s3.localhost") as sock:
        assert sock.selected_alpn_protocol() == "http/1.1"
    # A body in tiny chunks is accepted.
    chunks = b"".join(b"1\r\nx\r\n" for _ in range(50_000)) + b"0\r\n\r\n"
    upload = connect(gateway.port, said(gateway, head("PUT", presigned(gateway, "put_object", Key="chunks"), "Transfer-Encoding: chunked")) + chunks)
    status = upload.recv(65536).split()[1]
    assert status in (b"200", b"411"), status
    works(gateway)
    gateway.end()


def measure(sockets, bodies):
    """How long requests take in the presence of that many silent sockets and stalled bodies."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(sockets, bodies) + 1000,) * 2)
    gateway = Gateway(NACRE, CONF)
    client(gateway).create_bucket(Bucket=BUCKET)
    print(f"alone: {works(gateway):.3f} s", flush=True)
    for what, count, text in [("silent sockets", sockets, ""), *((f"stalled bodies ({name})", bodies, text) for name, text in stalled(gateway).items())]:
        begin = time.monotonic()
        held = [connect(gateway.port, said(gateway, text)) for _ in range(count)]
        took = time.monotonic() - begin
        longest = []
        for _ in range(5):
            begin = time.monotonic()
            while True:
                try:
                    works(gateway)
                    break
                except ClientError as error:
                    assert error.response["Error"]["Code"] == "SlowDown", error
            longest.append(time.monotonic() - begin)
        left = sum(not is_closed(sock) for sock in held)
        print(f"{count} {what}: opened in {took:.1f} s, write + read + list in {min(longest):.3f} to {max(longest):.3f} s, "
              f"{left} of them open, {gateway.resident() >> 20} MiB", flush=True)
        for sock in held:
            sock.close()
    gateway.end()


if len(sys.argv) > 8:
    measure(int(sys.argv[8]), int(sys.argv[9]))
else:
    for test in (connections, addresses, files, requests, times, backlog, protocols):
        print(test.__name__, flush=True)
        test()
