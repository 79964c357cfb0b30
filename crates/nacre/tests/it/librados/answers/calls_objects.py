"""Calls for objects: data, attributes, omap, compound operations, locks, classes, lists."""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_long, c_size_t, c_ubyte, c_uint64, c_void_p, create_string_buffer

from capi import Completion, Texts, aio, call, created, ioctx, raw, show

HUGE = 2**32
MANY = 2**63 - 1


def content(io, oid):
    buffer = create_string_buffer(4096)
    code = raw("read", io, oid, buffer, 4096, 0)
    return buffer.raw[:code] if code >= 0 else code


def names(pool):
    """Names of objects, namespaces, locators and attributes."""
    cluster = created()
    io = ioctx(cluster, pool)
    for oid in (b"", b"a b", b"a/b", b".", b"..", b"a\x01b", b"a\nb", "ü".encode(), b"\xff\xfe", b"n" * 255, b"n" * 256, b"n" * 2048, b"n" * 2049,
                b"n" * 5000):
        call("write_full", io, oid, b"x", 1)
        call("stat", io, oid, None, None)
        call("read", io, oid, create_string_buffer(4), 4, 0)
        call("remove", io, oid)
    buffer = create_string_buffer(8192)
    for space in (b"", b"a", b"a b", b"s" * 256, b"s" * 257, b"s" * 3000, "ü".encode(), b"\x01"):
        call("ioctx_set_namespace", io, space)
        for length in (0, len(space), len(space) + 1):
            show(f"ioctx_get_namespace length {length}", raw("ioctx_get_namespace", io, buffer, length))
        call("write_full", io, b"o", b"x", 1)
        call("read", io, b"o", create_string_buffer(4), 4, 0)
        call("remove", io, b"o")
    raw("ioctx_set_namespace", io, None)
    show("namespace after null", raw("ioctx_get_namespace", io, buffer, 10))
    for key in (b"", b"k", b"k" * 2048, b"k" * 2049, b"k" * 5000):
        raw("ioctx_locator_set_key", io, key)
        show(f"write at locator {len(key)}", raw("write_full", io, b"o", b"x", 1))
        show(f"read at locator {len(key)}", raw("read", io, b"o", create_string_buffer(4), 4, 0))
        show(f"remove at locator {len(key)}", raw("remove", io, b"o"))
    raw("ioctx_locator_set_key", io, None)
    raw("write_full", io, b"o", b"x", 1)
    for name in (b"", b"a", b"a b", b"a" * 255, b"a" * 256, b"a" * 257, "ü".encode(), b"_", b"\xff", b"a\x01"):
        call("setxattr", io, b"o", name, b"value", 5)
        call("getxattr", io, b"o", name, buffer, 100)
        call("getxattr", io, b"o", name, buffer, 2)
        call("getxattr", io, b"o", name, buffer, 0)
        call("rmxattr", io, b"o", name)
        call("rmxattr", io, b"o", name)
    for size in (0, 65536, 65537, 1 << 20):
        show(f"setxattr of {size}", raw("setxattr", io, b"o", b"big", b"v" * size, size))
        show("getxattr", raw("getxattr", io, b"o", b"big", buffer, 8192))
    call("getxattr", io, b"none", b"a", buffer, 10)
    call("setxattr", io, b"made", b"a", b"v", 1)
    show("made", content(io, b"made"))
    call("rmxattr", io, b"none", b"a")
    place = c_void_p()
    call("getxattrs", io, b"none", byref(place))
    show("getxattrs", raw("getxattrs", io, b"made", byref(place)))
    name, value, size = c_char_p(), c_char_p(), c_size_t()
    for _ in range(3):
        show("getxattrs_next", (raw("getxattrs_next", place, byref(name), byref(value), byref(size)), name.value, size.value))
    raw("getxattrs_end", place)
    for oid in (b"o", b"made"):
        raw("remove", io, oid)
    raw("ioctx_destroy", io)
    raw("shutdown", cluster)


