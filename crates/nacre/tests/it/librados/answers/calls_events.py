"""Calls for compound operations, omap, locks, watches, applications and the cluster log."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint64, c_void_p, create_string_buffer

from capi import Completion, Texts, aio, call, command, created, ioctx, raw, show, until


def write(io, oid, flags, *parts):
    """A compound write of `(function, arguments…)`. Returns its code."""
    op = c_void_p(raw("create_write_op"))
    for name, *args in parts:
        raw("write_op_" + name, op, *args)
    code = raw("write_op_operate", op, io, oid, None, flags)
    raw("release_write_op", op)
    return code


def read(io, oid, flags, *parts):
    op = c_void_p(raw("create_read_op"))
    for name, *args in parts:
        raw("read_op_" + name, op, *args)
    code = raw("read_op_operate", op, io, oid, flags)
    raw("release_read_op", op)
    return code


def pairs(iterator):
    key, value, key_len, value_len = c_void_p(), c_void_p(), c_size_t(), c_size_t()
    found = []
    while raw("omap_get_next2", iterator, byref(key), byref(value), byref(key_len), byref(value_len)) == 0 and key.value:
        found.append((ctypes.string_at(key, key_len.value), ctypes.string_at(value, value_len.value) if value.value else b""))
    return found


def compound(pool):
    """Compound operations with every flag, and with parts that fail."""
    cluster = created()
    io = ioctx(cluster, pool)
    show("empty write", write(io, b"c", 0))
    show("empty read", read(io, b"c", 0))
    for flag in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 1 << 30):
        show(f"write with flag {flag}", write(io, b"c", flag, ("write_full", b"abc", 3)))
        length, code, buffer = c_size_t(), c_int(), create_string_buffer(16)
        got = read(io, b"c", flag, ("read", 0, 16, buffer, byref(length), byref(code)))
        show(f"read with flag {flag}", (got, length.value, code.value, buffer.value))
    for flag in (1, 2, 4, 8, 16, 32, 64, 128):
        op = c_void_p(raw("create_write_op"))
        raw("write_op_create", op, 0, None)
        raw("write_op_set_flags", op, flag)
        show(f"create with part flag {flag}", raw("write_op_operate", op, io, b"c", None, 0))
        raw("release_write_op", op)
    show("create exclusive", write(io, b"c", 0, ("create", 1, None)))
    show("create idempotent", write(io, b"c", 0, ("create", 0, b"category")))
    show("create of another kind", write(io, b"c", 0, ("create", 7, None)))
    show("assert_exists", write(io, b"none", 0, ("assert_exists",), ("write", b"x", 1, 0)))
    version = raw("get_last_version", io)
    raw("write_full", io, b"c", b"abc", 3)
    version = raw("get_last_version", io)
    for delta in (-1, 0, 1):
        show(f"assert_version {delta}", write(io, b"c", 0, ("assert_version", version + delta), ("assert_exists",)))
    show("assert_version 0", write(io, b"c", 0, ("assert_version", 0)))
    raw("setxattr", io, b"c", b"n", b"5", 1)
    for operator in range(0, 9):
        for value in (b"4", b"5", b"6", b""):
            show(f"cmpxattr {operator} {value}", write(io, b"c", 0, ("cmpxattr", b"n", operator, value, len(value))))
    show("cmpxattr of none", write(io, b"c", 0, ("cmpxattr", b"none", 1, b"x", 1)))
    code = c_int(9)
    show("cmpext", (write(io, b"c", 0, ("cmpext", b"abd", 3, 0, byref(code))), code.value))
    show("zero truncate append", write(io, b"c", 0, ("append", b"def", 3), ("zero", 1, 2), ("truncate", 5)))
    buffer = create_string_buffer(16)
    show("content", (raw("read", io, b"c", buffer, 16, 0), buffer.raw[:5]))
    show("zero beyond", write(io, b"c", 0, ("zero", 100, 5)))
    show("stat", raw("stat", io, b"c", None, None))
    show("truncate huge", write(io, b"c", 0, ("truncate", 2**63)))
    show("write huge", write(io, b"c", 0, ("write", b"x", 1, 2**63)))
    show("writesame", write(io, b"c", 0, ("writesame", b"ab", 2, 3, 0)))
    show("rmxattr none", write(io, b"c", 0, ("rmxattr", b"none")))
    code = c_int(9)
    show("exec none", (write(io, b"c", 0, ("exec", b"none", b"m", None, 0, byref(code))), code.value))
    show("remove and create", write(io, b"c", 0, ("remove",), ("create", 1, None)))
    show("remove none", write(io, b"none", 0, ("remove",)))
    op = c_void_p(raw("create_write_op"))
    raw("write_op_remove", op)
    raw("write_op_set_flags", op, 2)
    raw("write_op_write", op, b"x", 1, 0)
    show("remove none, failing is right", raw("write_op_operate", op, io, b"none", None, 0))
    raw("release_write_op", op)
    size, stat, length, code = c_uint64(), c_int(7), c_size_t(7), c_int(7)
    show("read of none", (read(io, b"gone", 0, ("stat", byref(size), None, byref(stat)), ("read", 0, 4, buffer, byref(length), byref(code))), stat.value, length.value, code.value))
    raw("write_full", io, b"c", b"0123456789", 10)
    show("read parts", (read(io, b"c", 0, ("stat", byref(size), None, byref(stat)), ("read", 8, 16, buffer, byref(length), byref(code))), size.value, stat.value, length.value, code.value))
    show("read fails first", (read(io, b"c", 0, ("cmpxattr", b"none", 1, b"x", 1), ("read", 0, 4, buffer, byref(length), byref(code)))))
    show("read of a short buffer", (read(io, b"c", 0, ("read", 0, 2**32, buffer, byref(length), byref(code)))))
    out, out_len, code = c_void_p(), c_size_t(), c_int(7)
    show("exec", (read(io, b"c", 0, ("exec", b"hello", b"say_hello", b"x", 1, byref(out), byref(out_len), byref(code))), out_len.value, code.value))
    used = c_size_t()
    show("exec_user_buf short", (read(io, b"c", 0, ("exec_user_buf", b"hello", b"say_hello", b"x", 1, buffer, 3, byref(used), byref(code))), code.value))
    iterator, code = c_void_p(), c_int(7)
    show("getxattrs", (read(io, b"c", 0, ("getxattrs", byref(iterator), byref(code))), code.value))
    raw("getxattrs_end", iterator)
    op = c_void_p(raw("create_write_op"))
    raw("write_op_write_full", op, b"x", 1)
    when = c_uint64(1000000000)
    show("operate with a time", raw("write_op_operate", op, io, b"c", byref(when), 0))
    raw("release_write_op", op)
    time = c_uint64()
    show("its time", (raw("stat", io, b"c", None, byref(time)), time.value))
    raw("remove", io, b"none")
    raw("remove", io, b"c")
    raw("ioctx_destroy", io)
    raw("shutdown", cluster)


def omap(pool):
    """Omaps: paging, prefixes, comparisons, missing entries."""
    cluster = created()
    io = ioctx(cluster, pool)
    keys = [f"k{number}".encode() for number in range(5)] + [b"", b"p\x00q", b"\xff"]
    values = [key + b"v" for key in keys]
    sizes = lambda texts: (c_size_t * len(texts))(*map(len, texts))
    show("omap_set2", write(io, b"m", 0, ("omap_set2", Texts(keys), Texts(values), sizes(keys), sizes(values), len(keys))))
    show("omap_set none", write(io, b"m", 0, ("omap_set", Texts([]), Texts([]), sizes([]), 0)))
    for after, prefix, most in ((b"", b"", 0), (b"", b"", 2), (b"k1", b"", 2), (b"k3", b"", 100), (b"", b"k", 3), (b"", b"none", 3), (b"z", b"", 3), (b"", b"", 2**63), (b"k9", b"k", 9), (b"", b"p", 9)):
        iterator, more, code = c_void_p(), c_ubyte(9), c_int(9)
        got = read(io, b"m", 0, ("omap_get_vals2", after, prefix, most, byref(iterator), byref(more), byref(code)))
        show(f"omap_get_vals2 {after} {prefix} {most}", (got, code.value, more.value, raw("omap_iter_size", iterator), pairs(iterator)))
        raw("omap_get_end", iterator)
    for after, most in ((b"", 0), (b"", 3), (b"k2", 100)):
        iterator, more, code = c_void_p(), c_ubyte(9), c_int(9)
        got = read(io, b"m", 0, ("omap_get_keys2", after, most, byref(iterator), byref(more), byref(code)))
        show(f"omap_get_keys2 {after} {most}", (got, code.value, more.value, [key for key, _ in pairs(iterator)]))
        raw("omap_get_end", iterator)
    wanted = [b"k1", b"none", b"p\x00q", b"k1"]
    iterator, code = c_void_p(), c_int(9)
    got = read(io, b"m", 0, ("omap_get_vals_by_keys2", Texts(wanted), len(wanted), sizes(wanted), byref(iterator), byref(code)))
    show("omap_get_vals_by_keys2", (got, code.value, pairs(iterator)))
    raw("omap_get_end", iterator)
    iterator, more, code = c_void_p(), c_ubyte(9), c_int(9)
    show("omap of none", (read(io, b"none", 0, ("omap_get_vals2", b"", b"", 9, byref(iterator), byref(more), byref(code))), code.value))
    raw("omap_get_end", iterator)
    for operator in range(0, 8):
        for value in (b"k1v", b"k", b"z", b""):
            code = c_int(9)
            show(f"omap_cmp {operator} {value}", (write(io, b"m", 0, ("omap_cmp", b"k1", operator, value, len(value), byref(code))), code.value))
    code = c_int(9)
    show("omap_cmp of none", (write(io, b"m", 0, ("omap_cmp", b"none", 1, b"", 0, byref(code))), code.value))
    show("omap_cmp on none", (write(io, b"none", 0, ("omap_cmp", b"none", 1, b"", 0, byref(code))), code.value))
    show("omap_rm_keys", write(io, b"m", 0, ("omap_rm_keys", Texts([b"k1", b"none"]), 2)))
    show("omap_rm_keys on none", write(io, b"none", 0, ("omap_rm_keys", Texts([b"k1"]), 1)))
    show("omap_rm_range2", write(io, b"m", 0, ("omap_rm_range2", b"k2", 2, b"k4", 2)))
    show("omap_rm_range2 backwards", write(io, b"m", 0, ("omap_rm_range2", b"k4", 2, b"k2", 2)))
    iterator, more, code = c_void_p(), c_ubyte(9), c_int(9)
    read(io, b"m", 0, ("omap_get_keys2", b"", 100, byref(iterator), byref(more), byref(code)))
    show("left", [key for key, _ in pairs(iterator)])
    raw("omap_get_end", iterator)
    show("omap_clear", write(io, b"m", 0, ("omap_clear",)))
    show("omap_clear on none", write(io, b"none", 0, ("omap_clear",)))
    show("none is there", raw("stat", io, b"none", None, None))
    for oid in (b"m", b"none"):
        raw("remove", io, oid)
    raw("ioctx_destroy", io)
    raw("shutdown", cluster)


class Timeval(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("micros", ctypes.c_long)]


def locks(pool):
    """Locks: all results, and the list of holders with short buffers."""
    cluster = created()
    io = ioctx(cluster, pool)
    for args in ((b"n", b"c", b"d", None, 0), (b"n", b"c", b"d", None, 0), (b"n", b"c", b"d", None, 1), (b"n", b"c", b"d", None, 2), (b"n", b"c2", b"d", None, 0), (b"", b"c", b"", None, 0), (b"x", b"", b"", None, 4), (b"y", b"", b"", None, 255)):
        call("lock_exclusive", io, b"l", *args)
    for args in ((b"n", b"c", b"t", b"d", None, 0), (b"s", b"c", b"t", b"d", None, 0), (b"s", b"c", b"t", b"d", None, 0), (b"s", b"c2", b"t", b"", None, 0), (b"s", b"c3", b"other", b"", None, 0), (b"s", b"c", b"t", b"d", None, 1)):
        call("lock_shared", io, b"l", *args)
    show("with a time", raw("lock_exclusive", io, b"l", b"timed", b"c", b"", byref(Timeval(3600, 0)), 0))

    def lockers(name, *rooms, oid=b"l"):
        sizes = [c_size_t(room) for room in rooms]
        places = [create_string_buffer(256) for _ in rooms]
        exclusive = c_int(9)
        code = raw("list_lockers", io, oid, name, byref(exclusive), *[arg for pair in zip(places, map(byref, sizes)) for arg in pair])
        tag, clients, cookies, addrs = (place.raw.rstrip(b"\0") for place in places)
        return code, exclusive.value, tag, cookies, clients.count(b"client."), addrs.count(b":") > 0, sizes[0].value, sizes[2].value

    show("list_lockers n", lockers(b"n", 256, 256, 256, 256))
    show("list_lockers s", lockers(b"s", 256, 256, 256, 256))
    show("list_lockers none", lockers(b"none", 256, 256, 256, 256))
    show("list_lockers on none", lockers(b"n", 256, 256, 256, 256, oid=b"none"))
    show("list_lockers short", lockers(b"s", 1, 1, 1, 1)[0])
    call("unlock", io, b"l", b"n", b"wrong")
    call("unlock", io, b"l", b"n", b"c")
    call("unlock", io, b"l", b"n", b"c")
    call("unlock", io, b"none", b"n", b"c")
    me = f"client.{raw('get_instance_id', cluster)}".encode()
    for client in (b"nonsense", b"", b"client.1", b"client.x", me):
        show(f"break_lock {'own' if client == me else client}", raw("break_lock", io, b"l", b"s", client, b"c"))
    call("break_lock", io, b"none", b"s", b"client.1", b"c")
    raw("remove", io, b"l")
    raw("ioctx_destroy", io)
    raw("shutdown", cluster)


NOTIFIED = CFUNCTYPE(None, c_void_p, c_uint64, c_uint64, c_uint64, c_void_p, c_size_t)
LOST = CFUNCTYPE(None, c_void_p, c_uint64, c_int)


def watches(pool):
    """Watches and notifies, with wrong numbers and times."""
    cluster = created()
    io = ioctx(cluster, pool)
    heard, lost = [], []

    def notified(_, notify, cookie, notifier, data, length):
        heard.append(ctypes.string_at(data, length) if length else b"")
        if heard[-1] != b"silent":
            raw("notify_ack", io, b"w", notify, cookie, b"answer", 6)

    on_notify, on_lost = NOTIFIED(notified), LOST(lambda _, cookie, code: lost.append(code))
    cookie = c_uint64()
    show("watch2 of none", raw("watch2", io, b"none", byref(cookie), on_notify, on_lost, None))
    reply, size = c_void_p(), c_size_t()
    show("notify of none", raw("notify2", io, b"none", b"x", 1, 1000, byref(reply), byref(size)))
    raw("write_full", io, b"w", b"x", 1)

    def notify(data, timeout_ms, oid=b"w"):
        code = raw("notify2", io, oid, data, len(data), timeout_ms, byref(reply), byref(size))
        acks, acked, missed, missing = c_void_p(), c_size_t(), c_void_p(), c_size_t()
        decoded = raw("decode_notify_response", reply, size.value, byref(acks), byref(acked), byref(missed), byref(missing)) if size.value else "-"
        if decoded == 0:
            raw("free_notify_response", acks, acked.value, missed)
        raw("buffer_free", reply)
        return code, decoded, acked.value, missing.value

    show("notify without watchers", notify(b"x", 3000))
    for timeout in (0, 5, 600):
        show(f"watch3 {timeout}", raw("watch3", io, b"w", byref(cookie), on_notify, on_lost, timeout, None))
        show("watch_check", 0 < raw("watch_check", io, cookie.value) < 5000)
        show("notify", notify(b"data", 3000))
        show("empty notify", notify(b"", 3000))
        show("silent notify", notify(b"silent", 1000))
        show("unwatch2", raw("unwatch2", io, cookie.value))
    completion = Completion()
    show("aio_watch2", (raw("aio_watch2", io, b"w", completion.handle, byref(cookie), on_notify, on_lost, 7, None), completion.result()))
    completion = Completion()
    show("aio_notify", (raw("aio_notify", io, b"w", completion.handle, b"x", 1, 3000, byref(reply), byref(size)), completion.result()))
    show("watch_flush", raw("watch_flush", cluster))
    completion = Completion()
    show("aio_watch_flush", (raw("aio_watch_flush", cluster, completion.handle), completion.result()))
    raw("remove", io, b"w")
    show("lost", (until(lambda: bool(lost)), lost))
    show("watch_check of a lost one", raw("watch_check", io, cookie.value))
    completion = Completion()
    show("aio_unwatch of a lost one", (raw("aio_unwatch", io, cookie.value, completion.handle), completion.result()))
    show("heard", heard)
    raw("ioctx_destroy", io)
    raw("shutdown", cluster)


def applications(pool):
    """Applications of a pool and their metadata."""
    cluster = created()
    io = ioctx(cluster, pool)
    for name, force in ((b"", 0), (b"a" * 200, 0), (b"first", 0), (b"first", 0), (b"second", 0), (b"second", 1), (b"a b", 1)):
        call("application_enable", io, name, force)

    def listed(name, *args, rooms=(256,)):
        places, sizes = [create_string_buffer(256) for _ in rooms], [c_size_t(room) for room in rooms]
        code = raw("application_" + name, io, *args, *[arg for pair in zip(places, map(byref, sizes)) for arg in pair])
        return code, [place.raw[: size.value] for place, size in zip(places, sizes)]

    show("list", listed("list"))
    show("list short", listed("list", rooms=(3,))[0])
    for app, key, value in ((b"none", b"k", b"v"), (b"first", b"k", b"v"), (b"first", b"k", b"v2"), (b"first", b"", b"v"), (b"first", b"e", b""), (b"first", b"k" * 200, b"v")):
        call("application_metadata_set", io, app, key, value)
    for app, key in ((b"first", b"k"), (b"first", b"none"), (b"none", b"k")):
        show(f"metadata_get {app} {key}", listed("metadata_get", app, key)[0])
    show("metadata_get short", listed("metadata_get", b"first", b"k", rooms=(1,))[0])
    show("metadata_list", listed("metadata_list", b"first", rooms=(256, 256)))
    show("metadata_list none", listed("metadata_list", b"none", rooms=(256, 256))[0])
    show("metadata_list short", listed("metadata_list", b"first", rooms=(1, 1))[0])
    for app, key in ((b"first", b"k"), (b"first", b"k"), (b"none", b"k")):
        call("application_metadata_remove", io, app, key)
    stats = (c_uint64 * 32)()
    show("pool_stat", raw("ioctx_pool_stat", io, stats))
    show("cluster_stat", (raw("cluster_stat", cluster, stats), stats[0] > 0, stats[0] >= stats[1] + stats[2] - 1))
    raw("ioctx_destroy", io)
    raw("shutdown", cluster)


LOGGED = CFUNCTYPE(None, c_void_p, c_char_p, c_char_p, c_char_p, c_char_p, c_uint64, c_uint64, c_uint64, c_char_p, c_char_p)


def log(pool):
    """A follower of the log gets the last entry of each channel, and then new ones of all channels."""
    cluster = created()
    say = lambda text, level="info": command("mon_command", cluster, ('{"prefix": "log", "level": "%s", "logtext": ["%s"]}' % (level, text)).encode())
    entries = []
    callback = LOGGED(lambda _, line, channel, who, name, sec, nsec, seq, level, text: entries.append((channel, name, level, text, line)))
    for level in (b"nonsense", b"warning", b"err", b"sec"):
        call("monitor_log2", cluster, level, callback, None)
        raw("monitor_log2", cluster, b"info", None, None)
    code, _, _ = say("before it is followed")
    listed = lambda channel: command("mon_command", cluster, ('{"prefix": "log last", "num": 1, "level": "info", "channel": "%s", "format": "json"}' % channel).encode())[1]
    show("settled", until(lambda: b"before it is followed" in listed("cluster") and b"before it is followed" in listed("audit")))
    entries.clear()
    call("monitor_log2", cluster, b"info", callback, None)
    has = lambda channel, text: any(entry[0] == channel and text in entry[3] for entry in entries)
    show("last of cluster", until(lambda: has(b"cluster", b"before it is followed")))
    show("last of audit", until(lambda: has(b"audit", b"before it is followed")))
    say("while it is followed")
    show("next of cluster", until(lambda: has(b"cluster", b"while it is followed")))
    show("next of audit", until(lambda: has(b"audit", b"while it is followed")))
    entry = next(entry for entry in entries if entry[3] == b"while it is followed")
    show("entry", (entry[:4], entry[4].split(b" ", 1)[1]))
    raw("monitor_log2", cluster, b"info", None, None)
    raw("shutdown", cluster)


PARTS = [compound, omap, locks, watches, applications, log]
