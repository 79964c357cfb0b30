"""Topics and notification configurations as boto3 uses them.

usage: topics.py ENDPOINT ACCESS_KEY SECRET_KEY OTHERS_ACCESS_KEY OTHERS_SECRET_KEY; the first user is 'admin', the other one is
'other'. Leaves no topics."""

import json
import sys
import urllib.error
import urllib.request

import boto3
import botocore.auth
import botocore.awsrequest
import botocore.credentials
from botocore.client import Config
from botocore.exceptions import ClientError

ENDPOINT, ACCESS, SECRET = sys.argv[1:4]
OTHERS = tuple(sys.argv[4:6])


def client(service, access=ACCESS, secret=SECRET):
    return boto3.client(
        service, endpoint_url=ENDPOINT, aws_access_key_id=access, aws_secret_access_key=secret, region_name="default",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}))


S3, SNS = client("s3"), client("sns")
OTHER_S3, OTHER_SNS = (client(service, *OTHERS) for service in ("s3", "sns"))
# Nothing listens there, and nothing is pushed.
SINK = "http://127.0.0.1:9/events"


def refused(code, call, **args):
    try:
        call(**args)
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, (code, error.response)
        assert error.response["ResponseMetadata"]["RequestId"], error.response
        return error.response
    raise AssertionError(f"{call} was not refused ({code})")


def arn(name):
    return f"arn:aws:sns:default::{name}"


def create(name, **attributes):
    made = SNS.create_topic(Name=name, Attributes={key.replace("_", "-"): value for key, value in attributes.items()})
    assert made["TopicArn"] == arn(name), made
    return made["TopicArn"]


def attributes(name, sns=SNS):
    found = sns.get_topic_attributes(TopicArn=arn(name))["Attributes"]
    return {**found, "EndPoint": json.loads(found["EndPoint"])}


def signed(method, query, body=b""):
    """Sends a request for which boto3 has no call. Returns the status and the answer."""
    url = f"{ENDPOINT}{query}"
    request = botocore.awsrequest.AWSRequest(method=method, url=url, data=body)
    botocore.auth.S3SigV4Auth(botocore.credentials.Credentials(ACCESS, SECRET), "s3", "default").add_auth(request)
    sent = urllib.request.Request(url, data=body or None, method=method, headers=dict(request.headers))
    try:
        with urllib.request.urlopen(sent) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def topics():
    create("plain")
    found = attributes("plain")
    assert (found["User"], found["Name"], found["TopicArn"]) == ("admin", "plain", arn("plain")), found
    assert found["EndPoint"]["EndpointAddress"] == "" and found["EndPoint"]["Persistent"] is False, found
    create("full", push_endpoint=SINK, persistent="true", OpaqueData="me@example.com", verify_ssl="false",
           cloudevents="true")
    found = attributes("full")
    assert found["OpaqueData"] == "me@example.com", found
    assert found["EndPoint"]["EndpointAddress"] == SINK and found["EndPoint"]["Persistent"] is True, found
    assert found["EndPoint"]["EndpointArgs"] == "cloudevents=true&verify-ssl=false", found
    # Another CreateTopic replaces all attributes.
    create("full", push_endpoint=SINK, persistent="true")
    found = attributes("full")
    assert (found["OpaqueData"], found["EndPoint"]["EndpointArgs"]) == ("", ""), found
    SNS.set_topic_attributes(TopicArn=arn("full"), AttributeName="max_retries", AttributeValue="7")
    assert attributes("full")["EndPoint"]["MaxRetries"] == "7"
    SNS.set_topic_attributes(TopicArn=arn("full"), AttributeName="max_retries", AttributeValue="")
    assert attributes("full")["EndPoint"]["MaxRetries"] == "None"
    # Queues are created and removed.
    for persistent in ("false", "true"):
        SNS.set_topic_attributes(TopicArn=arn("full"), AttributeName="persistent", AttributeValue=persistent)
        assert attributes("full")["EndPoint"]["Persistent"] is (persistent == "true")
    assert sorted(t["TopicArn"] for t in SNS.list_topics()["Topics"]) == [arn("full"), arn("plain")]
    status, answer = signed("POST", "/?x", b"Action=ListTopics")
    assert status == 400, answer
    SNS.delete_topic(TopicArn=arn("full"))
    SNS.delete_topic(TopicArn=arn("full"))
    refused("NotFound", SNS.get_topic_attributes, TopicArn=arn("full"))
    refused("NotFound", SNS.set_topic_attributes, TopicArn=arn("full"), AttributeName="persistent", AttributeValue="true")
    SNS.delete_topic(TopicArn=arn("plain"))
    assert SNS.list_topics()["Topics"] == []


def pages():
    names = sorted(f"page{number:03}" for number in range(105))
    for name in names:
        create(name)
    listed = [t["TopicArn"] for page in SNS.get_paginator("list_topics").paginate() for t in page["Topics"]]
    assert listed == [arn(name) for name in names], listed
    for name in names:
        SNS.delete_topic(TopicArn=arn(name))


