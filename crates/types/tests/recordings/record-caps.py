#!/usr/bin/python3
"""Records what a real Ceph cluster answers to capability texts, and what they let a client do.

usage: record-caps.py CEPH_CONF FOLDER [EVERY]

With EVERY only each so manieth capability text is tried. Says on stderr where it is; ends with an error where anything
takes longer than it may.

The cluster must use cephx, and have a client.admin with all caps and the pools x (application rgw with zone=a) and y.
Writes caps-parse.json, caps-osd.json, caps-mon.json and caps-tell.json, which crates/types, mon and osd compare with.
"""
import errno
import json
import signal
import sys

import rados

CONF, FOLDER = sys.argv[1:3]
EVERY = int(sys.argv[3]) if len(sys.argv) > 3 else 1

PARSE = {
    "osd": """
allow *|allow all|allow r|allow w|allow x|allow rw|allow rx|allow wx|allow rwx|allow wr|allow xr|allow rrw|allow q|allow|allow |
allow r w|allow rwx class-read|allow class-read|allow class-write|allow class-read class-write|allow class-write class-read
allow r class-write|allow rw class-read class-write pool=x|allow class|allow class foo|allow class foo bar|allow class "foo" "b r"
allow class foo bar baz|allow class=foo|allow class foo pool x|allow class foo bar pool x|allow pool x class foo bar
allow rw pool=x|allow rw pool x|allow rw pool = x|allow rw pool=|allow rw pool|allow pool=x rw|allow pool x rwx|allow pool=x
allow rw pool="x y"|allow rw pool='x y'|allow rw pool="x|allow rw pool=""|allow rw pool=x+y|allow rw pool=x.y-z_/w|allow rw pool=*
allow rw namespace=ns|allow rw namespace ns|allow rw namespace=""|allow rw namespace=''|allow rw namespace=ns*|allow rw namespace="ns*"
allow rw namespace="ns"*|allow rw namespace=*|allow rw namespace=""*|allow rw namespace=|allow rw pool=x namespace=ns|allow rw namespace=ns pool=x
allow namespace=ns rw|allow pool=x namespace=ns rw|allow rw pool=x namespace=ns object_prefix pre
allow r object_prefix pre|allow r object_prefix=pre|allow r object_prefix "p r e"|allow r object_prefix|allow object_prefix pre r
allow r object_prefix pre pool=x|allow r pool=x object_prefix pre|allow r auid 3|allow rwx auid 3 object_prefix p
allow rw tag rgw zone=a|allow rw tag rgw *=*|allow rw tag rgw all=all|allow rw tag rgw *=a|allow rw tag rgw zone=*|allow rw tag rgw
allow rw tag rgw zone|allow rw tag rgw zone = a|allow rw tag rgw zone =a|allow rw tag "rgw" "zone"="a"|allow rw tag * *=*|allow tag rgw *=* rw
allow rw namespace=ns tag rgw *=*|allow rw tag rgw *=* namespace=ns|allow rw pool=x tag rgw *=*|allow rw tag rgw *=* object_prefix p
allow rw network 10.0.0.0/8|allow rw pool=x network 10.0.0.0/8|allow rw network 10.0.0.0/8 pool=x|allow rw network|allow rw network bogus
allow rw network dead|allow rw network ::1/128|allow rw network=10.0.0.0/8|allow pool=x rw network 127.0.0.1/32|profile rbd network 10.0.0.0/8
profile rbd|profile=rbd|profile rbd pool=x|profile rbd pool x namespace=ns|profile rbd namespace=ns|profile "rbd"|profile|profile 
profile nobody|profile osd|profile rbd-read-only|profile read-only|profile read-write|allow profile rbd|allow profile osd|profile rbd object_prefix p
allow r,allow w|allow r, allow w|allow r; allow w|allow r ,allow w|allow r;;allow w|allow r,|,allow r|allow r,,|allow r, profile rbd
allow r, w|allow r allow w|deny *|r|rw|*| allow r| allow r |allow  r|ALLOW r|foo|allowr|allow	r|allow r	,	allow w
allow *x|allow * pool=x|allow pool=x *|allow * network 10.0.0.0/8|allow all pool=x|allow rall|allow r*
""",
    "mon": """
allow *|allow all|allow r|allow w|allow x|allow rw|allow rx|allow wx|allow rwx|allow wr|allow xr|allow q|allow|allow |allow r w|allow  rw
allow service osd r|allow service=osd rw|allow service "osd" rw|allow service osd|allow service osd *|allow service osd q|service osd r|allow service osd r w
allow command status|allow command "osd out"|allow command='osd out'|allow command=status|allow command osd out|command status|allow command
allow command "osd pool create" with pool=foo|allow command "osd pool create" with pool prefix foo|allow command "osd pool create" with pool regex ^f[o]+$
allow command "osd pool create" with pool regex "^f[o]+$"|allow command "osd pool create" with pool=foo pg_num=8|allow command "osd pool create" with pool prefix foo pg_num=8
allow command "osd pool create" with|allow command "osd pool create" with pool|allow command "osd pool create" with pool = foo|allow command "osd pool create" pool=foo
allow command status r|allow command status network 10.0.0.0/8|allow command "osd pool create" with pool=foo network 10.0.0.0/8
profile osd|allow profile osd|profile=osd|profile "osd"|profile 'osd'|profile nobody|profile|profile |allow profile|profile osd r|profile a b
profile mon|profile mds|profile mgr|profile rbd|profile rbd-read-only|profile simple-rados-client|profile simple-rados-client-with-blocklist
profile fs-client|profile read-only|profile read-write|profile role-definer|profile crash|profile bootstrap-osd|profile bootstrap-rgw
allow r network 10.0.0.0/8|allow network 10.0.0.0/8 r|allow rw network bogus|allow rw network|allow * network ::1/128|profile osd network 10.0.0.0/8
allow r,allow w|allow r, allow w|allow r; allow w|allow r ;allow w|allow r,,allow w|allow r,|,allow r|allow r, w|allow r allow w
 allow r| allow r |deny *|r|*|foo|allowr|allow	r|ALLOW r|allow service osd r, allow command "osd out", profile crash|allow pool x r|allow rwx pool=x
allow *x|allow r*|allow class-read|profile osd, allow r|allow service osd rw, allow service mon r
""",
    "mgr": """
allow *|allow r|allow rwx|allow q|allow service osd r|allow module balancer rw|allow module balancer with a=b rw|allow command "pg dump"
profile osd|allow profile osd|profile rbd|profile rbd pool=x|profile rbd pool=x namespace=n|profile rbd foo=x|profile rbd pool prefix x
profile rbd-read-only|profile read-only|profile nobody|profile crash|profile mds|allow r,allow w|allow module balancer|foo|allow r network 10.0.0.0/8
profile rbd with pool=x|profile osd pool=x
""",
    "mds": """
allow|allow *|allow r|allow rw|allow rwp|allow rws|allow rwps|allow w|allow rw path=/a|allow rw path="/a b"|allow rw path=/a uid=1 gids=1,2|allow rw uid=1
allow r network 10.0.0.0/8|allow rw path /a|allow rwx|profile mds|allow rw, allow r|foo|allow rw fsname=a|allow rw fsname=a path=/b|allow rw fsname=* path=/b
allow rw root_squash|allow rw path=/a root_squash
""",
    "foo": "allow r|bar",
}

