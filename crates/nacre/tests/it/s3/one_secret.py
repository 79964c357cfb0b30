"""Which secret for SSE-S3 is used, if several gateways create one concurrently.

usage: one_secret.py ENDPOINT ACCESS_KEY SECRET_KEY CONF NACRE KEPT; KEPT is the config-key that already has one, or empty; exits with
an assertion's text on failure."""

import base64
import os
import subprocess
import sys
import threading

import boto3
from botocore.client import Config

from gateway import Gateway

ENDPOINT, ACCESS, SECRET, CONF, NACRE, KEPT = sys.argv[1:7]
NAME = "rgw/crypt/default_encryption_key"


def client(endpoint):
    return boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET, region_name="us-east-1",
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}, retries={"max_attempts": 1}))


def nacre(*args):
    out = subprocess.run([NACRE, "-c", CONF, *args], capture_output=True, text=True)
    assert out.returncode == 0, (args, out.stderr)
    return out.stdout


def random_secret():
    return base64.b64encode(os.urandom(32)).decode()


if KEPT:
    nacre("config-key", "set", KEPT, random_secret())
gateways = [Gateway(NACRE, CONF) for _ in range(3)]
clients = [client(url) for url in [ENDPOINT] + [gateway.url for gateway in gateways]]
clients[0].create_bucket(Bucket="first")
together = threading.Barrier(len(clients))
failed = []


def put(number):
    try:
        together.wait()
        clients[number].put_object(Bucket="first", Key=str(number), Body=b"%d" % number, ServerSideEncryption="AES256")
    except Exception as error:
        failed.append(error)


def read_all(client):
    for number in range(len(clients)):
        assert client.get_object(Bucket="first", Key=str(number))["Body"].read() == b"%d" % number


# No request is refused, and all use the same secret.
threads = [threading.Thread(target=put, args=(number,)) for number in range(len(clients))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
for one in clients:
    read_all(one)
keys = [key for key in nacre("config-key", "ls").split('"') if key.startswith(NAME)]
assert len(keys) == 1 and (keys[0] == KEPT if KEPT else keys[0].startswith(NAME + "/")), keys
# A secret that was being set and arrives late is not used.
for late in {NAME, f"{NAME}/late"} - set(keys):
    nacre("config-key", "set", late, random_secret())
after = Gateway(NACRE, CONF)
read_all(client(after.url))
for gateway in [*gateways, after]:
    gateway.end()