def wrong():
    for args in (dict(persistent="maybe"), dict(nonesuch="1"), dict(push_endpoint="ftp://h"), dict(mechanism="X"),
                 dict(push_endpoint=SINK, cloudevents="true", batch_size="7"),
                 dict(push_endpoint="kafka://k", transactional="true"), dict(push_endpoint="amqp://h"), dict(Policy="{"),
                 dict(Policy=policy(("Allow", "*", "s3:GetObject", "*"))),
                 dict(Policy=json.dumps({"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sns:*", "Resource": "*",
                                                        "Condition": {"StringEquals": {"aws:Nonesuch": "1"}}}]}))):
        refused("InvalidParameter", create, name="wrong", **args)
    refused("InvalidParameter", SNS.create_topic, Name="a.1")
    refused("InvalidParameter", SNS.get_topic_attributes, TopicArn="arn:aws:sqs:default::q")
    refused("InvalidAction", SNS.list_subscriptions)
    refused("InvalidClientTokenId", client("sns", "NOBODY", "x").list_topics)
    refused("SignatureDoesNotMatch", client("sns", ACCESS, "wrong").list_topics)
    assert SNS.list_topics()["Topics"] == []


def secrets():
    """Credentials in cleartext are refused, unless the option allows them. Neither answers nor errors contain them."""
    for args in (dict(push_endpoint="http://u:hunter2@192.0.2.1/"), dict(push_endpoint="https://u:hunter2@192.0.2.1/"),
                 dict(push_endpoint="kafka://k", user_name="u", password="hunter2", use_ssl="true")):
        said = refused("AuthorizationError", create, name="secret", **args)
        assert "hunter2" not in str(said) and "rgw_allow_notification_secrets_in_cleartext" in str(said), said
    # Restricted endpoints: link-local addresses, files.
    for args, option in ((dict(push_endpoint="http://169.254.169.254/latest"), "rgw_allow_notification_local_endpoints"),
                         (dict(push_endpoint="http://[::ffff:169.254.169.254]/"), "rgw_allow_notification_local_endpoints"),
                         (dict(push_endpoint="https://192.0.2.1/", ca_location="/etc/shadow"), "rgw_notification_ca_folder")):
        said = refused("AuthorizationError", create, name="secret", **args)
        assert option in said["Error"]["Message"], said
    refused("InvalidParameter", create, name="secret", push_endpoint="http://0.0.0.0/")
    refused("NotFound", SNS.get_topic_attributes, TopicArn=arn("secret"))


def policy(*statements):
    names = ("Effect", "Principal", "Action", "Resource")
    return json.dumps({"Version": "2012-10-17", "Statement": [dict(zip(names, statement)) for statement in statements]})


def configuration(name, id="n", **more):
    return {"TopicConfigurations": [dict(Id=id, TopicArn=arn(name), Events=["s3:ObjectCreated:*"], **more)]}


def rights():
    create("own", push_endpoint=SINK)
    OTHER_S3.create_bucket(Bucket="theirs")
    names = dict(TopicArn=arn("own"))
    put = lambda: OTHER_S3.put_bucket_notification_configuration(
        Bucket="theirs", NotificationConfiguration=configuration("own"))
    refused("AuthorizationError", OTHER_SNS.get_topic_attributes, **names)
    refused("AuthorizationError", OTHER_SNS.set_topic_attributes, AttributeName="persistent", AttributeValue="true", **names)
    refused("AuthorizationError", OTHER_SNS.delete_topic, **names)
    refused("AuthorizationError", OTHER_SNS.create_topic, Name="own")
    refused("AccessDenied", put)
    assert OTHER_SNS.list_topics()["Topics"] == []
    # A policy grants exactly what it names, to the users and for the bucket that it names.
    other = {"AWS": ["arn:aws:iam:::user/other"]}
    allow = lambda text: SNS.set_topic_attributes(AttributeName="Policy", AttributeValue=text, **names)
    allow(policy(("Allow", other, ["sns:GetTopicAttributes"], arn("own"))))
    assert attributes("own", OTHER_SNS)["User"] == "admin"
    assert [t["TopicArn"] for t in OTHER_SNS.list_topics()["Topics"]] == [arn("own")]
    refused("AccessDenied", put)
    publish = {"Effect": "Allow", "Principal": other, "Action": "SNS:Publish", "Resource": arn("own"),
               "Condition": {"ArnLike": {"aws:SourceArn": "arn:aws:s3:::other*"}}}
    allow(json.dumps({"Version": "2008-10-17", "Statement": publish}))
    refused("AccessDenied", put)
    publish["Condition"]["ArnLike"]["aws:SourceArn"] = "arn:aws:s3:::their*"
    allow(json.dumps({"Version": "2008-10-17", "Statement": publish}))
    put()
    # A refusal applies to the owner, too.
    allow(policy(("Deny", "*", "sns:Publish", "*")))
    S3.create_bucket(Bucket="mine")
    refused("AccessDenied", S3.put_bucket_notification_configuration, Bucket="mine",
            NotificationConfiguration=configuration("own"))
    allow("")
    OTHER_SNS.create_topic(Name="another")
    assert [t["TopicArn"] for t in OTHER_SNS.list_topics()["Topics"]] == [arn("another")]
    refused("AuthorizationError", SNS.delete_topic, TopicArn=arn("another"))
    OTHER_SNS.delete_topic(TopicArn=arn("another"))
    # Configurations belong to the bucket's owner.
    refused("AccessDenied", S3.get_bucket_notification_configuration, Bucket="theirs")
    refused("AccessDenied", S3.put_bucket_notification_configuration, Bucket="theirs", NotificationConfiguration={})
    SNS.delete_topic(**names)