OSD_CAPS = """
allow *|allow r|allow w|allow x|allow rw|allow rx|allow wx|allow rwx|allow class-read|allow class-write|allow r class-read|allow w class-write
allow rw class-read|allow class hello|allow class hello say_hello|allow class hello record_hello|allow w, allow class lock
allow r, allow w|allow r, allow x|allow r, allow class hello|allow r; allow rw pool=x namespace=ns
allow rw pool=x|allow rwx pool=x|allow rw pool=x namespace=ns|allow rwx pool=x namespace=ns|allow rw namespace=ns|allow rw namespace=""
allow rw namespace=n*|allow rw namespace=""*|allow rw pool=x namespace=ns*|allow * pool=x|allow * namespace=ns
allow r object_prefix pre|allow rw pool=x object_prefix pre|allow rwx object_prefix pre|allow rw tag rgw *=*|allow rw tag rgw zone=a|allow rw tag rgw zone=b
allow rw tag rgw *=a|allow rw tag rgw *=b|allow rw tag rbd *=*|allow rwx tag rgw zone=*|allow rw namespace=ns tag rgw *=*
allow rw network 127.0.0.0/8|allow rw network 10.0.0.0/8|allow rw network dead|allow rwx network 127.0.0.1
profile rbd|profile rbd pool=x|profile rbd pool=x namespace=ns|profile rbd-read-only|profile rbd-read-only pool=x|profile read-only|profile read-write
profile osd|profile nobody|profile read-only pool=x|profile rbd network 10.0.0.0/8
""".strip()