def data(pool):
    """Reads and writes with unusual offsets and sizes."""
    cluster = created()
    io = ioctx(cluster, pool)
    buffer = create_string_buffer(8192)
    call("read", io, b"none", buffer, 10, 0)
    call("read", io, b"none", buffer, 0, 0)
    call("stat", io, b"none", None, None)
    call("remove", io, b"none")
    call("trunc", io, b"none", 0)
    call("trunc", io, b"none", 10)
    call("append", io, b"d", b"abc", 3)
    show("content", content(io, b"d"))
    call("write", io, b"d", b"xyz", 3, 5)
    show("content", content(io, b"d"))
    call("write", io, b"d", None, 0, 0)
    for length, offset in ((0, 0), (3, 0), (8, 0), (100, 0), (5, 6), (5, 8), (5, 1000), (5, HUGE), (5, MANY), (5, 2**64 - 1), (2**31 - 1, 0)):
        if length < 8192:
            call("read", io, b"d", buffer, length, offset)
    call("read", io, b"d", buffer, 2**31, 0)
    call("read", io, b"d", buffer, HUGE, 0)
    call("write", io, b"d", b"x", 2**31, 0)
    call("write", io, b"d", b"x", HUGE, 0)
    call("append", io, b"d", b"x", 2**31)
    call("write_full", io, b"d", b"x", 2**31)
    for offset in (2**27 - 1, 2**27, 2**32, 2**40, MANY, 2**64 - 1):
        call("write", io, b"far", b"x", 1, offset)
        call("trunc", io, b"far", offset)
    call("remove", io, b"far")
    call("trunc", io, b"d", 4)
    show("content", content(io, b"d"))
    call("trunc", io, b"d", 12)
    show("content", content(io, b"d"))
    call("write_full", io, b"d", b"full", 4)
    size, time = c_uint64(), c_long()
    show("stat", (raw("stat", io, b"d", byref(size), byref(time)), size.value, time.value > 1600000000))
    call("write_full", io, b"d", b"", 0)
    show("content", content(io, b"d"))
    for given, length, offset in ((b"ab", 8, 0), (b"ab", 7, 0), (b"ab", 0, 0), (b"", 8, 0), (b"ab", 2, 100), (b"ab", 1, 0), (b"a", HUGE, 0)):
        call("writesame", io, b"same", given, len(given), length, offset)
    call("remove", io, b"same")
    raw("write_full", io, b"d", b"0123456789", 10)
    for given, offset in ((b"0123", 0), (b"0124", 0), (b"89", 8), (b"89a", 8), (b"", 0), (b"x", 100), (b"\0", 100)):
        call("cmpext", io, b"d", given, len(given), offset)
    call("cmpext", io, b"none", b"x", 1, 0)
    call("cmpext", io, b"none", b"\0", 1, 0)
    for kind, init in ((0, b"\0" * 4), (1, b"\0" * 8), (2, b"\xff" * 4), (2, b"\0" * 8), (1, b"\0" * 4), (3, b"\0" * 4), (-1, b"")):
        for length, offset, chunk, room in ((10, 0, 0, 64), (10, 0, 5, 64), (10, 0, 3, 64), (10, 0, 20, 64), (0, 0, 0, 64), (20, 0, 0, 64), (10, 100, 0, 64), (10, 0, 0, 4), (10, 0, 5, 5)):
            answer = create_string_buffer(64)
            code = raw("checksum", io, b"d", kind, init, len(init), length, offset, chunk, answer, room)
            show(f"checksum {kind} {len(init)} {length}~{offset} by {chunk} room {room}", f"{code} {answer.raw[:20].hex()}")
    answer = create_string_buffer(64)
    show("checksum none", raw("checksum", io, b"none", 2, b"\0" * 4, 4, 0, 0, 0, answer, 64))
    for cls, method, given in ((b"none", b"m", b""), (b"lock", b"none", b""), (b"lock", b"get_info", b"nonsense"), (b"", b"", b""), (b"hello", b"say_hello", b"x"), (b"hello", b"record_hello", b"x"),
                               (b"numops", b"add", b""), (b"version", b"read", b""), (b"refcount", b"read", b""), (b"rbd", b"get_id", b""), (b"log", b"info", b""), (b"user", b"get_header", b""), (b"timeindex", b"list", b"")):
        show(f"exec {cls} {method}", raw("exec", io, b"d", cls, method, given, len(given), buffer, 64))
        show(f"exec {cls} {method} on none", raw("exec", io, b"none", cls, method, given, len(given), buffer, 64))
    show("exec short", raw("exec", io, b"d", b"hello", b"say_hello", b"x", 1, buffer, 3))
    for size, write, flags in ((0, 0, 0), (4096, 4096, 0), (4096, 8192, 1), (2**63, 2**63, 2**31)):
        call("set_alloc_hint", io, b"hinted", size, write)
        call("set_alloc_hint2", io, b"hinted", size, write, flags)
    show("hinted", content(io, b"hinted"))
    call("cache_pin", io, b"d")
    call("cache_unpin", io, b"d")
    call("cache_pin", io, b"none")
    raw("remove", io, b"hinted")
    show("last version", raw("get_last_version", io) > 0)
    call("remove", io, b"d")
    call("remove", io, b"d")
    raw("ioctx_destroy", io)
    raw("shutdown", cluster)