def configurations():
    S3.create_bucket(Bucket="photos")
    get = lambda: S3.get_bucket_notification_configuration(Bucket="photos").get("TopicConfigurations", [])
    put = lambda *list: S3.put_bucket_notification_configuration(
        Bucket="photos", NotificationConfiguration={"TopicConfigurations": list})
    of = lambda id, *events, **more: dict(Id=id, TopicArn=arn("sink"), Events=list(events), **more)
    assert get() == []
    refused("InvalidArgument", lambda: put(of("early", "s3:ObjectCreated:*")))
    create("sink", push_endpoint=SINK, persistent="true")
    prefix = {"Key": {"FilterRules": [{"Name": "prefix", "Value": "images/"}, {"Name": "suffix", "Value": ".jpg"}]}}
    put(of("one", "s3:ObjectCreated:Put", "s3:ObjectRemoved:*", Filter=prefix), of("two"), of("three", "s3:ObjectTagging:*"))
    found = {c["Id"]: c for c in get()}
    assert list(found) == ["one", "two", "three"], found
    assert found["one"]["Filter"] == prefix and found["one"]["Events"] == ["s3:ObjectCreated:Put", "s3:ObjectRemoved:*"], found
    assert found["two"]["Events"] == ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"], found
    # Ceph's filters are not in boto3's model.
    document = f"""<NotificationConfiguration><TopicConfiguration><Id>f</Id><Topic>{arn("sink")}</Topic>
        <Filter><S3Metadata><FilterRule><Name>x-amz-meta-m</Name><Value>v</Value></FilterRule></S3Metadata>
        <S3Tags><FilterRule><Name>t</Name><Value>v</Value></FilterRule></S3Tags>
        <S3Key><FilterRule><Name>regex</Name><Value>a.*</Value></FilterRule></S3Key></Filter>
        </TopicConfiguration></NotificationConfiguration>""".encode()
    assert signed("PUT", "/photos?notification", document)[0] == 200
    status, answer = signed("GET", "/photos?notification")
    assert status == 200 and "<S3Metadata>" in answer and "<S3Tags>" in answer and "regex" in answer, answer
    assert [c["Id"] for c in get()] == ["f"]
    # Invalid requests are refused, and change nothing.
    for inner, code in (("<QueueConfiguration/>", "InvalidArgument"), ("<Nonesuch/>", "MalformedXML"),
                        (f"<TopicConfiguration><Topic>{arn('sink')}</Topic><Event>s3:Nothing</Event></TopicConfiguration>",
                         "InvalidArgument"),
                        (f"<TopicConfiguration><Topic>{arn('sink')}</Topic><Filter><S3Key><FilterRule><Name>regex</Name>"
                         "<Value>(</Value></FilterRule></S3Key></Filter></TopicConfiguration>", "InvalidArgument")):
        status, answer = signed("PUT", "/photos?notification",
                                f"<NotificationConfiguration>{inner}</NotificationConfiguration>".encode())
        assert status == 400 and f"<Code>{code}</Code>" in answer, answer
    status, answer = signed("PUT", "/photos?notification", b"x" * (300 << 10))
    assert status == 400, (status, answer)
    assert [c["Id"] for c in get()] == ["f"]
    # One at a time, as in Ceph.
    put(of("one"), of("two"), of("three"))
    status, answer = signed("GET", "/photos?notification=two")
    assert status == 200 and "<Id>two</Id>" in answer and "one" not in answer, answer
    assert signed("GET", "/photos?notification=none")[0] == 404
    assert signed("DELETE", "/photos?notification=two")[0] == 204
    assert signed("DELETE", "/photos?notification=two")[0] == 204
    assert [c["Id"] for c in get()] == ["one", "three"]
    assert signed("DELETE", "/photos/?notification")[0] == 204
    assert get() == [] and S3.head_bucket(Bucket="photos")
    put(of("one"))
    put()
    assert get() == []
    refused("NoSuchBucket", S3.get_bucket_notification_configuration, Bucket="nonesuch")
    SNS.delete_topic(TopicArn=arn("sink"))


for part in (topics, pages, wrong, secrets, rights, configurations):
    print(part.__name__, flush=True)
    part()
