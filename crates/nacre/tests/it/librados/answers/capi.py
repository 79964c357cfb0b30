"""librados' C interface by ctypes, with each call and its result printed as one line.

The programs of this folder print the same lines for the same behaviour, with any librados."""

import ctypes
import json
import time
from ctypes import POINTER, byref, c_char_p, c_int, c_int8, c_int64, c_long, c_size_t, c_ubyte, c_uint64, c_void_p

lib = ctypes.CDLL("librados.so.2")
LONG = {"rados_pool_lookup", "rados_ioctx_get_id", "rados_list_lockers"}
UNSIGNED = {"rados_get_instance_id", "rados_get_last_version", "rados_ioctx_pool_required_alignment"}
UNSIGNED |= {"rados_aio_get_version"}
UINT32 = {"rados_nobjects_list_get_pg_hash_position", "rados_nobjects_list_seek", "rados_nobjects_list_seek_cursor"}
UINT32 |= {"rados_objects_list_get_pg_hash_position", "rados_objects_list_seek", "rados_omap_iter_size"}
POINTERS = {"rados_create_write_op", "rados_create_read_op", "rados_object_list_begin", "rados_object_list_end"}
POINTERS |= {"rados_cct", "rados_ioctx_cct", "rados_ioctx_get_cluster"}
NOTHING = {"rados_shutdown", "rados_version", "rados_ioctx_destroy", "rados_ioctx_set_namespace"}


def restype(name):
    for names, kind in ((NOTHING, None), (LONG, c_int64), (UNSIGNED, c_uint64), (UINT32, ctypes.c_uint32), (POINTERS, c_void_p)):
        if name in names:
            return kind
    return c_int


def plain(arg):
    """An argument as ctypes passes it: numbers with 64 bits, so that the upper half is always defined."""
    if isinstance(arg, bool) or isinstance(arg, int):
        return c_uint64(arg & (2**64 - 1))
    return arg


def raw(name, *args):
    """Calls a function and prints nothing."""
    function = getattr(lib, "rados_" + name)
    function.restype = restype("rados_" + name)
    return function(*[plain(arg) for arg in args])


def shown(arg):
    if isinstance(arg, bytes):
        text = arg.decode("utf-8", "backslashreplace")
        if len(text) > 60:
            text = f"{text[:4]}...{len(arg)}"
        return json.dumps(text)
    if arg is None:
        return "NULL"
    if isinstance(arg, int):
        return str(arg)
    return "_"


def show(label, value):
    """Prints one result."""
    if isinstance(value, bytes):
        value = shown(value)
    print(f"{label}: {value}", flush=True)


def call(name, *args):
    """Calls a function and prints its arguments and result."""
    result = raw(name, *args)
    kept = [shown(arg) for arg in args]
    show(f"{name}({', '.join(kept)})", result)
    return result


class Texts:
    """A C array of texts."""

    def __new__(cls, texts):
        return (c_char_p * max(len(texts), 1))(*texts)


def handle(name, *args, note=True):
    """Calls a function whose last argument is the place for a handle."""
    place = c_void_p()
    code = call(name, *args, byref(place)) if note else raw(name, *args, byref(place))
    return place if code >= 0 else None


def created(name=b"admin", configured=True, connected=True):
    cluster = c_void_p()
    assert raw("create", byref(cluster), name) == 0
    if configured:
        assert raw("conf_read_file", cluster, None) == 0
    if connected:
        code = raw("connect", cluster)
        assert code == 0, code
    return cluster


def ioctx(cluster, pool):
    io = c_void_p()
    code = raw("ioctx_create", cluster, pool, byref(io))
    assert code == 0, code
    return io


def command(function, cluster, text, *target, data=b"", mask=None):
    """Runs a command of `function` (`mon_command` and so on). Returns code, output and status."""
    out, status = c_void_p(), c_void_p()
    out_len, status_len = c_size_t(99), c_size_t(99)
    cmd = Texts([text])
    results = byref(out), byref(out_len), byref(status), byref(status_len)
    code = raw(function, cluster, *target, cmd, 1, data, len(data), *results)
    output = ctypes.string_at(out, out_len.value) if out.value else b""
    said = ctypes.string_at(status, status_len.value) if status.value else b""
    for place in (out, status):
        if place.value:
            raw("buffer_free", place)
    return code, output, said


def until(reached, seconds=60):
    deadline = time.time() + seconds
    while not reached():
        if time.time() > deadline:
            return False
        time.sleep(0.02)
    return True


class Completion:
    """An asynchronous call, and the wait for it."""

    def __init__(self):
        self.handle = c_void_p()
        assert raw("aio_create_completion2", None, None, byref(self.handle)) == 0

    def result(self):
        raw("aio_wait_for_complete", self.handle)
        code = raw("aio_get_return_value", self.handle)
        raw("aio_release", self.handle)
        return code


def aio(name, io, oid, *args, after=True):
    """Runs an asynchronous call. Prints its result and that of its completion."""
    completion = Completion()
    code = raw(name, io, oid, completion.handle, *args)
    end = completion.result() if code >= 0 else "-"
    kept = [shown(arg) for arg in (oid, *args)]
    show(f"{name}({', '.join(kept)})", f"{code} then {end}")
