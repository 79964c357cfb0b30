"""Requests that deceive, are malformed or exhaust resources: each is refused with S3's code, and the gateway continues.

usage: abuse.py ENDPOINT TLS_ADDRESS ACCESS_KEY SECRET_KEY FOLDER PID NACRE; exits with an assertion's text on failure."""

import base64
import binascii
import datetime
import hashlib
import hmac
import socket
import sys
import urllib.parse

import boto3

from gateway import Gateway, wait

ENDPOINT, TLS, ACCESS, SECRET, FOLDER, PID, NACRE = sys.argv[1:8]
CONF = f"{FOLDER}/data/ceph.conf"
LOG = f"{FOLDER}/abuse.log"
GATEWAY = Gateway(NACRE, CONF, f"--rgw_ops_log_file_path={LOG}")
HOST = f"127.0.0.1:{GATEWAY.port}"
EMPTY = hashlib.sha256(b"").hexdigest()


def mac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def now(offset=0):
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=offset)


class Request:
    """A request that can be modified before and after it is signed."""

    def __init__(self, method, path, query="", headers=None, body=b"", payload=None, at=0, signed=None,
                 service="s3"):
        self.method, self.path, self.query, self.body = method, path, query, body
        stamp = now(at).strftime("%Y%m%dT%H%M%SZ")
        payload = hashlib.sha256(body).hexdigest() if payload is None else payload
        self.headers = {"host": HOST, "x-amz-date": stamp, "x-amz-content-sha256": payload, **(headers or {})}
        names = sorted(signed or self.headers)
        day = stamp[:8]
        self.scope = f"{day}/us-east-1/{service}/aws4_request"
        pairs = sorted(urllib.parse.parse_qsl(query, keep_blank_values=True))
        quote = lambda text: urllib.parse.quote(text, safe="-_.~")
        canonical = "\n".join([
            method, urllib.parse.quote(urllib.parse.unquote_to_bytes(path), safe="/-_.~"),
            "&".join(f"{quote(name)}={quote(value)}" for name, value in pairs),
            *(f"{name}:{self.headers[name]}" for name in names), "", ";".join(names), payload])
        self.key = b"AWS4" + SECRET.encode()
        for part in (day, "us-east-1", service, "aws4_request"):
            self.key = mac(self.key, part)
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        self.stamp = stamp
        self.signature = mac(self.key, f"AWS4-HMAC-SHA256\n{stamp}\n{self.scope}\n{digest}").hex()
        self.headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={ACCESS}/{self.scope}, SignedHeaders={';'.join(names)}, "
            f"Signature={self.signature}")
        self.headers.setdefault("content-length", str(len(body)))

    def bytes(self):
        target = self.path + (f"?{self.query}" if self.query else "")
        head = f"{self.method} {target} HTTP/1.1\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in self.headers.items() if value is not None)
        return head.encode() + b"\r\n" + self.body

    def send(self):
        return send(self.bytes())


def presigned(method, path, at=0, expires=60, headers=None):
    stamp, names = now(at).strftime("%Y%m%dT%H%M%SZ"), ["host"] + sorted(headers or {})
    scope = f"{stamp[:8]}/us-east-1/s3/aws4_request"
    query = {"X-Amz-Algorithm": "AWS4-HMAC-SHA256", "X-Amz-Credential": f"{ACCESS}/{scope}", "X-Amz-Date": stamp,
             "X-Amz-Expires": str(expires), "X-Amz-SignedHeaders": ";".join(names)}
    text = urllib.parse.urlencode(sorted(query.items()), quote_via=urllib.parse.quote, safe="-_.~")
    values = {"host": HOST, **(headers or {})}
    canonical = "\n".join([method, path, text, *(f"{name}:{values[name]}" for name in names), "", ";".join(names),
                           "UNSIGNED-PAYLOAD"])
    key = b"AWS4" + SECRET.encode()
    for part in scope.split("/"):
        key = mac(key, part)
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return f"{path}?{text}&X-Amz-Signature=" + mac(key, f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}").hex()


def receive(sock, is_head=False):
    answer = b""
    try:
        while chunk := sock.recv(65536):
            answer += chunk
            head, end, body = answer.partition(b"\r\n\r\n")
            if end and is_head:
                break
            if end:
                lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                if lengths and len(body) >= int(lengths[0]):
                    break
                if b"\r\ntransfer-encoding: chunked" in head.lower() and body.endswith(b"0\r\n\r\n"):
                    break
                if head.startswith((b"HTTP/1.1 204", b"HTTP/1.1 304")):
                    break
    except OSError:
        pass
    return answer