def asynchronous(pool):
    """The asynchronous variants."""
    cluster = created()
    io = ioctx(cluster, pool)
    buffer = create_string_buffer(64)
    aio("aio_write", io, b"a", b"hello", 5, 0)
    aio("aio_append", io, b"a", b"!", 1)
    aio("aio_write_full", io, b"b", b"full", 4)
    aio("aio_writesame", io, b"b", b"ab", 2, 4, 4)
    aio("aio_writesame", io, b"b", b"ab", 2, 3, 0)
    aio("aio_writesame", io, b"b", b"", 0, 3, 0)
    aio("aio_read", io, b"a", buffer, 64, 0)
    aio("aio_read", io, b"a", buffer, 64, 100)
    aio("aio_read", io, b"a", buffer, 2**31, 0)
    aio("aio_write", io, b"a", b"x", 2**31, 0)
    aio("aio_append", io, b"a", b"x", 2**31)
    aio("aio_write_full", io, b"a", b"x", 2**31)
    aio("aio_read", io, b"none", buffer, 64, 0)
    aio("aio_write", io, b"", b"x", 1, 0)
    aio("aio_write", io, b"n" * 3000, b"x", 1, 0)
    size, time = c_uint64(), c_long()
    aio("aio_stat", io, b"a", byref(size), byref(time))
    show("size", size.value)
    aio("aio_stat", io, b"none", byref(size), byref(time))
    aio("aio_stat", io, b"a", None, None)
    aio("aio_cmpext", io, b"a", b"hello", 5, 0)
    aio("aio_cmpext", io, b"a", b"hellO", 5, 0)
    aio("aio_cmpext", io, b"none", b"x", 1, 0)
    aio("aio_setxattr", io, b"a", b"n", b"v", 1)
    aio("aio_getxattr", io, b"a", b"n", buffer, 64)
    aio("aio_getxattr", io, b"a", b"n", buffer, 0)
    aio("aio_getxattr", io, b"a", b"none", buffer, 64)
    aio("aio_rmxattr", io, b"a", b"n")
    aio("aio_rmxattr", io, b"a", b"n")
    place = c_void_p()
    aio("aio_getxattrs", io, b"a", byref(place))
    raw("getxattrs_end", place)
    aio("aio_getxattrs", io, b"none", byref(c_void_p()))
    aio("aio_exec", io, b"a", b"hello", b"say_hello", b"x", 1, buffer, 64)
    aio("aio_exec", io, b"a", b"hello", b"say_hello", b"x", 1, buffer, 3)
    aio("aio_exec", io, b"a", b"none", b"m", None, 0, buffer, 64)
    aio("aio_remove", io, b"b")
    aio("aio_remove", io, b"b")
    completion = Completion()
    show("aio_unlock", (raw("aio_unlock", io, b"a", b"l", b"c", completion.handle), completion.result()))
    show("aio_flush", raw("aio_flush", io))
    completion = Completion()
    show("aio_flush_async", (raw("aio_flush_async", io, completion.handle), completion.result()))
    completion = Completion()
    raw("aio_write", io, b"a", completion.handle, b"x", 1, 0)
    for name in ("aio_wait_for_complete", "aio_wait_for_safe", "aio_wait_for_complete_and_cb", "aio_wait_for_safe_and_cb", "aio_is_complete", "aio_is_safe",
                 "aio_is_complete_and_cb", "aio_is_safe_and_cb", "aio_get_return_value"):
        show(name, raw(name, completion.handle))
    show("aio_cancel of a done one", raw("aio_cancel", io, completion.handle))
    show("aio_get_version", raw("aio_get_version", completion.handle) > 0)
    raw("aio_release", completion.handle)
    raw("remove", io, b"a")
    raw("ioctx_destroy", io)
    raw("shutdown", cluster)