WHERE = [("x", "", "o"), ("x", "ns", "o"), ("x", "nsb", "pre.o"), ("y", "", "pre.o"), ("y", "ns", "o"), ("y", "", "rbd_children")]


def write_op(ioctx, name, build):
    with rados.WriteOpCtx() as op:
        build(op)
        ioctx.operate_write_op(op, name)


def omap_get(ioctx, name):
    with rados.ReadOpCtx() as op:
        values, _ = ioctx.get_omap_vals(op, "", "", 5)
        ioctx.operate_read_op(op, name)
        list(values)


def watch(ioctx, name):
    ioctx.watch(name, lambda *a: None, lambda *a: None).close()


def list_in(ioctx, name, namespace=None):
    # The binding hides errors of listings, so that one refused shows nothing.
    before = ioctx.nspace
    if namespace is not None:
        ioctx.set_namespace(namespace)
    try:
        if name not in [found.key for found in ioctx.list_objects()]:
            raise rados.PermissionError("nothing listed", errno=errno.EPERM)
    finally:
        ioctx.set_namespace(before)


OPS = {
    "read": lambda i, o: i.read(o, 10),
    "stat": lambda i, o: i.stat(o),
    "getxattr": lambda i, o: i.get_xattr(o, "a"),
    "getxattrs": lambda i, o: list(i.get_xattrs(o)),
    "omap-get-vals": omap_get,
    "list": list_in,
    "list-all": lambda i, o: list_in(i, o, rados.LIBRADOS_ALL_NSPACES),
    "writefull": lambda i, o: i.write_full(o, b"x"),
    "append": lambda i, o: i.append(o, b"x"),
    "setxattr": lambda i, o: i.set_xattr(o, "a", b"1"),
    "omap-set": lambda i, o: write_op(i, o, lambda op: i.set_omap(op, ("k",), (b"v",))),
    "create-excl": lambda i, o: write_op(i, o, lambda op: op.new(rados.LIBRADOS_CREATE_EXCLUSIVE)),
    "truncate": lambda i, o: i.trunc(o, 1),
    "write+write": lambda i, o: write_op(i, o, lambda op: (op.append(b"x"), op.write(b"y", 0))),
    "hello.say_hello": lambda i, o: i.execute(o, "hello", "say_hello", b""),
    "hello.record_hello": lambda i, o: i.execute(o, "hello", "record_hello", b""),
    "lock.lock": lambda i, o: i.lock_exclusive(o, "l", "c"),
    "version.read": lambda i, o: i.execute(o, "version", "read", b""),
    "write+hello.record_hello": lambda i, o: write_op(i, o, lambda op: (op.append(b"x"), op.execute("hello", "record_hello", b""))),
    "nosuch.method": lambda i, o: i.execute(o, "nosuch", "method", b""),
    "watch": watch,
    "notify": lambda i, o: i.notify(o, timeout_ms=100),
    "remove": lambda i, o: i.remove_object(o),
}

