"""Tests all functions of Debian's python3-rados that Nacre supports, on the cluster of CEPH_CONF. Run by tests/it/librados.rs."""

import errno
import json
import struct
import threading
import time

import rados


def fails(kind, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as error:
        return error
    raise AssertionError(f"{call} {args} did not fail with {kind}")


def refused(call, *args, **kwargs):
    error = fails(rados.OSError, call, *args, **kwargs)
    assert error.errno == errno.EOPNOTSUPP, error


def configuration():
    c = rados.Rados(name="client.admin", conffile="", conf={"rados_osd_op_timeout": "33"})
    assert c.conf_get("rados_osd_op_timeout") == "33"
    assert c.conf_get("no_such_option") is None
    fails(rados.ObjectNotFound, c.conf_set, "no_such_option", "1")
    fails(rados.Error, c.conf_set, "client_mount_timeout", "soon")
    c.conf_set("err_to_stderr", "true")
    assert c.conf_get("err_to_stderr") == "true"
    # Options that only Ceph needs return Ceph's defaults.
    assert (c.conf_get("log_max_new"), c.conf_get("rbd_cache")) == ("1000", "true")
    rest = c.conf_parse_argv(["osd", "--rados-mon-op-timeout", "44", "tree", "--unknown"])
    assert rest == ["osd", "tree", "--unknown"], rest
    assert c.conf_get("rados_mon_op_timeout") == "44"
    c.conf_parse_env("NO_SUCH_VARIABLE")
    assert c.conf_get("fsid") and c.conf_get("mon_host")
    fails(rados.RadosStateError, c.list_pools)
    c.connect(timeout=30)
    assert c.state == "connected"
    c.require_state("connected")
    twin = rados.Rados(context=None, name="client.admin", conffile="")
    twin.connect()
    assert twin.get_instance_id() != c.get_instance_id()
    twin.shutdown()
    fails(rados.ObjectNotFound, rados.Rados, conffile="/nonexistent")
    stranger = rados.Rados(rados_id="stranger", conffile="")
    fails(rados.ObjectNotFound, stranger.connect)
    stranger.shutdown()
    c.shutdown()


def cluster(c):
    assert len(c.get_fsid()) == 36
    assert str(c.version()) == "3.0.0"
    assert c.get_instance_id() > 0
    assert c.get_addrs()
    assert c.mgr_command('{"prefix":"nonesuch"}', b"") == (-22, b"", "No handler found for 'nonesuch'")
    stats = c.get_cluster_stats()
    assert stats["kb"] > 0 and stats["kb"] >= stats["kb_avail"] > 0, stats
    c.wait_for_latest_osdmap()
    code, out, status = c.mon_command(json.dumps({"prefix": "status", "format": "json"}), b"")
    assert code == 0 and json.loads(out)["fsid"] == c.get_fsid()
    code, out, status = c.mon_command(json.dumps({"prefix": "osd pool get", "pool": "none", "var": "size"}), b"")
    assert code == -errno.ENOENT and "unrecognized pool 'none'" in status, (code, status)
    code, out, status = c.mon_command(json.dumps({"prefix": "nonsense"}), b"")
    assert code == -errno.EINVAL
    code, out, status = c.mgr_command(json.dumps({"prefix": "pg stat", "format": "json"}), b"")
    assert code == 0 and json.loads(out)
    code, out, status = c.osd_command(0, json.dumps({"prefix": "version"}), b"")
    assert code == 0 and json.loads(out)["version"]
    assert c.osd_command(-1, json.dumps({"prefix": "version"}), b"")[0] == -errno.EINVAL
    assert c.osd_command(99, json.dumps({"prefix": "version"}), b"")[0] == -errno.ENOENT
    dump = json.loads(c.mon_command(json.dumps({"prefix": "mon dump", "format": "json"}), b"")[1])
    name = dump["mons"][0]["name"]
    assert json.loads(c.ping_monitor(name))["health"]
    assert c.mon_command(json.dumps({"prefix": "version"}), b"", target=name)[0] == 0
    c.blocklist_add("127.0.0.1:1/1", 60)
    refused(c.get_inconsistent_pgs, c.pool_lookup("it"))


def pools(c):
    assert not c.pool_exists("it")
    fails(rados.ObjectNotFound, c.open_ioctx, "it")
    assert c.pool_lookup("it") is None
    c.create_pool("it")
    fails(rados.ObjectExists, c.create_pool, "it")
    assert c.pool_exists("it") and "it" in c.list_pools()
    number = c.pool_lookup("it")
    assert c.pool_reverse_lookup(number) == "it"
    assert c.get_pool_base_tier(number) == number
    # More names than the binding's first buffer can hold.
    for name in ["a" * 120 + str(n) for n in range(5)]:
        c.create_pool(name)
    assert len(c.list_pools()) == 6, c.list_pools()
    c.create_pool("ruled", crush_rule=0)
    fails(rados.Error, c.create_pool, "unruled", crush_rule=77)
    c.delete_pool("ruled")
    fails(rados.ObjectNotFound, c.delete_pool, "ruled")
    io = c.open_ioctx2(number)
    assert io.get_pool_id() == number and io.get_pool_name() == "it"
    assert not io.require_ioctx_open()
    assert io.alignment() is None
    io.close()
    fails(rados.IoctxStateError, io.read, "o")
    code, out, status = c.pg_command(f"{number}.0", json.dumps({"prefix": "query", "pgid": f"{number}.0"}), b"")
    assert code == 0 and json.loads(out)["pgid"] == f"{number}.0", (code, status)


def applications(io):
    io.application_enable("one")
    fails(rados.PermissionError, io.application_enable, "two")
    io.application_enable("two", True)
    assert io.application_list() == ["one", "two"]
    fails(KeyError, io.application_metadata_get, "one", "key")
    io.application_metadata_set("one", "key", "value")
    io.application_metadata_set("one", "other", "more")
    assert io.application_metadata_get("one", "key") == "value"
    assert io.application_metadata_list("one") == [("key", "value"), ("other", "more")]
    io.application_metadata_remove("one", "key")
    assert io.application_metadata_list("one") == [("other", "more")]
    fails(rados.ObjectNotFound, io.application_metadata_list, "none")


def data(io):
    io.write_full("o", b"hello world")
    first = io.get_last_version()
    assert first > 0
    assert io.read("o") == b"hello world" and io.read("o", 3, 2) == b"llo"
    assert io.read("o", 5, 100) == b""
    io.write("o", b"HELLO", 0)
    io.append("o", b"!")
    assert io.read("o") == b"HELLO world!"
    assert io.get_last_version() > first
    size, mtime = io.stat("o")
    assert size == 12 and abs(time.mktime(mtime) - time.time()) < 60
    io.trunc("o", 5)
    assert io.read("o") == b"HELLO"
    fails(rados.OSError, io.trunc, "o", 1 << 40)
    io.writesame("o", b"ab", 6, offset=5)
    assert io.read("o") == b"HELLOababab"
    fails(rados.InvalidArgumentError, io.writesame, "o", b"ab", 5)
    io.write_full("o", b"\0" * 100_000)
    assert io.read("o", 200_000) == b"\0" * 100_000
    io.remove_object("o")
    for call in [io.read, io.stat, io.remove_object, io.get_xattr]:
        fails(rados.ObjectNotFound, call, *(["o", "a"] if call == io.get_xattr else ["o"]))
    fails(rados.Error, io.write, "n" * 3000, b"x")
    io.set_osdmap_full_try()
    io.write("full", b"1")
    io.unset_osdmap_full_try()
    io.set_read(7)
    assert io.read("full") == b"1"
    assert fails(rados.OSError, io.write, "full", b"2").errno == errno.EROFS
    io.set_read(rados.LIBRADOS_SNAP_HEAD)
    assert io.read("full") == b"1"
    refused(io.execute, "o", "no_such_class", "method", b"")


def guards(io):
    io.write_full("g", b"12345")
    assert io.cmpext("g", b"234", 1) == 0
    assert io.cmpext("g", b"2x", 1) == -4095 - 1
    with rados.WriteOpCtx() as op:
        op.cmpext(b"12", 0)
        op.writesame(b"ab", 4)
        io.operate_write_op(op, "g")
    assert io.read("g") == b"abab5"
    io.lock_exclusive("g", "lock", "cookie", desc="why", duration=60)
    fails(rados.ObjectExists, io.lock_exclusive, "g", "lock", "cookie")
    fails(rados.ObjectBusy, io.lock_shared, "g", "lock", "other", "tag")
    io.unlock("g", "lock", "cookie")
    fails(rados.ObjectNotFound, io.unlock, "g", "lock", "cookie")
    io.lock_shared("g", "lock", "other", "tag")


def xattrs(io):
    io.write_full("x", b"")
    fails(rados.NoData, io.get_xattr, "x", "a")
    for name, value in [("a", b"1"), ("b", b"\0\1\2"), ("long", b"v" * 10_000)]:
        assert io.set_xattr("x", name, value)
        assert io.get_xattr("x", name) == value
    assert sorted(io.get_xattrs("x")) == [("a", b"1"), ("b", b"\0\1\2"), ("long", b"v" * 10_000)]
    io.rm_xattr("x", "a")
    assert [name for name, _ in io.get_xattrs("x")] == ["b", "long"]


def listing(io):
    names = {f"l{n}" for n in range(2500)}
    done = [io.aio_write(name, b"x") for name in names]
    io.aio_flush()
    assert all(completion.is_complete() for completion in done)
    io.set_namespace("space")
    assert io.get_namespace() == "space"
    io.write("in space", b"")
    assert [(o.key, o.nspace) for o in io.list_objects()] == [("in space", "space")]
    io.set_namespace(rados.LIBRADOS_ALL_NSPACES)
    assert {"in space", *names} <= {o.key for o in io.list_objects()}
    io.set_namespace("")
    listed = [o.key for o in io.list_objects()]
    assert len(listed) == len(set(listed)) and names <= set(listed) and "in space" not in listed
    for o in io.list_objects():
        if o.key == "l7":
            assert o.read() == b"x"
    io.set_locator_key("elsewhere")
    io.write("located", b"1")
    assert io.get_locator_key() == "elsewhere"
    io.set_locator_key("")
    assert [o.locator_key for o in io.list_objects() if o.key == "located"] == ["elsewhere"]


def write_ops(io):
    with rados.WriteOpCtx() as op:
        op.new(rados.LIBRADOS_CREATE_EXCLUSIVE)
        op.write_full(b"abc")
        op.append(b"def")
        op.write(b"X", 1)
        # The binding swaps the two values.
        op.zero(2, 2)
        op.truncate(5)
        op.set_xattr("a", b"1")
        op.set_xattr("b", b"2")
        op.rm_xattr("b")
        io.set_omap(op, ("k1", "k2", "k3"), (b"v1", b"", b"v\0v"))
        io.operate_write_op(op, "w", mtime=1_000_000_000)
    assert io.read("w") == b"aX\0\0e"
    assert time.mktime(io.stat("w")[1]) == 1_000_000_000
    assert list(io.get_xattrs("w")) == [("a", b"1")]
    with rados.WriteOpCtx() as op:
        op.new(rados.LIBRADOS_CREATE_EXCLUSIVE)
        fails(rados.ObjectExists, io.operate_write_op, op, "w")
    with rados.WriteOpCtx() as op:
        io.set_omap(op, ("k4",), (b"v4",))
        io.remove_omap_keys(op, ("k1",))
        op.omap_cmp("k2", "", rados.LIBRADOS_CMPXATTR_OP_EQ)
        io.operate_write_op(op, "w")
    with rados.WriteOpCtx() as op:
        io.set_omap(op, ("never",), (b"v4",))
        op.omap_cmp("k3", "other", rados.LIBRADOS_CMPXATTR_OP_EQ)
        assert fails(rados.OSError, io.operate_write_op, op, "w").errno == errno.ECANCELED
    with rados.WriteOpCtx() as op:
        op.remove()
        op.execute("no_such_class", "method", b"")
        refused(io.operate_write_op, op, "w")
    assert io.stat("w")[0] == 5
    with rados.WriteOpCtx() as op:
        op.write_full(b"later")
        completion = io.operate_aio_write_op(op, "w2", mtime=1)
        completion.wait_for_complete_and_cb()
        assert completion.get_return_value() == 0
    assert io.read("w2") == b"later"


def read_ops(io):
    def keys_of(result):
        return [key for key, _ in result]

    with rados.ReadOpCtx() as op:
        entries, code = io.get_omap_vals(op, "", "", 10)
        some, _ = io.get_omap_vals(op, "k2", "", 1)
        keys, _ = io.get_omap_keys(op, "", 2)
        chosen, _ = io.get_omap_vals_by_keys(op, ("k3", "none"))
        assert code == 0
        io.operate_read_op(op, "w")
        assert list(entries) == [("k2", None), ("k3", b"v\0v"), ("k4", b"v4")]
        assert list(some) == [("k3", b"v\0v")]
        assert keys_of(keys) == ["k2", "k3"]
        assert list(chosen) == [("k3", b"v\0v")]
    with rados.ReadOpCtx() as op:
        iterator, _ = io.get_omap_vals(op, "", "", 10)
        fails(rados.ObjectNotFound, io.operate_read_op, op, "none")
        assert list(iterator) == []
    with rados.WriteOpCtx() as op:
        io.remove_omap_range2(op, "k2", "k4")
        io.operate_write_op(op, "w")
    with rados.ReadOpCtx() as op:
        keys, _ = io.get_omap_keys(op, "", 10)
        io.operate_read_op(op, "w")
        assert keys_of(keys) == ["k4"]
    with rados.WriteOpCtx() as op:
        io.clear_omap(op)
        io.operate_write_op(op, "w")
    with rados.ReadOpCtx() as op:
        keys, _ = io.get_omap_keys(op, "", 10)
        io.operate_aio_read_op(op, "w").wait_for_complete()
        assert keys_of(keys) == []


def asynchronous(io):
    seen, event = [], threading.Event()

    def complete(completion, *data):
        # A callback may use the library itself.
        seen.append((completion.get_return_value(), data, io.stat("a")[0]))
        event.set()

    def done(completion, code=0):
        completion.wait_for_complete_and_cb()
        completion.wait_for_safe_and_cb()
        assert completion.is_complete() and completion.is_safe()
        assert completion.get_return_value() == code, completion.get_return_value()
        return completion

    done(io.aio_write("a", b"12345", 0, complete))
    assert event.wait(30) and seen.pop() == (0, (), 5)
    done(io.aio_append("a", b"6"))
    assert done(io.aio_read("a", 4, 1, complete), 4) and seen.pop() == (4, (b"2345",), 6)
    done(io.aio_read("a", 4, 100, complete), 0)
    # The binding does not truncate the data to nothing.
    assert seen.pop()[0] == 0
    done(io.aio_write_full("a", b"full"))
    done(io.aio_writesame("a", b"ab", 4, 4))
    assert io.read("a") == b"fullabab"
    done(io.aio_setxattr("a", "n", b"v"))
    assert io.get_xattr("a", "n") == b"v"
    done(io.aio_rmxattr("a", "n"))
    fails(rados.NoData, io.get_xattr, "a", "n")
    stats = []
    done(io.aio_stat("a", lambda completion, size, mtime: stats.append(size)))
    assert stats == [8]
    done(io.aio_remove("a"))
    done(io.aio_remove("a"), -errno.ENOENT)
    done(io.aio_execute("a", "no_such_class", "method", b"", 8), -errno.EOPNOTSUPP)
    many = [io.aio_write(f"m{n}", struct.pack("<Q", n)) for n in range(500)]
    io.aio_flush()
    assert all(c.is_complete() and c.get_return_value() == 0 for c in many)
    values = {}
    reads = [
        io.aio_read(f"m{n}", 8, 0, lambda completion, data, n=n: values.update({n: data})) for n in range(500)
    ]
    for read in reads:
        done(read, 8)
    assert values == {n: struct.pack("<Q", n) for n in range(500)}


def not_yet(io):
    assert list(io.list_snaps()) == []
    fails(rados.ObjectNotFound, io.lookup_snap, "s")
    fails(rados.ObjectNotFound, io.remove_snap, "s")
    refused(io.create_snap, "s")
    refused(io.create_self_managed_snap)


def watches(io):
    heard, lost = [], threading.Event()
    fails(rados.ObjectNotFound, io.watch, "absent", print)
    io.write_full("w", b"x")
    watch = io.watch("w", lambda *told: heard.append(told), lambda *error: lost.set(), 30)
    assert watch.check().total_seconds() < 30 and watch.get_id() > 0
    assert io.notify("w", "hello", 5000)
    (notify_id, notifier, watch_id, data), = heard
    assert notify_id > 0 and notifier > 0 and watch_id == watch.get_id() and data == b"hello", heard

    answered, done = [], threading.Event()

    def complete(completion, code, acks, timeouts):
        answered.append((code, acks, timeouts))
        done.set()

    io.aio_notify("w", complete, "again", 5000)
    assert done.wait(30)
    (code, acks, timeouts), = answered
    assert code == 0 and len(acks) == 1 and acks[0][:2] == (notifier, watch_id) and not timeouts, answered
    watch.close()
    assert io.notify("w", "nobody") and len(heard) == 2, heard

    # Removing the object ends its watches.
    watch = io.watch("w", print, lambda *error: lost.set())
    io.remove_object("w")
    assert lost.wait(60)
    fails(rados.NotConnected, watch.check)
    watch.close()


def services(c):
    metadata = {"id": "gw", "zone_id": "z"}
    fails(rados.InvalidArgumentError, c.service_daemon_register, "osd", "0", metadata)
    c.service_daemon_register("test", "a", metadata)
    fails(rados.ObjectExists, c.service_daemon_register, "test", "a", metadata)

    def command(prefix, **more):
        code, out, status = c.mon_command(json.dumps({"prefix": prefix, "format": "json", **more}), b"")
        assert code == 0, (code, status)
        return json.loads(out)

    def until(reached):
        deadline = time.time() + 60
        while not reached():
            assert time.time() < deadline, command("service dump")
            time.sleep(0.05)

    daemons = lambda: command("service dump")["services"].get("test", {}).get("daemons", {})
    until(lambda: "a" in daemons())
    daemon = daemons()["a"]
    assert daemon["gid"] == c.get_instance_id() and daemon["addr"] == c.get_addrs(), daemon
    assert daemon["metadata"].items() >= metadata.items() and daemon["metadata"]["hostname"], daemon
    assert "a" in command("status")["servicemap"]["services"]["test"]["daemons"]
    c.service_daemon_update({"busy": "yes"})
    until(lambda: command("service status")["test"]["a"]["status"] == {"busy": "yes"})


def log(c):
    lines, event = [], threading.Event()

    def tell(arg, line, channel, name, who, sec, nsec, seq, level, message):
        lines.append((arg, channel, who, level, message))
        if message == b"from the test":
            event.set()

    c.monitor_log2("info", tell, 7)
    assert c.mon_command(json.dumps({"prefix": "log", "logtext": ["from", "the", "test"]}), b"")[0] == 0
    assert event.wait(30), lines
    assert any(line[0] == 7 and line[3] == b"[INF]" and line[4] == b"from the test" for line in lines), lines
    c.monitor_log2("info")


def main():
    configuration()
    with rados.Rados(conffile="") as c:
        pools(c)
        cluster(c)
        with c.open_ioctx("it") as io:
            for part in [applications, data, guards, xattrs, listing, write_ops, read_ops, asynchronous, watches, not_yet]:
                part(io)
            stats = io.get_stats()
            assert set(stats) >= {"num_bytes", "num_objects", "num_rd", "num_wr"}, stats
        services(c)
        log(c)
        c.delete_pool("it")
        assert not c.pool_exists("it")
    print("done")


main()
