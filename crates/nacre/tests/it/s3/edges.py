"""A gateway over TLS and by buckets' host names, as boto3 sees it.

usage: edges.py ENDPOINT TLS_ADDRESS ACCESS_KEY SECRET_KEY FOLDER PID; exits with an assertion's text on failure."""

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError, SSLError

ENDPOINT, TLS, ACCESS, SECRET, FOLDER, PID = sys.argv[1:7]
CA = f"{FOLDER}/ca.crt"
PORT, TLS_PORT = (int(address.rsplit(":", 1)[1]) for address in (ENDPOINT, TLS))

# Every name below localhost is this machine, whatever the system's resolver returns.
RESOLVE = socket.getaddrinfo
socket.getaddrinfo = lambda host, *args, **kwargs: RESOLVE(
    "127.0.0.1" if host.endswith("localhost") else host, *args, **kwargs)


def client(endpoint, style="path", verify=CA, **config):
    return boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET, region_name="us-east-1",
        verify=verify, config=Config(s3={"addressing_style": style}, retries={"max_attempts": 1}, **config))


def refused(code, call, **args):
    try:
        call(**args)
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, (code, error.response)
        return
    raise AssertionError(f"{call} was not refused ({code})")


def fetch(url, method="GET", **headers):
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        answer = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        answer = error
    return answer.status, dict((name.lower(), value) for name, value in answer.headers.items()), answer.read()


def served():
    """The certificate that a new connection receives."""
    return ssl.get_server_certificate(("127.0.0.1", TLS_PORT))


def told(text):
    return open(f"{FOLDER}/serve.err").read().count(text)


def wait(what, holds):
    deadline = time.monotonic() + 15
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


