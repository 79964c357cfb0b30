"""Access control of a gateway, as boto3 sees it.

usage: access.py ENDPOINT ACCESS_KEY SECRET_KEY OTHERS_ACCESS_KEY OTHERS_SECRET_KEY; exits with an assertion's text on failure. The
other user's id is 'other'."""

import datetime
import json
import sys
import urllib.error
import urllib.request

import boto3
from botocore import UNSIGNED
from botocore.client import Config
from botocore.exceptions import ClientError

ENDPOINT, ACCESS, SECRET = sys.argv[1:4]


def client(access=ACCESS, secret=SECRET, service="s3", **config):
    return boto3.client(
        service, endpoint_url=ENDPOINT, aws_access_key_id=access, aws_secret_access_key=secret, region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}, **config))


S3 = client()
OTHER = client(*sys.argv[4:6])
NOBODY = client(signature_version=UNSIGNED)


def refused(code, call, **args):
    try:
        call(**args)
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, (code, error.response)
        return error.response
    raise AssertionError(f"{call} was not refused ({code})")


def read(who, bucket, key):
    return who.get_object(Bucket=bucket, Key=key)["Body"].read()


def public_access():
    S3.create_bucket(Bucket="public")
    refused("NoSuchPublicAccessBlockConfiguration", S3.get_public_access_block, Bucket="public")

    def block(**what):
        S3.put_public_access_block(Bucket="public", PublicAccessBlockConfiguration=what)
        said = S3.get_public_access_block(Bucket="public")["PublicAccessBlockConfiguration"]
        names = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
        assert said == {name: what.get(name, False) for name in names}, said

    S3.put_bucket_acl(Bucket="public", ACL="public-read")
    S3.put_object(Bucket="public", Key="k", Body=b"k", ACL="public-read")
    assert read(NOBODY, "public", "k") == b"k"
    assert len(NOBODY.list_objects_v2(Bucket="public")["Contents"]) == 1
    assert S3.get_bucket_policy_status(Bucket="public")["PolicyStatus"]["IsPublic"] is True
    # A user can't change the protection of another user's bucket.
    refused("AccessDenied", OTHER.put_public_access_block, Bucket="public", PublicAccessBlockConfiguration={})
    refused("AccessDenied", OTHER.delete_public_access_block, Bucket="public")

    block(BlockPublicAcls=True)
    for acl in ("public-read", "public-read-write", "authenticated-read"):
        refused("AccessDenied", S3.put_bucket_acl, Bucket="public", ACL=acl)
        refused("AccessDenied", S3.put_object, Bucket="public", Key="l", Body=b"", ACL=acl)
        refused("AccessDenied", S3.put_object_acl, Bucket="public", Key="k", ACL=acl)
        refused("AccessDenied", S3.create_multipart_upload, Bucket="public", Key="l", ACL=acl)
        refused("AccessDenied", S3.copy_object, Bucket="public", Key="l", CopySource="public/k", ACL=acl)
    everybody = 'uri="http://acs.amazonaws.com/groups/global/AllUsers"'
    refused("AccessDenied", S3.put_object, Bucket="public", Key="l", Body=b"", GrantRead=everybody)
    S3.put_object(Bucket="public", Key="l", Body=b"", ACL="private")
    # Objects that were public stay public.
    assert read(NOBODY, "public", "k") == b"k"
    block(IgnorePublicAcls=True)
    refused("AccessDenied", NOBODY.get_object, Bucket="public", Key="k")
    refused("AccessDenied", OTHER.list_objects_v2, Bucket="public")
    assert read(S3, "public", "k") == b"k"
    S3.put_object_acl(Bucket="public", Key="k", GrantRead='id="other"')
    assert read(OTHER, "public", "k") == b"k"

    S3.put_bucket_acl(Bucket="public", ACL="private")
    assert S3.get_bucket_policy_status(Bucket="public")["PolicyStatus"]["IsPublic"] is False
    to_all = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::public/*"}
    to_other = dict(to_all, Principal={"AWS": "arn:aws:iam:::user/other"}, Action="s3:PutObject")
    policy = json.dumps({"Version": "2012-10-17", "Statement": [to_all, to_other]})
    block(BlockPublicPolicy=True)
    refused("AccessDenied", S3.put_bucket_policy, Bucket="public", Policy=policy)
    S3.put_bucket_policy(Bucket="public", Policy=json.dumps({"Statement": [to_other]}))
    block()
    S3.put_bucket_policy(Bucket="public", Policy=policy)
    assert read(NOBODY, "public", "l") == b""
    block(RestrictPublicBuckets=True)
    refused("AccessDenied", NOBODY.get_object, Bucket="public", Key="l")
    refused("AccessDenied", OTHER.put_object, Bucket="public", Key="m", Body=b"")
    assert read(S3, "public", "l") == b""
    S3.delete_public_access_block(Bucket="public")
    refused("NoSuchPublicAccessBlockConfiguration", S3.get_public_access_block, Bucket="public")
    assert read(NOBODY, "public", "l") == b""


def ownership():
    S3.create_bucket(Bucket="owned")
    refused("OwnershipControlsNotFoundError", S3.get_bucket_ownership_controls, Bucket="owned")
    grants = S3.get_bucket_acl(Bucket="owned")["Owner"]["ID"]
    S3.put_bucket_acl(Bucket="owned", GrantWrite='id="other"', GrantFullControl=f'id="{grants}"')

    def control(how):
        S3.put_bucket_ownership_controls(Bucket="owned", OwnershipControls={"Rules": [{"ObjectOwnership": how}]})
        said = S3.get_bucket_ownership_controls(Bucket="owned")["OwnershipControls"]
        assert said == {"Rules": [{"ObjectOwnership": how}]}, said

    def owner(key):
        return S3.get_object_acl(Bucket="owned", Key=key)["Owner"]["ID"]

    refused("AccessDenied", OTHER.put_bucket_ownership_controls, Bucket="owned",
            OwnershipControls={"Rules": [{"ObjectOwnership": "ObjectWriter"}]})
    control("ObjectWriter")
    OTHER.put_object(Bucket="owned", Key="theirs", Body=b"t", ACL="bucket-owner-full-control")
    assert owner("theirs") == "other"
    control("BucketOwnerPreferred")
    OTHER.put_object(Bucket="owned", Key="given", Body=b"g", ACL="bucket-owner-full-control")
    OTHER.put_object(Bucket="owned", Key="kept", Body=b"k")
    assert OTHER.get_object_tagging(Bucket="owned", Key="kept")["TagSet"] == []
    assert owner("given") == "admin"
    refused("AccessDenied", S3.get_object, Bucket="owned", Key="kept")
    # Users with write access so far would lose it.
    refused("InvalidBucketAclWithObjectOwnership", S3.put_bucket_ownership_controls, Bucket="owned",
            OwnershipControls={"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]})
    S3.put_bucket_acl(Bucket="owned", ACL="private")
    control("BucketOwnerEnforced")
    # All objects belong to the bucket's owner, whoever wrote them.
    assert read(S3, "owned", "kept") == b"k"
    assert owner("kept") == "admin"
    refused("AccessDenied", OTHER.get_object, Bucket="owned", Key="kept")
    refused("AccessDenied", OTHER.get_object_tagging, Bucket="owned", Key="kept")
    refused("AccessDenied", OTHER.put_object_tagging, Bucket="owned", Key="kept", Tagging={"TagSet": []})
    refused("AccessControlListNotSupported", S3.put_bucket_acl, Bucket="owned", ACL="private")
    refused("AccessControlListNotSupported", S3.put_object_acl, Bucket="owned", Key="kept", ACL="public-read")
    refused("AccessControlListNotSupported", S3.put_object, Bucket="owned", Key="a", Body=b"", ACL="public-read")
    S3.put_object(Bucket="owned", Key="a", Body=b"", ACL="bucket-owner-full-control")
    S3.put_bucket_policy(Bucket="owned", Policy=json.dumps({"Statement": [{
        "Effect": "Allow", "Principal": {"AWS": "arn:aws:iam:::user/other"}, "Action": "s3:PutObject", "Resource": "*"}]}))
    OTHER.put_object(Bucket="owned", Key="b", Body=b"b")
    # Its tags would belong to the bucket's owner.
    refused("AccessDenied", OTHER.put_object, Bucket="owned", Key="b", Body=b"b", Tagging="a=b")
    assert (owner("b"), read(S3, "owned", "b")) == ("admin", b"b")
    S3.delete_bucket_ownership_controls(Bucket="owned")
    refused("OwnershipControlsNotFoundError", S3.get_bucket_ownership_controls, Bucket="owned")
    refused("InvalidBucketAclWithObjectOwnership", S3.create_bucket, Bucket="enforced", ACL="public-read",
            ObjectOwnership="BucketOwnerEnforced")
    S3.create_bucket(Bucket="enforced", ObjectOwnership="BucketOwnerEnforced")
    refused("AccessControlListNotSupported", S3.put_bucket_acl, Bucket="enforced", ACL="public-read")


def besides():
    """The actions that a write's headers cause are authorized as if they were separate requests."""
    S3.create_bucket(Bucket="besides", ObjectLockEnabledForBucket=True)

    def policy(allowed, denied=()):
        statement = {"Principal": {"AWS": "arn:aws:iam:::user/other"}, "Resource": "arn:aws:s3:::besides/*"}
        statements = [dict(statement, Effect="Allow", Action=[f"s3:{action}" for action in allowed])]
        if denied:
            statements.append(dict(statement, Effect="Deny", Action=[f"s3:{action}" for action in denied]))
        S3.put_bucket_policy(Bucket="besides", Policy=json.dumps({"Statement": statements}))

    soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=2)
    retention = {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": soon + datetime.timedelta(hours=1)}
    hold = {"ObjectLockLegalHoldStatus": "OFF"}
    calls = [(OTHER.put_object, {"Body": b"x"}), (OTHER.create_multipart_upload, {}),
             (OTHER.copy_object, {"CopySource": "besides/k", "MetadataDirective": "REPLACE"})]
    needs = [("PutObjectRetention", retention), ("PutObjectLegalHold", hold)]
    policy(["PutObject"])
    OTHER.put_object(Bucket="besides", Key="k", Body=b"x")
    for call, args in calls:
        for _, headers in needs:
            refused("AccessDenied", call, Bucket="besides", Key="k", **args, **headers)
    policy(["PutObject"] + [action for action, _ in needs])
    for call, args in calls:
        for _, headers in needs:
            call(Bucket="besides", Key="k", **args, **headers)
    S3.put_object(Bucket="besides", Key="k", Body=b"x", **retention, **hold)
    # An object's ACL and tags belong to its writer, unless a policy refuses that.
    own = [("PutObjectAcl", {"ACL": "private"}), ("PutObjectAcl", {"GrantRead": 'id="other"'}), ("PutObjectTagging", {"Tagging": "a=b"})]
    for call, args in calls:
        for action, headers in own:
            policy(["PutObject"])
            call(Bucket="besides", Key="k", **args, **headers)
            policy(["PutObject"], [action])
            call(Bucket="besides", Key="k", **args)
            refused("AccessDenied", call, Bucket="besides", Key="k", **args, **headers)


def documents():
    """A bucket's documents have size limits, because all of them are in one record."""
    S3.create_bucket(Bucket="documents")
    rule = {"AllowedMethods": ["GET"], "AllowedOrigins": ["http://" + "x" * 100_000]}
    refused("EntityTooLarge", S3.put_bucket_cors, Bucket="documents", CORSConfiguration={"CORSRules": [rule]})
    refused("EntityTooLarge", S3.put_bucket_website, Bucket="documents", WebsiteConfiguration={
        "IndexDocument": {"Suffix": "i"}, "ErrorDocument": {"Key": "x" * 200_000}})
    statement = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::documents/" + "x" * 30_000}
    refused("EntityTooLarge", S3.put_bucket_policy, Bucket="documents", Policy=json.dumps({"Statement": [statement]}))
    S3.put_object(Bucket="documents", Key="k", Body=b"")


def tags_judge():
    """Policies evaluate the tags of the object that is read or removed, in every operation that reads or removes it."""
    S3.create_bucket(Bucket="tagged")
    S3.put_bucket_versioning(Bucket="tagged", VersioningConfiguration={"Status": "Enabled"})
    OTHER.create_bucket(Bucket="takers")
    old = S3.put_object(Bucket="tagged", Key="secret", Body=b"secret", Tagging="class=secret")["VersionId"]
    S3.put_object(Bucket="tagged", Key="open", Body=b"open", Tagging="class=open")
    S3.put_object(Bucket="tagged", Key="target", Body=b"", Tagging="class=open")
    S3.put_object(Bucket="tagged", Key="both", Body=b"secret", Tagging="CLASS=open&class=secret")
    OTHER.put_object(Bucket="takers", Key="copy", Body=b"", Tagging="class=open")
    other = {"Principal": {"AWS": "arn:aws:iam:::user/other"}, "Resource": "arn:aws:s3:::tagged/*"}
    refuses = ["s3:GetObject", "s3:GetObjectVersion", "s3:DeleteObject", "s3:DeleteObjectVersion"]
    S3.put_bucket_policy(Bucket="tagged", Policy=json.dumps({"Statement": [
        dict(other, Effect="Allow", Action=["s3:GetObject*", "s3:DeleteObject*", "s3:PutObject"]),
        dict(other, Effect="Deny", Action=refuses, Condition={"StringEquals": {"s3:ExistingObjectTag/class": "secret"}})]}))
    upload = OTHER.create_multipart_upload(Bucket="takers", Key="parts")["UploadId"]

    def copies(source, check):
        retagged = {"TaggingDirective": "REPLACE", "Tagging": "class=open"}
        for bucket, key in (("takers", "copy"), ("takers", "new"), ("tagged", "target")):
            check(OTHER.copy_object, Bucket=bucket, Key=key, CopySource=source, **retagged)
        check(OTHER.copy_object, Bucket="takers", Key="copy", CopySource=source)
        check(OTHER.upload_part_copy, Bucket="takers", Key="parts", UploadId=upload, PartNumber=1, CopySource=source)

    def denied(call, **args):
        refused("AccessDenied", call, **args)

    def allowed(call, **args):
        call(**args)

    assert read(OTHER, "tagged", "open") == b"open"
    copies("tagged/open", allowed)
    for key in ("secret", "both"):
        denied(OTHER.get_object, Bucket="tagged", Key=key)
        refused("403", OTHER.head_object, Bucket="tagged", Key=key)
        denied(OTHER.get_object_attributes, Bucket="tagged", Key=key, ObjectAttributes=["ObjectSize"])
        denied(OTHER.delete_object, Bucket="tagged", Key=key)
        copies(f"tagged/{key}", denied)

    def delete(*objects):
        answer = OTHER.delete_objects(Bucket="tagged", Delete={"Objects": list(objects)})
        named = [(gone["Key"], gone.get("VersionId")) for gone in answer.get("Deleted", [])]
        errors = [(error["Key"], error.get("VersionId"), error["Code"]) for error in answer.get("Errors", [])]
        return named, errors

    # A version has its own tags: the newest one is accessible now.
    S3.put_object(Bucket="tagged", Key="secret", Body=b"not any more", Tagging="class=open")
    assert read(OTHER, "tagged", "secret") == b"not any more"
    denied(OTHER.get_object, Bucket="tagged", Key="secret", VersionId=old)
    copies({"Bucket": "tagged", "Key": "secret", "VersionId": old}, denied)
    copies("tagged/secret", allowed)
    gone, errors = delete({"Key": "both"}, {"Key": "secret", "VersionId": old}, {"Key": "open"})
    assert (gone, errors) == ([("open", None)], [("both", None, "AccessDenied"), ("secret", old, "AccessDenied")])
    assert read(S3, "tagged", "both") == b"secret"

    # The actual tags of a copy are evaluated, not the tags in its headers that it does not get.
    S3.put_object(Bucket="tagged", Key="open", Body=b"open", Tagging="class=open")
    S3.create_bucket(Bucket="approved")
    approved = dict(other, Effect="Allow", Action=["s3:PutObject", "s3:PutObjectTagging"], Resource="arn:aws:s3:::approved/*")

    def approve(**condition):
        S3.put_bucket_policy(Bucket="approved", Policy=json.dumps({"Statement": [dict(approved, Condition=condition)]}))

    copy = {"Bucket": "approved", "Key": "k", "CopySource": "tagged/open", "Tagging": "approved=yes"}
    approve(StringEquals={"s3:RequestObjectTag/approved": "yes"})
    denied(OTHER.copy_object, **copy)
    OTHER.copy_object(TaggingDirective="REPLACE", **copy)
    assert S3.get_object_tagging(Bucket="approved", Key="k")["TagSet"] == [{"Key": "approved", "Value": "yes"}]
    approve(StringNotEquals={"s3:RequestObjectTag/class": "open"})
    denied(OTHER.copy_object, Bucket="approved", Key="k", CopySource="tagged/open")
    OTHER.copy_object(TaggingDirective="REPLACE", **copy)
    # A copy does not transfer tags to a user who may not read them.
    S3.put_bucket_policy(Bucket="tagged", Policy=json.dumps({"Statement": [
        dict(other, Effect="Allow", Action="s3:GetObject"), dict(other, Effect="Deny", Action="s3:GetObjectTagging")]}))
    denied(OTHER.copy_object, Bucket="takers", Key="copy", CopySource="tagged/open")
    OTHER.copy_object(Bucket="takers", Key="copy", CopySource="tagged/open", TaggingDirective="REPLACE", Tagging="a=b")


def overrides():
    """An unsigned request can't override the headers of the answer."""
    S3.create_bucket(Bucket="overrides")
    S3.put_object(Bucket="overrides", Key="k", Body=b"<script>", ContentType="text/plain", ACL="public-read")
    for name in ("ContentType", "ContentDisposition", "ContentEncoding", "ContentLanguage", "CacheControl"):
        answer = refused("InvalidRequest", NOBODY.get_object, Bucket="overrides", Key="k", **{f"Response{name}": "x"})
        assert answer["Error"]["Message"] == "Request specific response headers cannot be used for anonymous GET requests."
    for path in ("k?response%2Dcontent-type=text/html", "k?response-expires=0"):
        try:
            urllib.request.urlopen(f"{ENDPOINT}/overrides/{path}")
            raise AssertionError(path)
        except urllib.error.HTTPError as error:
            assert error.code == 400, error.code
    assert read(NOBODY, "overrides", "k") == b"<script>"
    url = S3.generate_presigned_url("get_object", {"Bucket": "overrides", "Key": "k", "ResponseContentType": "text/html"})
    with urllib.request.urlopen(url) as answer:
        assert answer.headers["Content-Type"] == "text/html"


for test in (public_access, ownership, besides, documents, tags_judge, overrides):
    test()
    print(test.__name__)
