"""The admin API as its clients use it.

usage: admin_api.py ENDPOINT ACCESS_KEY SECRET_KEY; the user is 'admin' with all capabilities for users, buckets, usage, metadata and
info. It owns a bucket 'bkt' with the object 'k' of 5 000 bytes."""

import base64
import email.utils
import hashlib
import hmac
import json
import sys
import urllib.error
import urllib.parse
import urllib.request

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

ENDPOINT, ACCESS, SECRET = sys.argv[1:4]


def send(request):
    try:
        with urllib.request.urlopen(request) as answer:
            body = answer.read()
            return answer.status, json.loads(body) if body else None
    except urllib.error.HTTPError as error:
        body = error.read()
        return error.code, json.loads(body) if body.startswith(b"{") else body


def call(method, path, keys=(ACCESS, SECRET), body=None, **params):
    """As go-ceph and Terraform's providers do: SigV4 for s3."""
    switch = [name for name, value in params.items() if value is None]
    pairs = {name.replace("_", "-"): value for name, value in params.items() if value is not None}
    query = "&".join(switch + ([urllib.parse.urlencode(pairs, quote_via=urllib.parse.quote)] if pairs else []))
    url = f"{ENDPOINT}/admin{path}" + (f"?{query}" if query else "")
    request = AWSRequest(method=method, url=url, data=json.dumps(body) if body else None)
    S3SigV4Auth(Credentials(*keys), "s3", "default").add_auth(request)
    return send(urllib.request.Request(url, method=method, headers=dict(request.headers), data=request.data and request.data.encode()))


def call_v2(method, path, query):
    """As the Python package rgwadmin does: signature version 2."""
    date = email.utils.formatdate(usegmt=True)
    text = f"{method}\n\n\n{date}\n/admin{path}"
    signature = base64.b64encode(hmac.new(SECRET.encode(), text.encode(), hashlib.sha1).digest()).decode()
    headers = {"Date": date, "Authorization": f"AWS {ACCESS}:{signature}"}
    return send(urllib.request.Request(f"{ENDPOINT}/admin{path}?{query}", method=method, headers=headers))


def ok(method, path, **params):
    status, answer = call(method, path, **params)
    assert status == 200, (method, path, params, status, answer)
    return answer


def refused(status, code, method, path, **params):
    found, answer = call(method, path, **params)
    assert (found, answer["Code"]) == (status, code), (method, path, params, found, answer)


def users():
    user = ok("PUT", "/user", uid="leseb", display_name="This is leseb", email="l@example.com", user_caps="users=read")
    assert (user["email"], user["caps"], len(user["keys"])) == ("l@example.com", [{"type": "users", "perm": "read"}], 1), user
    key = user["keys"][0]
    assert ok("GET", "/user", uid="leseb") == user
    assert ok("GET", "/user", access_key=key["access_key"])["user_id"] == "leseb"
    user = ok("POST", "/user", uid="leseb", email="l@b.c", max_buckets=-1)
    assert (user["email"], user["max_buckets"], user["display_name"]) == ("l@b.c", -1, "This is leseb"), user
    refused(409, "UserAlreadyExists", "PUT", "/user", uid="admin", display_name="Admin")
    refused(409, "KeyExists", "PUT", "/user", uid="thief", display_name="Thief", access_key=ACCESS, secret_key="x")
    refused(404, "NoSuchUser", "GET", "/user", uid="nonesuch")
    refused(400, "InvalidArgument", "GET", "/user")
    refused(400, "InvalidCapability", "PUT", "/user", uid="x", display_name="X", user_caps="users=all")
    assert ok("GET", "/metadata/user") == ["admin", "leseb"]
    page = ok("GET", "/metadata/user", max_entries=1)
    assert page == {"keys": ["admin"], "count": 1, "truncated": True, "marker": "admin"}, page
    assert ok("GET", "/user", list=None, max_entries=5, marker="admin")["keys"] == ["leseb"]
    assert ok("GET", "/metadata/user", key="leseb")["data"]["email"] == "l@b.c"
    keys = ok("PUT", "/user", key=None, uid="leseb", access_key="SECOND", secret_key="of leseb")
    assert {"user": "leseb", "access_key": "SECOND", "secret_key": "of leseb"}.items() <= keys[1].items(), keys
    ok("DELETE", "/user", key=None, access_key="SECOND")
    refused(403, "InvalidAccessKeyId", "DELETE", "/user", key=None, uid="leseb", access_key="SECOND")
    caps = ok("PUT", "/user", caps=None, uid="leseb", user_caps="usage=read, write;buckets=read")
    assert {"type": "usage", "perm": "*"} in caps and len(caps) == 3, caps
    caps = ok("DELETE", "/user", caps=None, uid="leseb", user_caps="usage=*;users=read")
    assert caps == [{"type": "buckets", "perm": "read"}], caps
    # Quotas, by parameters and by a body.
    ok("PUT", "/user", quota=None, uid="leseb", quota_type="user", max_objects=100, enabled="true")
    ok("PUT", "/user", quota=None, uid="leseb", quota_type="bucket", body={"enabled": True, "max_size_kb": 8})
    quota = ok("GET", "/user", quota=None, uid="leseb", quota_type="user")
    assert (quota["max_objects"], quota["enabled"], quota["max_size"]) == (100, True, -1), quota
    both = ok("GET", "/user", quota=None, uid="leseb")
    assert (both["bucket_quota"]["max_size"], both["user_quota"]) == (8192, quota), both
    assert ok("GET", "/user", uid="admin", stats="true")["stats"]["size"] == 5000
    # Each operation requires its own capability.
    own = (key["access_key"], key["secret_key"])
    assert ok("GET", "/bucket", keys=own) == ["bkt"]
    for method, path, params in (("GET", "/user", {"uid": "leseb"}), ("PUT", "/bucket", {"bucket": "bkt", "uid": "leseb"}),
                                 ("GET", "/usage", {}), ("GET", "/metadata", {}), ("GET", "/info", {}),
                                 ("DELETE", "/bucket", {"bucket": "bkt"}), ("GET", "/bucket", {"index": None, "bucket": "bkt"}),
                                 ("PUT", "/user", {"caps": None, "uid": "leseb", "user_caps": "users=*"}),
                                 ("PUT", "/user", {"key": None, "uid": "admin"}), ("GET", "/user", {"list": None}),
                                 ("PUT", "/user", {"quota": None, "uid": "leseb", "quota_type": "user", "enabled": "false"})):
        refused(403, "AccessDenied", method, path, keys=own, **params)
    ok("PUT", "/user", caps=None, uid="leseb", user_caps="user-info-without-keys=read")
    shown = ok("GET", "/user", keys=own, uid="admin")
    assert (shown["user_id"], shown["keys"]) == ("admin", []), shown
    ok("POST", "/user", uid="leseb", suspended="true")
    refused(403, "UserSuspended", "GET", "/bucket", keys=own)
    wrong = call("GET", "/user", keys=(ACCESS, "wrong"), uid="admin")
    assert wrong[0] == 403 and b"SignatureDoesNotMatch" in wrong[1], wrong
    status, answer = send(urllib.request.Request(f"{ENDPOINT}/admin/user?uid=admin"))
    assert (status, answer["Code"]) == (403, "AccessDenied"), answer
    ok("DELETE", "/user", uid="leseb", purge_data="true")
    refused(404, "NoSuchUser", "GET", "/user", uid="leseb")