def tls():
    plain, s3 = client(ENDPOINT), client(f"https://{TLS}")
    s3.create_bucket(Bucket="tls")
    data = os.urandom(6_000_000)
    s3.put_object(Bucket="tls", Key="k", Body=data)
    assert s3.get_object(Bucket="tls", Key="k")["Body"].read() == data
    assert plain.get_object(Bucket="tls", Key="k")["Body"].read() == data
    url = s3.generate_presigned_url("get_object", Params={"Bucket": "tls", "Key": "k"})
    context = ssl.create_default_context(cafile=CA)
    assert urllib.request.urlopen(url, context=context).read() == data
    # An untrusted CA, and no TLS at all.
    try:
        client(f"https://{TLS}", verify=True).list_buckets()
        raise AssertionError("an unknown CA was trusted")
    except SSLError:
        pass
    try:
        urllib.request.urlopen(f"http://{TLS}/", timeout=30)
        raise AssertionError("plain HTTP was answered on the TLS port")
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError):
        pass
    # The condition of policies on it.
    policy = {"Version": "2012-10-17", "Statement": [
        {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::tls/*",
         "Condition": {"Bool": {"aws:SecureTransport": "false"}}}]}
    plain.put_bucket_policy(Bucket="tls", Policy=json.dumps(policy))
    refused("AccessDenied", plain.get_object, Bucket="tls", Key="k")
    assert s3.get_object(Bucket="tls", Key="k")["ContentLength"] == len(data)


def reload():
    def put(name):
        # As tools renew certificates: complete files replace the old ones.
        for kind in ("crt", "key"):
            shutil.copy(f"{FOLDER}/{name}.{kind}", f"{FOLDER}/new")
            os.rename(f"{FOLDER}/new", f"{FOLDER}/tls.{kind}")

    def certificate(name):
        return open(f"{FOLDER}/{name}.crt").read()

    assert served() == certificate("first")
    put("second")
    os.kill(int(PID), signal.SIGHUP)
    wait("a new certificate after SIGHUP", lambda: served() == certificate("second"))
    # Invalid ones: no certificate, and one that does not match the key.
    stays = "the old one stays"
    for text in ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "", certificate("third")):
        before = told(stays)
        open(f"{FOLDER}/tls.crt", "w").write(text)
        os.kill(int(PID), signal.SIGHUP)
        wait("a bad certificate is told of", lambda: told(stays) > before)
        assert served() == certificate("second")
    # Without a signal.
    put("third")
    wait("a new certificate by itself", lambda: served() == certificate("third"))
    client(f"https://{TLS}").list_buckets()


def hosts():
    for endpoint in (f"http://s3.localhost:{PORT}", f"https://s3.localhost:{TLS_PORT}"):
        s3 = client(endpoint, "virtual")
        s3.create_bucket(Bucket="by-host")
        s3.put_object(Bucket="by-host", Key="a/b c/ü", Body=b"data")
        s3.put_object(Bucket="by-host", Key="by-host", Body=b"named as its bucket")
        assert s3.get_object(Bucket="by-host", Key="a/b c/ü")["Body"].read() == b"data"
        listed = [entry["Key"] for entry in s3.list_objects_v2(Bucket="by-host")["Contents"]]
        assert listed == ["a/b c/ü", "by-host"], listed
        assert "by-host" in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
        upload = s3.create_multipart_upload(Bucket="by-host", Key="parts")["UploadId"]
        part = s3.upload_part(Bucket="by-host", Key="parts", UploadId=upload, PartNumber=1, Body=b"part")
        s3.complete_multipart_upload(Bucket="by-host", Key="parts", UploadId=upload, MultipartUpload={
            "Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
        s3.copy_object(Bucket="by-host", Key="copy", CopySource={"Bucket": "by-host", "Key": "parts"})
        # The same in the path, with the same host and with another one.
        for other in (client(endpoint), client(ENDPOINT)):
            assert other.get_object(Bucket="by-host", Key="copy")["Body"].read() == b"part"
        if endpoint.startswith("http:"):
            s3 = client(endpoint, "virtual", signature_version="s3v4")
            url = s3.generate_presigned_url("get_object", Params={"Bucket": "by-host", "Key": "copy"})
            assert url.startswith(f"http://by-host.s3.localhost:{PORT}/copy?"), url
            assert fetch(url)[::2] == (200, b"part")
            # A signature for one bucket's host is not valid for another one.
            status, _, body = fetch(url.replace("by-host.s3", "tls.s3"))
            assert status == 403 and b"SignatureDoesNotMatch" in body, body
            status, _, body = fetch(url, Host="s3.localhost")
            assert status == 403, body
        # A path that is an address of the admin API elsewhere is a key here.
        s3.put_object(Bucket="by-host", Key="admin/user", Body=b"key")
        assert s3.get_object(Bucket="by-host", Key="admin/user")["Body"].read() == b"key"
        s3.delete_objects(Bucket="by-host", Delete={"Objects": [
            {"Key": key} for key in ("a/b c/ü", "by-host", "parts", "copy", "admin/user")]})
        s3.delete_bucket(Bucket="by-host")
    # Browsers: the rules are those of the host's bucket.
    s3 = client(f"http://s3.localhost:{PORT}", "virtual")
    s3.create_bucket(Bucket="browsers", ACL="public-read")
    s3.put_object(Bucket="browsers", Key="k", Body=b"x", ACL="public-read")
    s3.put_bucket_cors(Bucket="browsers", CORSConfiguration={"CORSRules": [
        {"AllowedOrigins": ["https://app.example"], "AllowedMethods": ["GET"]}]})
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "GET"}
    for host in ("browsers.s3.localhost", "browsers.S3.Example.com:80"):
        status, headers, _ = fetch(f"{ENDPOINT}/k", "OPTIONS", Host=host, **asked)
        assert status == 200 and headers["access-control-allow-origin"] == "https://app.example", (host, headers)
        status, headers, body = fetch(f"{ENDPOINT}/k", Host=host, Origin="https://app.example")
        assert (status, body) == (200, b"x") and headers["access-control-allow-origin"] == "https://app.example", headers
    status, headers, body = fetch(f"{ENDPOINT}/browsers/k", Host="elsewhere.example")
    assert (status, body) == (200, b"x"), body
    assert fetch(f"{ENDPOINT}/k", "OPTIONS", Host="none.s3.localhost", **asked)[0] == 403


class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args):
        return None


def seek(url, method="GET", data=None, **headers):
    """Like fetch, but does not follow redirects."""
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        answer = urllib.request.build_opener(Stay).open(request, timeout=30)
    except urllib.error.HTTPError as error:
        answer = error
    return answer.status, dict((name.lower(), value) for name, value in answer.headers.items()), answer.read()


def websites():
    s3 = client(ENDPOINT)
    s3.create_bucket(Bucket="site")

    def see(path, method="GET", host="site.web.localhost", **headers):
        return seek(f"{ENDPOINT}{path}", method, Host=host, **headers)

    refused("NoSuchWebsiteConfiguration", s3.get_bucket_website, Bucket="site")
    status, headers, body = see("/")
    assert status == 404 and b"NoSuchWebsiteConfiguration" in body and headers["content-type"].startswith("text/html")
    status, _, body = see("/", host="none.web.localhost")
    assert status == 404 and b"NoSuchBucket" in body
    for wrong in ({"IndexDocument": {"Suffix": "a/b"}}, {"ErrorDocument": {"Key": "e"}},
                  {"RedirectAllRequestsTo": {"HostName": "a b"}},
                  {"IndexDocument": {"Suffix": "i"}, "RoutingRules": [{"Redirect": {"HttpRedirectCode": "200"}}]}):
        refused("InvalidRequest", s3.put_bucket_website, Bucket="site", WebsiteConfiguration=wrong)
    website = {
        "IndexDocument": {"Suffix": "index.html"}, "ErrorDocument": {"Key": "error.html"},
        "RoutingRules": [
            {"Condition": {"KeyPrefixEquals": "old/"}, "Redirect": {"ReplaceKeyPrefixWith": "new/"}},
            {"Condition": {"KeyPrefixEquals": "gone/", "HttpErrorCodeReturnedEquals": "404"},
             "Redirect": {"HostName": "archive.example", "Protocol": "https", "HttpRedirectCode": "307"}}]}
    s3.put_bucket_website(Bucket="site", WebsiteConfiguration=website)
    got = s3.get_bucket_website(Bucket="site")
    assert {name: got[name] for name in website} == website, got

    def put(key, body, **args):
        s3.put_object(Bucket="site", Key=key, Body=body, ContentType="text/html", **args)

    public = {"Version": "2012-10-17", "Statement": [
        {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::site/*"},
        {"Effect": "Allow", "Principal": "*", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::site"},
        {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::site/secret*"}]}
    s3.put_bucket_policy(Bucket="site", Policy=json.dumps(public))
    put("index.html", b"home")
    put("docs/index.html", b"docs")
    put("a b/\u00fc.html", b"named")
    put("secret.html", b"secret")
    put("moved", b"", WebsiteRedirectLocation="/docs/")
    status, headers, body = see("/")
    assert (status, body, headers["content-type"]) == (200, b"home", "text/html"), (status, body)
    assert see("/", "HEAD")[::2] == (200, b"")
    assert see("/docs/")[2] == b"docs" and see("/docs/index.html")[2] == b"docs"
    assert see("/docs?x=1&acl")[0] == 302 and see("/docs")[1]["location"] == "/docs/"
    assert see("/a%20b/%C3%BC.html")[2] == b"named"
    assert see("/docs/", Range="bytes=1-2")[::2] == (206, b"oc")
    etag = see("/")[1]["etag"]
    assert see("/", **{"If-None-Match": etag})[0] == 304
    assert see("/moved")[:2][0] == 301 and see("/moved")[1]["location"] == "/docs/"
    # Errors that users can read: first the gateway's, then the site's own.
    status, _, body = see("/none%3Cscript%3E")
    assert status == 404 and b"NoSuchKey" in body and b"<script>" not in body, body
    put("error.html", b"our error")
    assert see("/none")[::2] == (404, b"our error")
    assert see("/secret.html")[::2] == (403, b"our error")
    assert see("/none", "HEAD")[::2] == (404, b"")
    assert see("/", "POST")[0] == 405 and see("/", "DELETE")[0] == 405
    # Rules.
    assert see("/old/a")[0] == 301 and see("/old/a")[1]["location"] == "/new/a"
    assert see("/gone/a%20b")[0] == 307 and see("/gone/a%20b")[1]["location"] == "https://archive.example/gone/a%20b"
    put("gone/there", b"there")
    assert see("/gone/there")[2] == b"there"
    s3.put_bucket_website(Bucket="site", WebsiteConfiguration={
        "RedirectAllRequestsTo": {"HostName": "elsewhere.example"}})
    assert see("/a/b")[0] == 301 and see("/a/b")[1]["location"] == "http://elsewhere.example/a/b"
    s3.delete_bucket_website(Bucket="site")
    assert see("/")[0] == 404
    # The bucket's S3 endpoint is unchanged.
    assert fetch(f"{ENDPOINT}/site/index.html")[2] == b"home"


def forms():
    s3 = client(ENDPOINT, signature_version="s3v4")
    s3.create_bucket(Bucket="forms")

    def send(url, fields, file=b"file's data", filename="photo.jpg", tail=b"", **headers):
        boundary = "----boundary7MA4YWxkTrZu0gW"
        body = b""
        for name, value in fields.items():
            body += (f"--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").encode()
        if file is not None:
            body += (f"--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{filename}\"\r\n"
                     "Content-Type: image/jpeg\r\n\r\n").encode() + file + b"\r\n" + tail
        body += f"--{boundary}--\r\n".encode()
        return seek(url, "POST", body, **{"Content-Type": f"multipart/form-data; boundary={boundary}"}, **headers)

    def form(key, fields=None, conditions=None, expires=3600):
        post = s3.generate_presigned_post("forms", key, Fields=fields, Conditions=conditions, ExpiresIn=expires)
        return post["url"], post["fields"]

    def code(answer):
        status, _, body = answer
        text = body.decode()
        return status, text[text.find("<Code>") + 6:text.find("</Code>")] if "<Code>" in text else ""

    url, fields = form("plain")
    status, headers, body = send(url, fields)
    assert (status, body) == (204, b"") and headers["etag"] and headers["location"].endswith("/forms/plain"), headers
    assert s3.get_object(Bucket="forms", Key="plain")["Body"].read() == b"file's data"
    # As boto3 signs it by default: with version 2.
    old = client(ENDPOINT, signature_version="s3").generate_presigned_post("forms", "plain")
    assert "signature" in old["fields"] and send(old["url"], old["fields"], b"other data")[0] == 204
    assert s3.get_object(Bucket="forms", Key="plain")["Body"].read() == b"other data"
    assert code(send(old["url"], dict(old["fields"], key="other"))) == (403, "AccessDenied")
    assert code(send(old["url"], dict(old["fields"], signature="AAAA"))) == (403, "SignatureDoesNotMatch")
    # The metadata of the object from the fields.
    said = {"Content-Type": "image/jpeg", "x-amz-meta-colour": "green", "success_action_status": "201",
            "acl": "public-read", "Cache-Control": "max-age=9",
            "tagging": "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"}
    url, fields = form("up/${filename}", said, [{name: value} for name, value in said.items()])
    status, headers, body = send(url, fields, filename="C:\\fakepath\\my photo.jpg", **{"x-amz-meta-evil": "1"})
    assert status == 201 and b"<Key>up/my photo.jpg</Key>" in body and b"<Bucket>forms</Bucket>" in body, (status, body)
    assert headers["location"] == f"{ENDPOINT}/forms/up/my%20photo.jpg", headers
    head = s3.head_object(Bucket="forms", Key="up/my photo.jpg")
    assert (head["ContentType"], head["Metadata"], head["CacheControl"]) == (
        "image/jpeg", {"colour": "green"}, "max-age=9"), head
    assert s3.get_object_tagging(Bucket="forms", Key="up/my photo.jpg")["TagSet"] == [{"Key": "a", "Value": "b"}]
    assert fetch(f"{ENDPOINT}/forms/up/my%20photo.jpg")[2] == b"file's data"
    sealed = {"x-amz-server-side-encryption": "AES256"}
    url, fields = form("plain", sealed, [sealed])
    assert send(url, fields)[1]["x-amz-server-side-encryption"] == "AES256"
    assert s3.head_object(Bucket="forms", Key="plain")["ServerSideEncryption"] == "AES256"
    to = {"success_action_redirect": "https://app.example/done?x=1"}
    url, fields = form("sent on", to, [to])
    status, headers, _ = send(url, fields)
    assert status == 303 and headers["location"].startswith("https://app.example/done?x=1&bucket=forms&key=sent%20on&etag="), headers
    url, fields = form("ok", {"success_action_status": "200"}, [{"success_action_status": "200"}])
    assert send(url, fields)[0] == 200
    # A large file with line ends and text like the boundary in it, followed by fields that are not read.
    data = b"\r\n------boundary" + os.urandom(9_000_000) + b"\r\n--"
    url, fields = form("large", None, [["content-length-range", 1, 10_000_000]])
    tail = b"------boundary7MA4YWxkTrZu0gW\r\nContent-Disposition: form-data; name=\"x-amz-meta-late\"\r\n\r\n1\r\n"
    assert send(url, fields, data, tail=tail)[0] == 204
    got = s3.get_object(Bucket="forms", Key="large")
    assert got["Body"].read() == data and got["Metadata"] == {}
    # Refusals; nothing of them is stored.
    url, fields = form("range", None, [["content-length-range", 5, 10]])
    assert code(send(url, fields, b"x" * 11)) == (400, "EntityTooLarge")
    assert code(send(url, fields, b"x" * 4)) == (400, "EntityTooSmall")
    url, fields = form("pre/x", None, [["starts-with", "$key", "pre/"]])
    assert send(url, dict(fields, key="pre/y"))[0] == 403, "boto3 demands its own key too"
    url, fields = form("late", expires=-1)
    assert code(send(url, fields)) == (403, "AccessDenied")
    url, fields = form("bad")
    assert code(send(url, dict(fields, key="other"))) == (403, "AccessDenied")
    assert code(send(url, dict(fields, **{"x-amz-meta-extra": "1"}))) == (403, "AccessDenied")
    assert send(url, dict(fields, **{"x-ignore-this": "1"}))[0] == 204
    signature = fields["x-amz-signature"]
    wrong = signature[:-1] + ("0" if signature[-1] != "0" else "1")
    assert code(send(url, dict(fields, **{"x-amz-signature": wrong}))) == (403, "SignatureDoesNotMatch")
    credential = fields["x-amz-credential"].replace(ACCESS, "NOBODY")
    assert code(send(url, dict(fields, **{"x-amz-credential": credential}))) == (403, "InvalidAccessKeyId")
    assert code(send(url, {name: value for name, value in fields.items() if name != "policy"})) == (400, "InvalidArgument")
    assert code(send(url, fields, None)) == (400, "InvalidArgument")
    assert code(send(url, {name: value for name, value in fields.items() if name != "key"})) == (400, "InvalidArgument")
    assert code(send(url, {"key": "x", "x-amz-object-lock-mode": "GOVERNANCE"})) == (501, "NotImplemented")
    assert code(send(url, {"key": "unsigned"})) == (403, "AccessDenied")
    assert code(send(url, dict(fields, policy="x" * 70_000)))[1] == "MaxPostPreDataLengthExceededError"
    assert code(send(f"{ENDPOINT}/none", fields)) == (404, "NoSuchBucket")
    assert code(send(f"{ENDPOINT}/forms/key", fields)) == (405, "MethodNotAllowed")
    # Policies of the bucket apply to the key in the form.
    deny = {"Version": "2012-10-17", "Statement": [
        {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::forms/private/*"},
        {"Effect": "Allow", "Principal": "*", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::forms/inbox/*"}]}
    s3.put_bucket_policy(Bucket="forms", Policy=json.dumps(deny))
    url, fields = form("private/x")
    assert code(send(url, fields)) == (403, "AccessDenied")
    assert send(url, {"key": "inbox/anybody"})[0] == 204
    assert code(send(url, {"key": "elsewhere"})) == (403, "AccessDenied")
    url, fields = form("by host")
    assert send(f"http://forms.s3.localhost:{PORT}/", fields)[0] == 204
    keys = [entry["Key"] for entry in s3.list_objects_v2(Bucket="forms")["Contents"]]
    assert keys == ["bad", "by host", "inbox/anybody", "large", "ok", "plain", "sent on", "up/my photo.jpg"], keys


for test in (tls, reload, hosts, websites, forms):
    print(test.__name__, flush=True)
    test()