MON_CAPS = """
allow *|allow r|allow w|allow x|allow rw|allow rx|allow rwx|allow service osd r|allow service osd rw|allow service mon r|allow service auth rx
allow service config-key rw|allow command "osd pool create" with pool prefix foo|allow command "osd pool create" with pool=foo pg_num=8
allow command "osd pool create" with pool regex "^f[a-m]*o+$"|allow command status|allow r, allow command "osd out"
allow r network 127.0.0.0/8|allow r network 10.0.0.0/8|allow * network 10.0.0.0/8
profile osd|profile mon|profile mgr|profile mds|profile rbd|profile rbd-read-only|profile rbd-mirror|profile simple-rados-client
profile simple-rados-client-with-blocklist|profile fs-client|profile read-only|profile read-write|profile role-definer|profile crash|profile bootstrap-osd
profile bootstrap-rgw|profile bootstrap-rbd|profile nobody|profile read-only network 10.0.0.0/8
""".strip()

MON_COMMANDS = [
    {"prefix": "status"},
    {"prefix": "osd dump"},
    {"prefix": "osd pool create", "pool": "foo", "pg_num": 8},
    {"prefix": "osd pool create", "pool": "food"},
    {"prefix": "osd pool create", "pool": "bar"},
    {"prefix": "osd out", "ids": ["77"]},
    {"prefix": "osd blocklist", "blocklistop": "add", "addr": "10.9.8.7:0/123"},
    {"prefix": "osd blocklist", "blocklistop": "add", "addr": "10.9.8.7"},
    {"prefix": "osd blocklist", "blocklistop": "rm", "addr": "10.9.8.7:0/123"},
    {"prefix": "auth ls"},
    {"prefix": "auth get", "entity": "client.nobody"},
    {"prefix": "auth get-or-create", "entity": "client.rgw.q", "caps": ["mon", "allow rw", "osd", "allow rwx"]},
    {"prefix": "auth get-or-create", "entity": "client.q", "caps": ["mon", "profile rbd", "osd", "profile rbd pool=x"]},
    {"prefix": "auth get-or-create", "entity": "client.q2", "caps": ["mon", "allow *"]},
    {"prefix": "config dump"},
    {"prefix": "config set", "who": "osd.77", "name": "osd_max_backfills", "value": "1"},
    {"prefix": "config-key get", "key": "nothing"},
    {"prefix": "config-key set", "key": "a", "val": "b"},
    {"prefix": "log", "logtext": ["hello"]},
    {"prefix": "health"},
    {"prefix": "osd getcrushmap"},
    {"prefix": "get_command_descriptions"},
]

TELL_CAPS = "allow *|allow r|allow rw|allow rwx|allow rwx pool=x|allow * pool=x|allow *, allow r|profile rbd|allow * network 10.0.0.0/8"
TELL = [{"prefix": "version"}, {"prefix": "config get", "var": "osd_max_backfills"}, {"prefix": "get_command_descriptions"},
        {"prefix": "config set", "var": "osd_max_backfills", "val": ["1"]}]


def texts(table):
    return [text for line in table.strip("\n").split("\n") for text in line.split("|")]


def name_of(error):
    number = getattr(error, "errno", None)
    return errno.errorcode.get(abs(number), str(number)) if number else type(error).__name__


# Seconds to wait for a connection: who may not read the maps never gets one.
MOUNT_TIMEOUT = "3"
# Seconds that one session with its operations may take.
PATIENCE = 60


def begin(what):
    """Says what is tried next, and gives it its time."""
    print(what, file=sys.stderr, flush=True)
    # The default action ends the process wherever it waits.
    signal.alarm(PATIENCE)


def attempt(run):
    try:
        run()
        return "OK"
    except rados.TimedOut:
        # Nobody said whether it was allowed.
        raise
    except Exception as error:  # pylint: disable=broad-except
        return name_of(error)


def command(cluster, cmd, target=None):
    send = cluster.mon_command if target is None else lambda c, i, timeout: cluster.osd_command(target, c, i, timeout=timeout)
    code, _, status = send(json.dumps(cmd), b"", timeout=20)
    return ("OK" if code >= 0 else errno.errorcode.get(-code, str(code))), status


