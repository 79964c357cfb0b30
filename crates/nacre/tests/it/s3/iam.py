"""IAM and STS as boto3 uses them.

usage: iam.py ENDPOINT ACCESS_KEY SECRET_KEY OTHERS_ACCESS_KEY OTHERS_SECRET_KEY; the first user is 'admin' with the capabilities
users, user-policy and roles, the other one is 'other' with none."""

import base64
import datetime
import json
import sys
import urllib.error
import urllib.parse
import urllib.request

import boto3
from botocore.client import Config
from botocore.exceptions import ClientError

ENDPOINT, ACCESS, SECRET = sys.argv[1:4]
OTHER = tuple(sys.argv[4:6])


def client(service, access=ACCESS, secret=SECRET, token=None):
    return boto3.client(
        service, endpoint_url=ENDPOINT, aws_access_key_id=access, aws_secret_access_key=secret, aws_session_token=token,
        region_name="us-east-1", config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1},
                                       signature_version="s3v4" if service == "s3" else None))


IAM, STS, S3 = client("iam"), client("sts"), client("s3")
OTHER_IAM, OTHER_STS, OTHER_S3 = (client(service, *OTHER) for service in ("iam", "sts", "s3"))


def refused(code, call, **args):
    try:
        call(**args)
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, (code, error.response)
        return error.response
    raise AssertionError(f"{call} was not refused ({code})")


def policy(*statements):
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def allow(action, resource, effect="Allow", **more):
    return dict(Effect=effect, Action=action, Resource=resource, **more)


def with_session(given, service="s3"):
    credentials = given["Credentials"]
    return client(service, credentials["AccessKeyId"], credentials["SecretAccessKey"], credentials["SessionToken"])


def users():
    user = IAM.create_user(UserName="made")["User"]
    assert (user["UserName"], user["Arn"]) == ("made", "arn:aws:iam:::user/made"), user
    refused("EntityAlreadyExists", IAM.create_user, UserName="made")
    key = IAM.create_access_key(UserName="made")["AccessKey"]
    assert [k["AccessKeyId"] for k in IAM.list_access_keys(UserName="made")["AccessKeyMetadata"]] == [key["AccessKeyId"]]
    own = client("s3", key["AccessKeyId"], key["SecretAccessKey"])
    own.create_bucket(Bucket="of-made")
    assert client("iam", key["AccessKeyId"], key["SecretAccessKey"]).get_user()["User"]["UserName"] == "made"
    refused("DeleteConflict", IAM.delete_user, UserName="made")
    IAM.delete_access_key(UserName="made", AccessKeyId=key["AccessKeyId"])
    refused("InvalidAccessKeyId", own.list_buckets)
    refused("NoSuchEntity", IAM.delete_access_key, UserName="made", AccessKeyId=key["AccessKeyId"])
    refused("DeleteConflict", IAM.delete_user, UserName="made")
    assert "made" in [u["UserName"] for u in IAM.list_users()["Users"]]
    refused("NoSuchEntity", IAM.get_user, UserName="nonesuch")
    # Without capabilities all calls are refused.
    for call, args in ((OTHER_IAM.create_user, {"UserName": "x"}), (OTHER_IAM.list_users, {}),
                       (OTHER_IAM.create_access_key, {"UserName": "admin"}), (OTHER_IAM.create_access_key, {}),
                       (OTHER_IAM.put_user_policy, {"UserName": "other", "PolicyName": "p", "PolicyDocument": policy(allow("*", "*"))}),
                       (OTHER_IAM.get_user, {"UserName": "admin"}), (OTHER_IAM.list_roles, {}),
                       (OTHER_IAM.create_role, {"RoleName": "r", "AssumeRolePolicyDocument": policy(
                           {"Effect": "Allow", "Principal": "*", "Action": "sts:AssumeRole"})})):
        refused("AccessDenied", call, **args)
    refused("InvalidClientTokenId", client("iam", "NOBODY", "x").list_users)
    refused("SignatureDoesNotMatch", client("iam", ACCESS, "wrong").list_users)
    refused("InvalidAction", IAM.list_server_certificates)
    assert STS.get_caller_identity()["Arn"] == "arn:aws:iam:::user/admin"