def send(data, half_close=False):
    """Status and S3's code of the answer, or 0 without an answer."""
    with socket.create_connection(("127.0.0.1", GATEWAY.port)) as sock:
        sock.settimeout(60)
        try:
            sock.sendall(data)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        answer = receive(sock, data.startswith(b"HEAD "))
    status = int(answer.split(b" ")[1]) if answer.startswith(b"HTTP/1.") else 0
    text = answer.decode(errors="replace")
    return status, text.partition("<Code>")[2].partition("</Code>")[0]


def raw(method, target, headers, body=b""):
    head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers)
    return send(head.encode() + b"\r\n" + body)


def put(key, body=b"data", **args):
    return Request("PUT", f"/abuse/{key}", body=body, **args)


def is_there(key):
    return Request("HEAD", f"/abuse/{key}").send()[0] == 200


def begin():
    assert Request("PUT", "/abuse").send() == (200, "")
    assert put("k").send() == (200, "")


def smuggling():
    for head in (
            "GET /abuse/k HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
            "GET /abuse/k HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\nhello",
            "GET /abuse/k HTTP/1.1\r\nHost: x\r\nContent-Length: 5, 6\r\n\r\nhello",
            "GET /abuse/k HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\nhello",
            "PUT /abuse/k HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
            "PUT /abuse/k HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "GET /abuse/k HTTP/1.1\r\nHost: x\r\nX-Folded: a\r\n b\r\n\r\n",
            "GET /abuse/k HTTP/1.1\r\nHost : x\r\n\r\n",
            "GET /abuse/k HTTP/1.1\r\nHost: x\r\nX\0Y: a\r\n\r\n",
            "GET /abuse/k HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
            "GET /abuse/ k HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /abuse/k HTTP/9.9\r\nHost: x\r\n\r\n",
            "\x16\x03\x01 what is this?\r\n\r\n"):
        status = send(head.encode(), half_close=True)[0]
        assert status in (0, 400, 505), (head, status)
    # With two lengths, the chunks are used, and the data after them is another request: both are anonymous, and refused.
    both = (b"PUT /abuse/k HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            b"DELETE /abuse/k HTTP/1.1\r\nHost: x\r\n\r\n")
    assert send(both, half_close=True) == (403, "AccessDenied")
    assert is_there("k")
    # Pipelined requests: data within the body of the first is never the second.
    hidden = Request("DELETE", "/abuse/k").bytes()
    with socket.create_connection(("127.0.0.1", GATEWAY.port)) as sock:
        sock.settimeout(60)
        sock.sendall(put("carrier", body=hidden).bytes() + Request("HEAD", "/abuse/k").bytes())
        assert receive(sock).startswith(b"HTTP/1.1 200")
    assert is_there("k") and is_there("carrier")
    # Chunks with wrong sizes.
    for chunks in (b"zz\r\nabc\r\n0\r\n\r\n", b"-1\r\n\r\n", b"fffffffffffffffff\r\nabc\r\n", b"3\r\nabcd\r\n0\r\n\r\n",
                   b"3;" + b"x" * 100_000 + b"\r\nabc\r\n0\r\n\r\n"):
        bad = put("chunked", body=b"", payload="UNSIGNED-PAYLOAD")
        bad.headers.update({"content-length": None, "transfer-encoding": "chunked"})
        bad.body = chunks
        assert send(bad.bytes(), half_close=True)[0] in (0, 400, 411), chunks
    assert not is_there("chunked")


def names():
    """Keys are only names."""
    keys = ["../../etc/passwd", "a/../b", "./x", "..", "a//b", "/leading", "trailing/", "%2e%2e/literal", "a%00b", "nul\0byte",
            "line\r\nend", "\\\\back\\slash", "q?u=e&r#y", "<xml>&amp;\"'", "\u00fc\u4e16\u754c\U0001f600", "a+b c", "x" * 1024, "_shadow_x", "_", "__multipart_x"]
    for key in keys:
        path = "/abuse/" + urllib.parse.quote(key, safe="/")
        body = key.encode()
        answer = Request("PUT", path, body=body).send()
        assert answer == (200, ""), (key, answer)
    for key in keys:
        path = "/abuse/" + urllib.parse.quote(key, safe="/")
        with socket.create_connection(("127.0.0.1", GATEWAY.port)) as sock:
            sock.settimeout(60)
            sock.sendall(Request("GET", path).bytes())
            answer = receive(sock)
        assert answer.partition(b"\r\n\r\n")[2] == key.encode(), (key, answer)
    with socket.create_connection(("127.0.0.1", GATEWAY.port)) as sock:
        sock.settimeout(60)
        sock.sendall(Request("GET", "/abuse", "list-type=2&encoding-type=url").bytes())
        listed = receive(sock).decode()
    found = {urllib.parse.unquote_plus(part.partition("</Key>")[0]) for part in listed.split("<Key>")[1:]}
    assert found >= set(keys), set(keys) - found
    for key in keys:
        assert Request("DELETE", "/abuse/" + urllib.parse.quote(key, safe="/")).send()[0] == 204
    assert put("x" * 1025).send() == (400, "KeyTooLongError")
    assert Request("GET", "/abuse/%ff%fe").send()[0] == 400


def headers():
    # Unsigned headers that would have an effect.
    bad = put("h", signed=["host", "x-amz-date", "x-amz-content-sha256"])
    bad.headers["x-amz-acl"] = "public-read"
    assert bad.send() == (403, "AccessDenied")
    assert put("h", signed=["x-amz-date", "x-amz-content-sha256"]).send() == (403, "AccessDenied")
    # Two signatures, one of which is valid.
    good = put("h")
    doubled = good.bytes().replace(b"\r\nauthorization:", f"\r\nauthorization: {good.headers['authorization']}\r\nauthorization:".encode(), 1)
    assert send(doubled) == (400, "InvalidArgument")
    url = presigned("PUT", "/abuse/h")
    both = [("Host", HOST), ("Content-Length", "4"), ("x-amz-acl", "public-read"),
            ("Authorization", "AWS4-HMAC-SHA256 Credential=x, SignedHeaders=host;x-amz-acl, Signature=00")]
    assert raw("PUT", url, both, b"data") == (400, "InvalidArgument")
    loose = [("Host", HOST), ("Content-Length", "4"), ("x-amz-acl", "public-read")]
    assert raw("PUT", url, loose, b"data") == (403, "AccessDenied")
    hidden = url.replace("X-Amz-SignedHeaders", "X-Amz-Signed%48eaders")
    assert raw("PUT", hidden, loose, b"data") == (403, "AccessDenied")
    assert raw("PUT", url + "&X-Amz-SignedHeaders=host%3Bx-amz-acl", loose, b"data")[0] == 400
    # Limits of signatures of version 2.
    old = ("Authorization", f"AWS {ACCESS}:c2lnbmF0dXJl")
    assert raw("GET", "/abuse/k", [("Host", HOST), ("Date", "Sun, 22 Nov 2015 00:00:00 GMT"), old]) == (403, "RequestTimeTooSkewed")
    date = now().strftime("%a, %d %b %Y %H:%M:%S GMT")
    assert raw("GET", "/abuse/k", [("Host", HOST), ("Date", date), old]) == (403, "SignatureDoesNotMatch")
    assert raw("GET", "/abuse/k?retention", [("Host", HOST), ("Date", date), old]) == (400, "InvalidRequest")
    old = f"/abuse/k?AWSAccessKeyId={ACCESS}&Expires=9999999999&Signature=x"
    assert raw("GET", old, [("Host", HOST)]) == (403, "SignatureDoesNotMatch")
    assert raw("GET", old + "&legal-hold", [("Host", HOST)]) == (400, "InvalidRequest")
    assert raw("GET", old.replace("9999999999", "1"), [("Host", HOST)]) == (403, "AccessDenied")
    for odd in ("Basic YTpi", "AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 Credential=, SignedHeaders=host, Signature=", "\u00ff"):
        status, _ = raw("GET", "/abuse/k", [("Host", HOST), ("Authorization", odd)])
        assert status in (400, 403), (odd, status)
    assert not is_there("h")
    # The same without the modifications.
    assert raw("PUT", url, [("Host", HOST), ("Content-Length", "4")], b"data")[0] == 200
    assert Request("DELETE", "/abuse/h").send()[0] == 204


def unsigned():
    """CVE-2026-54330: nothing with an effect may be added to a signed request, whatever kind of signature it has."""
    assert put("secret", body=b"secret").send() == (200, "")
    additions = ({"x-amz-copy-source": "/abuse/secret"}, {"x-amz-acl": "public-read"}, {"x-amz-meta-a": "b"},
                 {"x-amz-object-lock-mode": "GOVERNANCE"}, {"x-amz-tagging": "a=b"}, {"X-AMZ-Website-Redirect-Location": "/x"},
                 {"x-amz-security-token": "t"}, {"x-amz-date": now().strftime("%Y%m%dT%H%M%SZ")}, {"x-amz-content-sha256": EMPTY})
    for added in additions:
        loose = [("Host", HOST), ("Content-Length", "4"), *added.items()]
        answer = raw("PUT", presigned("PUT", "/abuse/n"), loose, b"data")
        assert answer == (403, "AccessDenied"), (added, answer)
    for added in additions[:6]:
        names = ["host", "x-amz-date", "x-amz-content-sha256"]
        for kind in (None, "UNSIGNED-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"):
            bad = put("n", payload=kind, headers={"x-amz-decoded-content-length": "4"} if kind and kind.startswith("S") else None)
            bad.headers.update(added)
            assert bad.send() == (403, "AccessDenied"), (added, kind)
        for path, query, service, method in (("/admin/user", "uid=admin", "s3", "GET"), ("/", "", "iam", "POST"), ("/", "", "sts", "POST")):
            body = b"" if method == "GET" else b"Action=GetUser&Version=2010-05-08"
            form = {"content-type": "application/x-www-form-urlencoded"}
            bad = Request(method, path, query, form, body, signed=names, service=service)
            bad.headers.update(added)
            assert bad.send()[0] == 403, (added, path, service)
            # The host must be present, too.
            bad = Request(method, path, query, form, body, signed=names[1:], service=service)
            assert bad.send()[0] == 403, (path, service)
    url = presigned("PUT", "/abuse/n").replace("SignedHeaders=host", "SignedHeaders=x-amz-date")
    assert raw("PUT", url, [("Host", HOST), ("Content-Length", "4")], b"data") == (403, "AccessDenied")
    # A signed header that occurs twice, as text or as bytes that the signature does not cover.
    for more, code in ((b"x-amz-acl: public-read", "SignatureDoesNotMatch"), (b"x-amz-acl: \xff", "AccessDenied")):
        signed = put("n", headers={"x-amz-acl": "private"}).bytes()
        for doubled in (signed.replace(b"\r\n", b"\r\n" + more + b"\r\n", 1), signed.replace(b"\r\nauthorization", b"\r\n" + more + b"\r\nauthorization", 1)):
            answer = send(doubled)
            assert answer == (403, code), (more, answer)
    assert not is_there("n")
    # The digest of the body is part of every signature, but some clients do not list its header.
    bare = put("n", signed=["host", "x-amz-date"])
    assert bare.send() == (200, "")
    bare.body = b"atad"
    assert bare.send() == (400, "XAmzContentSHA256Mismatch")
    bare.headers["x-amz-content-sha256"] = hashlib.sha256(bare.body).hexdigest()
    assert bare.send() == (403, "SignatureDoesNotMatch")
    assert Request("DELETE", "/abuse/n").send()[0] == Request("DELETE", "/abuse/secret").send()[0] == 204


def signatures():
    wrong = put("s")
    last = wrong.signature[-1]
    wrong.headers["authorization"] = wrong.headers["authorization"][:-1] + ("0" if last != "0" else "1")
    assert wrong.send() == (403, "SignatureDoesNotMatch")
    for bend in (lambda r: setattr(r, "path", "/abuse/other"), lambda r: setattr(r, "query", "acl"),
                 lambda r: setattr(r, "method", "DELETE"), lambda r: r.headers.update({"host": "other.example"}),
                 lambda r: r.headers.update({"x-amz-date": now(1).strftime("%Y%m%dT%H%M%SZ")})):
        bent = put("s")
        bend(bent)
        assert bent.send() == (403, "SignatureDoesNotMatch"), vars(bent)
    stranger = put("s")
    stranger.headers["authorization"] = stranger.headers["authorization"].replace(ACCESS, "NOBODY")
    assert stranger.send() == (403, "InvalidAccessKeyId")
    # Replays.
    assert put("s", at=-16 * 60).send() == (403, "RequestTimeTooSkewed")
    assert put("s", at=16 * 60).send() == (403, "RequestTimeTooSkewed")
    assert put("s", at=-10 * 60).send() == (200, "")
    assert Request("DELETE", "/abuse/s").send()[0] == 204
    plain = [("Host", HOST), ("Content-Length", "4")]
    assert raw("PUT", presigned("PUT", "/abuse/s", at=-61, expires=60), plain, b"data") == (403, "AccessDenied")
    assert raw("PUT", presigned("PUT", "/abuse/s", at=20 * 60), plain, b"data")[0] == 403
    assert raw("PUT", presigned("PUT", "/abuse/s", expires=8 * 86400), plain, b"data") == (400, "AuthorizationQueryParametersError")
    url = presigned("GET", "/abuse/s")
    assert raw("PUT", url, plain, b"data") == (403, "SignatureDoesNotMatch")
    assert raw("PUT", presigned("PUT", "/abuse/s").replace("Expires=60", "Expires=6000"), plain, b"data") == (403, "SignatureDoesNotMatch")
    assert not is_there("s")


def bodies():
    # A body that differs from the signed one.
    other = put("b", body=b"signed")
    other.body = b"forged"
    assert other.send() == (400, "XAmzContentSHA256Mismatch"), other.send()
    large = put("b", body=b"s" * 3_000_000)
    large.body = b"s" * 2_999_999 + b"f"
    assert large.send() == (400, "XAmzContentSHA256Mismatch")
    # Shorter and longer than announced.
    short = put("b", body=b"0123456789")
    short.body = b"01234"
    assert send(short.bytes(), half_close=True)[0] in (0, 400)
    long = put("b", body=b"0123456789")
    long.headers["content-length"] = "5"
    assert long.send() == (400, "XAmzContentSHA256Mismatch")
    digest = put("b", headers={"content-md5": base64.b64encode(b"\0" * 16).decode()})
    assert digest.send() == (400, "BadDigest")
    sums = put("b", headers={"x-amz-checksum-crc32": "AAAAAA=="})
    assert sums.send() == (400, "BadDigest")
    assert not is_there("b")


def chunked(key, chunks, trailer=None, bend=None, decoded=None, kind=None, query=""):
    """A modified body of signed chunks."""
    data = b"".join(chunks)
    kind = kind or ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD" + ("-TRAILER" if trailer else ""))
    more = {"x-amz-decoded-content-length": str(len(data) if decoded is None else decoded), "content-encoding": "aws-chunked"}
    if trailer:
        more["x-amz-trailer"] = trailer[0]
    request = put(key, body=b"", payload=kind, headers=more, query=query)
    signature, body = request.signature, []
    for chunk in [*chunks, b""]:
        text = "\n".join(["AWS4-HMAC-SHA256-PAYLOAD", request.stamp, request.scope, signature, EMPTY,
                          hashlib.sha256(chunk).hexdigest()])
        signature = mac(request.key, text).hex()
        body.append([chunk, signature])
    if bend:
        bend(body)
    wire = b"".join(f"{len(chunk):x};chunk-signature={sig}\r\n".encode() + chunk + (b"\r\n" if chunk else b"") for chunk, sig in body)
    if trailer:
        name, value, forged = trailer
        text = "\n".join(["AWS4-HMAC-SHA256-TRAILER", request.stamp, request.scope, signature,
                          hashlib.sha256(f"{name}:{value}\n".encode()).hexdigest()])
        last = mac(request.key, text).hex()
        last = "0" * 64 if forged else last
        wire += f"{name}:{value}\r\nx-amz-trailer-signature:{last}\r\n".encode()
    wire += b"\r\n"
    request.body = wire
    request.headers["content-length"] = str(len(wire))
    return request.send()


def chunks():
    parts = [b"a" * 65536, b"b" * 65536, b"c" * 100]
    crc = base64.b64encode(binascii.crc32(b"".join(parts)).to_bytes(4, "big")).decode()
    assert chunked("c", parts) == (200, "")
    assert chunked("c", parts, ("x-amz-checksum-crc32", crc, False)) == (200, "")
    assert Request("DELETE", "/abuse/c").send()[0] == 204

    def forge(at, index, value):
        def bend(body):
            body[at][index] = value
        return bend

    for bend in (forge(1, 0, b"x" * 65536), forge(1, 1, "0" * 64), forge(0, 1, ""), lambda body: body.reverse(),
                 lambda body: body.pop(1), lambda body: body.insert(1, body[1])):
        status, code = chunked("c", parts, bend=bend)
        assert status in (400, 403) and code in ("SignatureDoesNotMatch", "IncompleteBody"), (status, code)
    assert chunked("c", parts, bend=forge(1, 0, b"x" * 65536)) == (403, "SignatureDoesNotMatch")
    assert chunked("c", parts, ("x-amz-checksum-crc32", crc, True)) == (403, "SignatureDoesNotMatch")
    assert chunked("c", parts, ("x-amz-checksum-crc32", "AAAAAA==", False)) == (400, "BadDigest")
    for decoded in (1, 131_171, 131_173, 1 << 40):
        status, _ = chunked("c", parts, decoded=decoded)
        assert status == 400, (decoded, status)
    assert not is_there("c")


def parts():
    """A part whose data does not have the announced length does not change the earlier part with its number."""
    s3 = boto3.client("s3", endpoint_url=f"http://{HOST}", region_name="us-east-1", aws_access_key_id=ACCESS, aws_secret_access_key=SECRET)
    upload = s3.create_multipart_upload(Bucket="abuse", Key="p")["UploadId"]
    query = f"partNumber=1&uploadId={urllib.parse.quote(upload)}"
    data = [b"d" * 65536, b"e" * 65536, b"f" * 100]
    assert chunked("p", data, query=query) == (200, "")

    def stored():
        return [(part["Size"], part["ETag"]) for part in s3.list_parts(Bucket="abuse", Key="p", UploadId=upload)["Parts"]]

    first = stored()
    assert first == [(131_172, f'"{hashlib.md5(b"".join(data)).hexdigest()}"')], first
    # Less than announced, more than announced, and a missing chunk.
    for bad in (dict(decoded=131_173), dict(decoded=131_171), dict(bend=lambda body: body.pop(1))):
        status, _ = chunked("p", [chunk.swapcase() for chunk in data], query=query, **bad)
        assert status in (400, 403), (bad, status)
        assert stored() == first, (bad, stored())
    completed = {"Parts": [{"PartNumber": 1, "ETag": first[0][1]}]}
    s3.complete_multipart_upload(Bucket="abuse", Key="p", UploadId=upload, MultipartUpload=completed)
    assert s3.get_object(Bucket="abuse", Key="p")["Body"].read() == b"".join(data)
    s3.delete_object(Bucket="abuse", Key="p")


def unread():
    """A client that is refused before its body was read receives the answer anyway, and the connection ends."""
    def answered(data):
        with socket.create_connection(("127.0.0.1", GATEWAY.port)) as sock:
            sock.settimeout(60)
            # All of it is sent before anything is received.
            sock.sendall(data)
            answer = receive(sock)
            ended = sock.recv(1) == b"" if b"\r\nconnection: close\r\n" in answer.lower() else None
        return answer.partition(b"\r\n")[0], ended

    stale = put("u", body=b"u" * 30_000_000, at=-3600)
    assert answered(stale.bytes()) == (b"HTTP/1.1 403 Forbidden", True)
    # A client that waits for 100 Continue does not get it, and does not send its body.
    stale.headers["expect"] = "100-continue"
    stale.body = b""
    assert answered(stale.bytes()) == (b"HTTP/1.1 403 Forbidden", True)
    # After a body that was read, the connection remains usable.
    assert answered(put("u", headers={"content-md5": "AAAAAAAAAAAAAAAAAAAAAA=="}).bytes()) == (b"HTTP/1.1 400 Bad Request", None)
    assert answered(Request("GET", "/abuse/u", at=-3600).bytes()) == (b"HTTP/1.1 403 Forbidden", None)
    assert not is_there("u")
    # For an empty body, clients such as botocore would misinterpret data after the final answer.
    empty = put("e", body=b"", headers={"expect": "100-continue"})
    assert answered(empty.bytes()) == (b"HTTP/1.1 200 OK", True)


def documents():
    def post(query, text, path="/abuse", method="POST"):
        md5 = base64.b64encode(hashlib.md5(text.encode()).digest()).decode()
        return Request(method, path, query, {"content-md5": md5}, text.encode()).send()

    laughs = '<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "ha">' + "".join(
        f'<!ENTITY {chr(98 + n)} "{("&" + chr(97 + n) + ";") * 10}">' for n in range(9)) + "]>"
    outside = '<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
    for document in (laughs, outside):
        text = document + "<Delete><Object><Key>&j;&a;</Key></Object></Delete>"
        assert post("delete", text) == (400, "MalformedXML"), post("delete", text)
        text = document + "<Tagging><TagSet><Tag><Key>a</Key><Value>&a;</Value></Tag></TagSet></Tagging>"
        assert post("tagging", text, method="PUT") == (400, "MalformedXML")
    # Documents are read completely, so their size is limited.
    text = "<Tagging><TagSet>" + " " * (4 << 20) + "</TagSet></Tagging>"
    assert post("tagging", text, method="PUT") == (400, "MaxMessageLengthExceeded")
    deep = "<Delete>" + "<Object>" * 100_000 + "</Object>" * 100_000 + "</Delete>"
    assert post("delete", deep) == (400, "MalformedXML")
    many = "<Delete>" + "".join(f"<Object><Key>{n}</Key></Object>" for n in range(10_001)) + "</Delete>"
    assert post("delete", many) == (400, "MalformedXML")
    for text in ("", "<", "<Delete>", "not xml", "<Delete></Object>", "\0", "<Delete><Object><Key>a</Key><Key>b</Key></Object></Delete>"):
        assert post("delete", text)[0] == 400, text
    for query, text in (("policy", "{" * 10_000), ("policy", "[" * 19_000), ("policy", '{"Statement": 1}'), ("cors", "<CORSConfiguration/>"),
                        ("acl", "<AccessControlPolicy><Owner>"), ("tagging", "<Tagging><TagSet>" + "<Tag/>" * 10_000 + "</TagSet></Tagging>")):
        status, _ = post(query, text, method="PUT")
        assert status == 400, (query, text[:50], status)
    assert is_there("k")


def memory():
    """Thousands of refusals leave no resources allocated."""
    stale = put("m", at=-3600).bytes()
    forged = put("m", body=b"s" * 100_000)
    forged.body = b"f" * 100_000
    forged = forged.bytes()
    form = (b"POST /abuse HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 50000\r\n\r\n--b\r\n"
            b"Content-Disposition: form-data; name=\"key\"\r\n\r\n" + b"k" * 49_000)
    torn = put("m", body=b"0" * 1_000_000).bytes()[:-500_000]

    def abuse(rounds):
        for _ in range(rounds):
            send(stale)
            send(forged)
            send(form, half_close=True)
            with socket.create_connection(("127.0.0.1", GATEWAY.port)) as sock:
                sock.sendall(torn)

    abuse(100)
    before = GATEWAY.resident()
    abuse(500)
    grown = GATEWAY.resident() - before
    print(f"resident: {before >> 20} MiB, grown by {grown >> 10} KiB over 2000 refused requests", flush=True)
    assert grown < 24 << 20, f"{before} bytes grew by {grown}"
    assert GATEWAY.resident() < 256 << 20
    assert is_there("k") and not is_there("m")


def end(slow):
    # Heads that never end have been dropped meanwhile.
    for sock in slow:
        sock.settimeout(90)
        try:
            assert not sock.recv(65536).startswith(b"HTTP/1.1 2")
        except ConnectionResetError:
            pass
    logged = open(LOG).read()
    for code in ("SignatureDoesNotMatch", "RequestTimeTooSkewed", "XAmzContentSHA256Mismatch", "AccessDenied", "MalformedXML",
                 "InvalidArgument", "InvalidAccessKeyId"):
        wait(f"{code} in the log", lambda: f" {code} " in open(LOG).read())
    assert SECRET not in logged
    said = GATEWAY.end()
    assert "panicked" not in said, said


begin()
SLOW = []
for n in range(300):
    SLOW.append(socket.create_connection(("127.0.0.1", GATEWAY.port)))
    SLOW[-1].sendall(b"GET /abuse/k HTTP/1.1\r\nX-Slow: " + b"a" * n)
for test in (smuggling, names, headers, unsigned, signatures, bodies, chunks, parts, unread, documents, memory):
    print(test.__name__, flush=True)
    test()
print("end", flush=True)
end(SLOW)