def save(name, value):
    with open(f"{FOLDER}/{name}.json", "w", encoding="utf-8") as out:
        json.dump(value, out, indent=1, ensure_ascii=False)
        out.write("\n")


def as_client(admin, caps):
    """A connection of an entity with these caps."""
    begin(f"client.t {caps}")
    admin_key = {"prefix": "auth rm", "entity": "client.t"}
    command(admin, admin_key)
    add = {"prefix": "auth get-or-create-key", "entity": "client.t",
           "caps": [word for pair in caps.items() for word in pair], "format": "plain"}
    code, out, status = admin.mon_command(json.dumps(add), b"", timeout=20)
    assert code == 0, status
    client = rados.Rados(conffile=CONF, rados_id="t", conf={"key": out.decode().strip(), "client_mount_timeout": MOUNT_TIMEOUT,
                                                              "rados_osd_op_timeout": "20", "rados_mon_op_timeout": "20"})
    client.connect(timeout=int(MOUNT_TIMEOUT))
    return client


def main():
    begin("texts")
    admin = rados.Rados(conffile=CONF, conf={"rados_osd_op_timeout": "20", "rados_mon_op_timeout": "20"})
    admin.connect()

    command(admin, {"prefix": "auth rm", "entity": "client.t"})
    parsed = []
    for service, table in PARSE.items():
        for text in texts(table):
            code, status = command(admin, {"prefix": "auth add", "entity": "client.t", "caps": [service, text]})
            parsed.append([service, text, code, "" if code == "OK" else status])
            command(admin, {"prefix": "auth rm", "entity": "client.t"})
    save("caps-parse", parsed)

    rows = []
    for caps in texts(OSD_CAPS)[::EVERY]:
        client = as_client(admin, {"mon": "allow r", "osd": caps})
        for pool, namespace, name in WHERE:
            setup = admin.open_ioctx(pool)
            setup.set_namespace(namespace)
            ioctx = client.open_ioctx(pool)
            ioctx.set_namespace(namespace)
            outcomes = []
            for op, run in OPS.items():
                attempt(lambda: setup.remove_object(name))
                setup.write_full(name, b"hello")
                setup.set_xattr(name, "a", b"1")
                if attempt(lambda: run(ioctx, name)) != "EPERM":
                    outcomes.append(op)
            attempt(lambda: setup.remove_object(name))
            ioctx.close()
            setup.close()
            rows.append([caps, pool, namespace, name, outcomes])
        client.shutdown()
    save("caps-osd", {"ops": list(OPS), "allowed": rows})

    rows = []
    for caps in texts(MON_CAPS)[::EVERY]:
        try:
            client = as_client(admin, {"mon": caps})
        except rados.Error as error:  # pylint: disable=broad-except
            rows.append([caps, name_of(error)])
            continue
        allowed = []
        for at, cmd in enumerate(MON_COMMANDS):
            code, status = command(client, cmd)
            assert (code == "EACCES") == (status == "access denied"), (caps, cmd, code, status)
            if code != "EACCES":
                allowed.append(at)
            for pool in ("foo", "food", "bar"):
                command(admin, {"prefix": "osd pool rm", "pool": pool, "pool2": pool, "yes_i_really_really_mean_it": True})
            for entity in ("client.q", "client.q2", "client.rgw.q"):
                command(admin, {"prefix": "auth rm", "entity": entity})
        client.shutdown()
        rows.append([caps, allowed])
    save("caps-mon", {"commands": MON_COMMANDS, "allowed": rows})

    rows = []
    for caps in texts(TELL_CAPS)[::EVERY]:
        client = as_client(admin, {"mon": "allow r", "osd": caps})
        rows.append([caps, [command(client, cmd, 0)[0] for cmd in TELL]])
        client.shutdown()
    save("caps-tell", {"commands": TELL, "outcomes": rows})


main()