def lists(pool):
    """Listing: order of calls, cursors, namespaces, missing objects."""
    cluster = created()
    io = ioctx(cluster, pool)
    for number in range(7):
        raw("write_full", io, f"l{number}".encode(), b"x", 1)
    raw("ioctx_set_namespace", io, b"space")
    raw("ioctx_locator_set_key", io, b"key")
    raw("write_full", io, b"other", b"x", 1)
    raw("ioctx_locator_set_key", io, None)

    def listed(list_, limit=100):
        found, name, key, space = [], c_char_p(), c_char_p(), c_char_p()
        code = 0
        while len(found) < limit:
            code = raw("nobjects_list_next", list_, byref(name), byref(key), byref(space))
            if code < 0:
                break
            found.append((name.value, key.value, space.value))
        return found, code

    for space in (None, b"space", b"none", b"\x01"):
        raw("ioctx_set_namespace", io, space)
        list_ = c_void_p()
        call("nobjects_list_open", io, byref(list_))
        show("position", raw("nobjects_list_get_pg_hash_position", list_))
        found, code = listed(list_)
        show(f"listed of {space}", (found, code))
        show("position", raw("nobjects_list_get_pg_hash_position", list_))
        show("again", listed(list_)[1])
        show("seek", raw("nobjects_list_seek", list_, 0))
        show("from the begin", len(listed(list_)[0]))
        show("seek far", raw("nobjects_list_seek", list_, 5))
        show("from there", [name for name, _, _ in listed(list_)[0]])
        raw("nobjects_list_close", list_)
    raw("ioctx_set_namespace", io, None)
    begin, end = c_void_p(raw("object_list_begin", io)), c_void_p(raw("object_list_end", io))
    show("is_end", (raw("object_list_is_end", io, begin), raw("object_list_is_end", io, end)))
    show("cmp", [raw("object_list_cursor_cmp", io, a, b) for a in (begin, end) for b in (begin, end)])

    class Item(ctypes.Structure):
        _fields_ = [("oid_length", c_size_t), ("oid", c_void_p), ("nspace_length", c_size_t), ("nspace", c_char_p), ("locator_length", c_size_t), ("locator", c_char_p)]

    position, names = begin, []
    for size in (1, 3, 100, 1):
        items, then = (Item * 128)(), c_void_p(raw("object_list_begin", io))
        code = raw("object_list", io, position, end, size, None, 0, items, byref(then))
        names += [ctypes.string_at(item.oid, item.oid_length) for item in items[:max(code, 0)]]
        show(f"object_list of {size}", (code, raw("object_list_is_end", io, then)))
        position = then
    show("object_list", names)
    items, then = (Item * 128)(), c_void_p(raw("object_list_begin", io))
    show("object_list with a filter", raw("object_list", io, begin, end, 10, b"plain", 5, items, byref(then)))
    counts = []
    for part in range(3):
        start, finish = c_void_p(raw("object_list_begin", io)), c_void_p(raw("object_list_begin", io))
        raw("object_list_slice", io, begin, end, part, 3, byref(start), byref(finish))
        counts.append(raw("object_list", io, start, finish, 100, None, 0, items, byref(then)))
    show("slices", counts)
    list_, cursor = c_void_p(), c_void_p()
    raw("nobjects_list_open", io, byref(list_))
    first = listed(list_, 3)[0]
    show("get_cursor", raw("nobjects_list_get_cursor", list_, byref(cursor)))
    rest = listed(list_)[0]
    raw("nobjects_list_seek_cursor", list_, cursor)
    show("from the cursor", listed(list_)[0] == rest)
    raw("nobjects_list_seek_cursor", list_, end)
    show("from the end", listed(list_))
    raw("nobjects_list_close", list_)
    for number in range(7):
        raw("remove", io, f"l{number}".encode())
    raw("ioctx_set_namespace", io, b"space")
    raw("ioctx_locator_set_key", io, b"key")
    raw("remove", io, b"other")
    raw("ioctx_destroy", io)
    raw("shutdown", cluster)


def snapshots(pool):
    """Snapshots. The pool has none."""
    cluster = created()
    io = ioctx(cluster, pool)
    ids = (c_uint64 * 8)()
    number, time = c_uint64(), c_long()
    for room in (0, 8):
        show(f"ioctx_snap_list {room}", raw("ioctx_snap_list", io, ids, room))
    show("ioctx_snap_lookup", raw("ioctx_snap_lookup", io, b"none", byref(number)))
    show("ioctx_snap_get_name", raw("ioctx_snap_get_name", io, 5, create_string_buffer(64), 64))
    show("ioctx_snap_get_stamp", raw("ioctx_snap_get_stamp", io, 5, byref(time)))
    show("ioctx_snap_remove", raw("ioctx_snap_remove", io, b"none"))
    raw("write_full", io, b"s", b"x", 1)
    show("ioctx_snap_rollback", raw("ioctx_snap_rollback", io, b"s", b"none"))
    show("rollback", raw("rollback", io, b"s", b"none"))
    raw("ioctx_snap_set_read", io, 99)
    show("write in a snapshot", raw("write_full", io, b"s", b"x", 1))
    show("read in a snapshot", raw("read", io, b"s", create_string_buffer(4), 4, 0))
    raw("ioctx_snap_set_read", io, 2**64 - 2)
    show("read of the head", raw("read", io, b"s", create_string_buffer(4), 4, 0))
    show("set_write_ctx none", raw("ioctx_selfmanaged_snap_set_write_ctx", io, 0, ids, 0))
    show("write with it", raw("write_full", io, b"s", b"y", 1))
    descending = (c_uint64 * 2)(1, 2)
    show("set_write_ctx wrong", raw("ioctx_selfmanaged_snap_set_write_ctx", io, 1, descending, 2))
    raw("remove", io, b"s")
    raw("ioctx_destroy", io)
    raw("shutdown", cluster)


PARTS = [names, data, asynchronous, lists, snapshots]