def user_policies():
    S3.create_bucket(Bucket="judged")
    for key in ("a/1", "b/1"):
        S3.put_object(Bucket="judged", Key=key, Body=key.encode())
    refused("AccessDenied", OTHER_S3.get_object, Bucket="judged", Key="a/1")
    document = policy(allow("s3:GetObject", "arn:aws:s3:::judged/*"), allow("s3:*", "arn:aws:s3:::judged/b/*", "Deny"),
                      allow("s3:CreateBucket", "arn:aws:s3:::forbidden*", "Deny"))
    IAM.put_user_policy(UserName="other", PolicyName="reads", PolicyDocument=document)
    assert IAM.get_user_policy(UserName="other", PolicyName="reads")["PolicyDocument"] == json.loads(document)
    assert IAM.list_user_policies(UserName="other")["PolicyNames"] == ["reads"]
    assert OTHER_S3.get_object(Bucket="judged", Key="a/1")["Body"].read() == b"a/1"
    refused("AccessDenied", OTHER_S3.get_object, Bucket="judged", Key="b/1")
    refused("AccessDenied", OTHER_S3.put_object, Bucket="judged", Key="a/2", Body=b"")
    refused("AccessDenied", OTHER_S3.create_bucket, Bucket="forbidden-one")
    # Neither the ACL of its own bucket nor a bucket's policy restores what is denied to a user.
    S3.put_bucket_policy(Bucket="judged", Policy=policy(
        {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam:::user/other"}, "Action": "s3:*", "Resource": "arn:aws:s3:::judged/*"}))
    refused("AccessDenied", OTHER_S3.get_object, Bucket="judged", Key="b/1")
    OTHER_S3.put_object(Bucket="judged", Key="a/2", Body=b"")
    S3.delete_bucket_policy(Bucket="judged")
    OTHER_S3.create_bucket(Bucket="own")
    IAM.put_user_policy(UserName="other", PolicyName="no", PolicyDocument=policy(allow("s3:*", "arn:aws:s3:::own*", "Deny")))
    refused("AccessDenied", OTHER_S3.list_objects_v2, Bucket="own")
    refused("AccessDenied", OTHER_S3.delete_bucket_policy, Bucket="own")
    IAM.delete_user_policy(UserName="other", PolicyName="no")
    OTHER_S3.list_objects_v2(Bucket="own")
    # A policy allows an action of IAM too.
    IAM.put_user_policy(UserName="other", PolicyName="iam", PolicyDocument=policy(allow("iam:ListUserPolicies", "arn:aws:iam:::user/other")))
    assert OTHER_IAM.list_user_policies(UserName="other")["PolicyNames"] == ["iam", "reads"]
    refused("AccessDenied", OTHER_IAM.list_user_policies, UserName="admin")
    for wrong in ("{", policy(allow("s3", "*")), policy(allow("s3:*", "*", Principal="*")),
                  policy(allow("s3:*", "*", Condition={"StringEquals": {"ec2:Region": "x"}}))):
        refused("MalformedPolicyDocument", IAM.put_user_policy, UserName="other", PolicyName="w", PolicyDocument=wrong)
    for name in ("iam", "reads"):
        IAM.delete_user_policy(UserName="other", PolicyName=name)
    refused("NoSuchEntity", IAM.get_user_policy, UserName="other", PolicyName="reads")
    refused("AccessDenied", OTHER_S3.get_object, Bucket="judged", Key="a/1")


def roles():
    trust = policy({"Effect": "Allow", "Principal": {"AWS": ["arn:aws:iam:::user/other"]}, "Action": ["sts:AssumeRole"]})
    role = IAM.create_role(RoleName="reader", Path="/team/", AssumeRolePolicyDocument=trust, Description="reads")["Role"]
    arn = role["Arn"]
    assert (arn, role["AssumeRolePolicyDocument"]) == ("arn:aws:iam:::role/team/reader", json.loads(trust)), role
    refused("EntityAlreadyExists", IAM.create_role, RoleName="reader", AssumeRolePolicyDocument=trust)
    refused("MalformedPolicyDocument", IAM.create_role, RoleName="w", AssumeRolePolicyDocument=policy(allow("sts:AssumeRole", "*")))
    assert [r["RoleName"] for r in IAM.list_roles(PathPrefix="/team/")["Roles"]] == ["reader"]
    assert IAM.list_roles(PathPrefix="/other/")["Roles"] == []
    IAM.put_role_policy(RoleName="reader", PolicyName="judged", PolicyDocument=policy(
        allow(["s3:GetObject", "s3:PutObject"], "arn:aws:s3:::judged/*"), allow("s3:ListBucket", "arn:aws:s3:::judged")))
    assert IAM.list_role_policies(RoleName="reader")["PolicyNames"] == ["judged"]
    assert IAM.get_role_policy(RoleName="reader", PolicyName="judged")["PolicyDocument"]["Statement"][0]["Effect"] == "Allow"
    assert IAM.list_attached_role_policies(RoleName="reader")["AttachedPolicies"] == []

    # Only trusted users can assume it, whatever their other rights.
    refused("AccessDenied", STS.assume_role, RoleArn=arn, RoleSessionName="s1")
    refused("AccessDenied", OTHER_STS.assume_role, RoleArn="arn:aws:iam:::role/nonesuch", RoleSessionName="s1")
    refused("ValidationError", OTHER_STS.assume_role, RoleArn=arn, RoleSessionName="s1", DurationSeconds=900 * 100)
    given = OTHER_STS.assume_role(RoleArn=arn, RoleSessionName="s1")
    assert given["AssumedRoleUser"]["Arn"] == "arn:aws:sts:::assumed-role/reader/s1", given
    left = given["Credentials"]["Expiration"] - datetime.datetime.now(datetime.timezone.utc)
    assert 3500 < left.total_seconds() <= 3600, left
    s3 = with_session(given)
    assert with_session(given, "sts").get_caller_identity()["Arn"] == "arn:aws:sts:::assumed-role/reader/s1"
    assert s3.get_object(Bucket="judged", Key="b/1")["Body"].read() == b"b/1"
    assert s3.list_objects_v2(Bucket="judged")["KeyCount"] == 3
    # It has the role's rights, and none of the user's.
    refused("AccessDenied", s3.delete_object, Bucket="judged", Key="b/1")
    refused("AccessDenied", s3.list_objects_v2, Bucket="own")
    refused("AccessDenied", s3.list_buckets)
    refused("AccessDenied", s3.create_bucket, Bucket="of-role")
    refused("AccessDenied", s3.get_bucket_policy, Bucket="own")
    s3.put_object(Bucket="judged", Key="by-role", Body=b"r")
    refused("AccessDenied", s3.get_object_tagging, Bucket="judged", Key="by-role")
    refused("AccessDenied", s3.put_object_acl, Bucket="judged", Key="by-role", ACL="public-read")
    refused("AccessDenied", with_session(given, "iam").list_users)
    refused("AccessDenied", with_session(given, "sts").get_session_token)
    # A policy of the bucket names the role or the session.
    refused("AccessDenied", s3.get_bucket_location, Bucket="own")
    OTHER_S3.put_bucket_policy(Bucket="own", Policy=policy(
        {"Effect": "Allow", "Principal": {"AWS": "arn:aws:sts:::assumed-role/reader/s1"}, "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::own"}))
    s3.list_objects_v2(Bucket="own")
    refused("AccessDenied", with_session(OTHER_STS.assume_role(RoleArn=arn, RoleSessionName="s2")).list_objects_v2, Bucket="own")

    # A session's own policy only removes rights.
    limit = policy(allow("s3:GetObject", "arn:aws:s3:::judged/a/*"), allow("s3:DeleteObject", "*"))
    limited = with_session(OTHER_STS.assume_role(RoleArn=arn, RoleSessionName="s1", Policy=limit))
    assert limited.get_object(Bucket="judged", Key="a/1")["Body"].read() == b"a/1"
    refused("AccessDenied", limited.get_object, Bucket="judged", Key="b/1")
    refused("AccessDenied", limited.delete_object, Bucket="judged", Key="a/1")
    refused("AccessDenied", limited.list_objects_v2, Bucket="own")
    refused("MalformedPolicyDocument", OTHER_STS.assume_role, RoleArn=arn, RoleSessionName="s1", Policy="{")

    # Addresses that a session signs contain its token.
    url = s3.generate_presigned_url("get_object", {"Bucket": "judged", "Key": "a/1"})
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == b"a/1"

    # The role's current policies apply, and its sessions end with it.
    IAM.delete_role_policy(RoleName="reader", PolicyName="judged")
    refused("AccessDenied", s3.get_object, Bucket="judged", Key="b/1")
    IAM.update_assume_role_policy(RoleName="reader", PolicyDocument=policy(
        {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam:::user/admin"}, "Action": "sts:AssumeRole"}))
    refused("AccessDenied", OTHER_STS.assume_role, RoleArn=arn, RoleSessionName="s1")
    IAM.delete_role(RoleName="reader")
    IAM.create_role(RoleName="reader", AssumeRolePolicyDocument=trust)
    refused("InvalidToken", s3.get_object, Bucket="judged", Key="b/1")
    refused("NoSuchEntity", IAM.get_role, RoleName="nonesuch")


def sessions():
    given = OTHER_STS.get_session_token(DurationSeconds=900)
    s3 = with_session(given)
    s3.put_object(Bucket="own", Key="k", Body=b"k")
    assert OTHER_S3.head_object(Bucket="own", Key="k")["ContentLength"] == 1
    assert [b["Name"] for b in s3.list_buckets()["Buckets"]] == ["own"]
    refused("AccessDenied", with_session(given, "sts").get_session_token)
    # Only key, secret and token together are valid.
    credentials = given["Credentials"]
    key, secret, token = credentials["AccessKeyId"], credentials["SecretAccessKey"], credentials["SessionToken"]
    refused("InvalidToken", client("s3", key, secret).list_buckets)
    refused("InvalidToken", client("s3", key, secret, token[:-8] + "AAAAAAA=").list_buckets)
    refused("SignatureDoesNotMatch", client("s3", key, "x" * 40, token).list_buckets)
    refused("InvalidToken", client("s3", *OTHER, token).list_buckets)
    other = OTHER_STS.get_session_token()["Credentials"]
    refused("InvalidToken", client("s3", key, secret, other["SessionToken"]).list_buckets)
    refused("InvalidClientTokenId", client("iam", key, secret).get_user)
    # A token that the signature does not cover is ignored.
    url = client("s3", key, secret, token).generate_presigned_url("list_buckets")
    without = "&".join(part for part in url.split("&") if not part.startswith("X-Amz-Security-Token"))
    for wrong in (without, without + "&X-Amz-Security-Token=" + urllib.parse.quote(token, safe="") + "AA"):
        try:
            urllib.request.urlopen(wrong)
            raise AssertionError(wrong)
        except urllib.error.HTTPError as error:
            assert error.code == 403, (error.code, error.read())
    # They can't call IAM, whatever the user may do, and of STS only AssumeRole and GetCallerIdentity.
    admins = STS.get_session_token()
    iam, sts = with_session(admins, "iam"), with_session(admins, "sts")
    assert IAM.get_user()["User"]["UserName"] == "admin" and IAM.list_users()["Users"]
    for call, args in ((iam.get_user, {}), (iam.list_users, {}), (iam.create_access_key, {}), (iam.create_user, {"UserName": "x"}),
                       (iam.put_user_policy, {"UserName": "other", "PolicyName": "p", "PolicyDocument": policy(allow("*", "*"))}),
                       (iam.list_roles, {}), (iam.delete_role, {"RoleName": "reader"}), (sts.get_session_token, {})):
        refused("AccessDenied", call, **args)
    assert sts.get_caller_identity()["Arn"] == "arn:aws:iam:::user/admin"
    IAM.create_role(RoleName="admins", AssumeRolePolicyDocument=policy(
        {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam:::user/admin"}, "Action": "sts:AssumeRole"}))
    IAM.put_role_policy(RoleName="admins", PolicyName="lists", PolicyDocument=policy(allow("iam:ListUsers", "*")))
    role = sts.assume_role(RoleArn="arn:aws:iam:::role/admins", RoleSessionName="s1")
    assert with_session(role, "iam").list_users()["Users"]
    refused("AccessDenied", with_session(role, "iam").list_roles)


def changed_tokens():
    """No byte of a token can be changed (CVE-2026-39944: radosgw's could be made an administrator's)."""
    credentials = OTHER_STS.get_session_token()["Credentials"]
    key, secret, token = credentials["AccessKeyId"], credentials["SecretAccessKey"], credentials["SessionToken"]
    s3 = client("s3", key, secret, token)
    s3.list_buckets()
    sealed = base64.b64decode(token)
    changed = [sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1:] for at in range(len(sealed))]
    changed += [sealed[:cut] for cut in (1, 16, 24, len(sealed) - 1)] + [sealed + b"x"]
    for wrong in changed:
        s3._request_signer._credentials.token = base64.b64encode(wrong).decode()
        refused("InvalidToken", s3.list_buckets)
    s3._request_signer._credentials.token = token
    s3.list_buckets()
    refused("InvalidClientTokenId", client("sts", key, secret, base64.b64encode(sealed[:-1]).decode()).get_caller_identity)


def ended_users():
    """Sessions end with their user, and do not belong to a later user with its name."""
    def make():
        IAM.create_user(UserName="leaver")
        key = IAM.create_access_key(UserName="leaver")["AccessKey"]
        return key["AccessKeyId"], key["SecretAccessKey"]

    first = make()
    trust = policy({"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam:::user/leaver"}, "Action": "sts:AssumeRole"})
    IAM.create_role(RoleName="left", AssumeRolePolicyDocument=trust)
    IAM.put_role_policy(RoleName="left", PolicyName="p", PolicyDocument=policy(allow("s3:ListAllMyBuckets", "*")))
    own = client("sts", *first)
    sessions = [with_session(own.get_session_token()),
                with_session(own.assume_role(RoleArn="arn:aws:iam:::role/left", RoleSessionName="s1"))]
    for session in sessions:
        session.list_buckets()
    for key in IAM.list_access_keys(UserName="leaver")["AccessKeyMetadata"]:
        IAM.delete_access_key(UserName="leaver", AccessKeyId=key["AccessKeyId"])
    IAM.delete_user(UserName="leaver")
    for session in sessions:
        refused("InvalidToken", session.list_buckets)
    second = make()
    client("s3", *second).list_buckets()
    for session in sessions:
        refused("InvalidToken", session.list_buckets)


def tags():
    """Deny by tag in the policies of users, roles and sessions."""
    S3.create_bucket(Bucket="classes")
    for key in ("secret", "open"):
        S3.put_object(Bucket="classes", Key=key, Body=key.encode(), Tagging=f"class={key}")
    everything = allow("s3:*", ["arn:aws:s3:::classes", "arn:aws:s3:::classes/*"])
    secret = {"StringEquals": {"s3:ExistingObjectTag/class": "secret"}}
    but_secret = policy(everything, allow("s3:*", "*", "Deny", Condition=secret))

    def judged(who, takes):
        assert who.get_object(Bucket="classes", Key="open")["Body"].read() == b"open"
        for call, args in ((who.get_object, {}), (who.get_object_tagging, {}), (who.delete_object_tagging, {}), (who.get_object_acl, {}),
                           (who.delete_object, {}), (who.put_object, {"Body": b""}),
                           (who.put_object_tagging, {"Tagging": {"TagSet": []}})):
            refused("AccessDenied", call, Bucket="classes", Key="secret", **args)
        refused("AccessDenied", who.copy_object, Bucket="classes", Key=takes, CopySource="classes/secret",
                TaggingDirective="REPLACE", Tagging="class=open")
        upload = who.create_multipart_upload(Bucket="classes", Key=takes)["UploadId"]
        refused("AccessDenied", who.upload_part_copy, Bucket="classes", Key=takes, UploadId=upload, PartNumber=1,
                CopySource="classes/secret")
        who.abort_multipart_upload(Bucket="classes", Key=takes, UploadId=upload)
        who.put_object(Bucket="classes", Key=takes, Body=b"", Tagging="class=open")
        gone = who.delete_objects(Bucket="classes", Delete={"Objects": [{"Key": "secret"}, {"Key": takes}]})
        assert [o["Key"] for o in gone["Deleted"]] == [takes], gone
        assert [(e["Key"], e["Code"]) for e in gone["Errors"]] == [("secret", "AccessDenied")], gone

    IAM.put_user_policy(UserName="other", PolicyName="classes", PolicyDocument=but_secret)
    judged(OTHER_S3, "of-user")
    judged(with_session(OTHER_STS.get_session_token()), "of-users-session")
    IAM.delete_user_policy(UserName="other", PolicyName="classes")
    trust = policy({"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam:::user/other"}, "Action": "sts:AssumeRole"})
    arn = IAM.create_role(RoleName="classes", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    IAM.put_role_policy(RoleName="classes", PolicyName="classes", PolicyDocument=but_secret)
    judged(with_session(OTHER_STS.assume_role(RoleArn=arn, RoleSessionName="s1")), "of-role")
    IAM.put_role_policy(RoleName="classes", PolicyName="classes", PolicyDocument=policy(everything))
    judged(with_session(OTHER_STS.assume_role(RoleArn=arn, RoleSessionName="s1", Policy=but_secret)), "of-session")
    assert S3.get_object_tagging(Bucket="classes", Key="secret")["TagSet"] == [{"Key": "class", "Value": "secret"}]


for test in (users, user_policies, roles, sessions, changed_tokens, ended_users, tags):
    test()
    print(test.__name__)