def buckets():
    assert ok("GET", "/bucket", uid="admin") == ["bkt"]
    stats = ok("GET", "/bucket", bucket="bkt")
    assert (stats["owner"], stats["usage"]["rgw.main"]["size"]) == ("admin", 5000), stats
    assert [b["bucket"] for b in ok("GET", "/bucket", stats="true")] == ["bkt"]
    ok("PUT", "/bucket", quota=None, uid="admin", bucket="bkt", max_size_kb=100, enabled="true")
    assert ok("GET", "/bucket", bucket="bkt", stats="true")["bucket_quota"]["max_size"] == 102400
    policy = ok("GET", "/bucket", policy=None, bucket="bkt")
    assert policy["acl"]["acl_user_map"] == [{"user": "admin", "acl": 15}], policy
    assert ok("GET", "/bucket", policy=None, bucket="bkt", object="k")["owner"]["id"] == "admin"
    assert ok("GET", "/bucket", index=None, bucket="bkt", check_objects="true")["num_problems"] == 0
    ok("PUT", "/user", uid="next", display_name="Next")
    ok("PUT", "/bucket", bucket="bkt", uid="next")
    assert ok("GET", "/metadata/bucket", key="bkt")["data"]["owner"] == "next"
    ok("POST", "/bucket", bucket="bkt", uid="next")
    assert ok("GET", "/bucket", uid="next") == []
    ok("PUT", "/bucket", bucket="bkt", uid="admin")
    refused(409, "BucketNotEmpty", "DELETE", "/bucket", bucket="bkt")
    ok("DELETE", "/bucket", bucket="bkt", object="k")
    refused(404, "NoSuchObject", "DELETE", "/bucket", bucket="bkt", object="k")
    ok("DELETE", "/bucket", bucket="bkt", purge_objects="true")
    refused(404, "NoSuchBucket", "GET", "/bucket", bucket="bkt")
    refused(404, "NoSuchUser", "GET", "/bucket", uid="nonesuch")


def others():
    status, answer = call_v2("GET", "/user", "uid=admin&format=json")
    assert (status, answer["user_id"]) == (200, "admin"), answer
    assert len(ok("GET", "/info")["info"]["storage_backends"][0]["cluster_id"]) == 36
    assert "user" in ok("GET", "/metadata")
    assert ok("GET", "/usage", uid="admin") == {"entries": [], "summary": []}
    refused(400, "InvalidDate", "GET", "/usage", start="yesterday")
    refused(400, "InvalidArgument", "DELETE", "/usage")
    ok("DELETE", "/usage", remove_all="true")
    refused(404, "NoSuchKey", "GET", "/nonesuch")
    refused(405, "MethodNotAllowed", "POST", "/usage")
    refused(501, "NotImplemented", "PUT", "/user", subuser="a:b", uid="admin")


for test in (users, buckets, others):
    test()
