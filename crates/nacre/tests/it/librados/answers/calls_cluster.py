"""Calls about handles, configuration, pools and commands."""

import json
import os
import re
from ctypes import byref, c_char_p, c_int, c_int8, c_int64, c_size_t, c_void_p, create_string_buffer

from capi import Texts, call, command, created, ioctx, raw, show

# Options that programs read or set, with values that are the same on every cluster.
OPTIONS = """
    auth_supported auth_client_required client_mount_timeout rados_osd_op_timeout rados_mon_op_timeout objecter_timeout
    objecter_inflight_ops objecter_inflight_op_bytes objecter_tick_interval err_to_stderr log_to_stderr log_to_syslog
    clog_to_monitors clog_to_syslog log_flush_on_exit log_max_recent log_max_new ms_type ms_dispatch_throttle_bytes
    ms_tcp_nodelay ms_crc_data librados_thread_count rbd_cache rbd_cache_size rbd_default_format rbd_default_features
    rbd_concurrent_management_ops rbd_cache_writethrough_until_flush rgw_frontends osd_pool_default_size
    osd_pool_default_pg_num osd_max_object_name_len osd_client_watch_timeout perf debug_rados debug_objecter debug_ms
    heartbeat_interval no_config_file lockdep fatal_signal_handlers objecter_completion_locks_per_session
    osd_pool_default_min_size osd_crush_chooseleaf_type mon_client_hunt_interval client_cache_size setuser daemonize
    no_such_option
""".split()


def get(cluster, name, length=200):
    buffer = create_string_buffer(length + 1)
    code = raw("conf_get", cluster, name, buffer, length)
    return buffer.value.decode() if code == 0 else code


def unconnected(pool):
    """Calls without a session, except those that crash Ceph's library or hang in it."""
    numbers = [c_int(-1), c_int(-1), c_int(-1)]
    raw("version", *map(byref, numbers))
    show("version", [number.value for number in numbers])
    for name, cluster in ((b"client.admin", b""), (b"admin", None), (b"", None), (b"osd.x", b"c"), (b"client.", b"ceph"),
                          (b"mds.a", None), (b"nonsense.a", None)):
        made = c_void_p()
        code = raw("create2", byref(made), cluster, name, 0)
        show(f"create2({cluster!r}, {name!r})", code)
        if code == 0:
            raw("shutdown", made)
    for name in (b"", b"a", b"client.admin", b"a b", b"x" * 300):
        made = c_void_p()
        code = raw("create", byref(made), name)
        show(f"create({name[:20]!r})", code)
        if code == 0:
            raw("shutdown", made)
    cluster = created(configured=False, connected=False)
    buffer = create_string_buffer(64)
    for length in (0, 1, 36, 37, 64):
        call("cluster_fsid", cluster, buffer, length)
    show("fsid", buffer.value)
    raw("conf_read_file", cluster, None)
    show("fsid configured", call("cluster_fsid", cluster, buffer, 64) and buffer.value)
    call("get_instance_id", cluster)
    call("pool_list", cluster, buffer, 64)
    call("pool_list", cluster, None, 0)
    call("pool_lookup", cluster, pool)
    call("pool_reverse_lookup", cluster, 1, buffer, 64)
    call("pool_create", cluster, b"p")
    call("pool_delete", cluster, b"p")
    call("pool_get_base_tier", cluster, 1, byref(c_int64()))
    call("ioctx_create", cluster, pool, byref(c_void_p()))
    call("ioctx_create2", cluster, 1, byref(c_void_p()))
    call("get_min_compatible_osd", cluster, byref(c_int8()))
    call("get_min_compatible_client", cluster, byref(c_int8()), byref(c_int8()))
    call("monitor_log", cluster, b"info", None, None)
    call("service_update_status", cluster, b"a\0b\0\0")
    show("service_register", raw("service_register", cluster, b"probe0", b"a", b"k\0v\0\0"))
    show("service_register again", raw("service_register", cluster, b"probe0", b"a", b"k\0v\0\0"))
    call("ping_monitor", cluster, b"nobody", byref(c_void_p()), byref(c_size_t()))
    call("ping_monitor", cluster, b"", byref(c_void_p()), byref(c_size_t()))
    raw("shutdown", cluster)
    stranger = created(b"stranger", connected=False)
    raw("conf_set", stranger, b"keyring", b"/nonexistent")
    raw("conf_set", stranger, b"auth_client_required", b"cephx")
    call("connect", stranger)
    raw("shutdown", stranger)
    lost = created(configured=False, connected=False)
    raw("conf_set", lost, b"client_mount_timeout", b"1")
    call("connect", lost)
    raw("shutdown", lost)


def configuration(pool):
    """Reads and sets options: by file, by words, by environment."""
    cluster = created(configured=False, connected=False)
    for option in OPTIONS:
        show(f"conf_get({option})", get(cluster, option.encode()))
    for option, value in (
        ("rados_osd_op_timeout", "7"), ("rados_osd_op_timeout", "soon"), ("rados_osd_op_timeout", ""),
        ("rados_osd_op_timeout", "-1"), ("rados_osd_op_timeout", "1.5"), ("rados_osd_op_timeout", "5s"),
        ("rados-osd-op-timeout", "8"), ("rados osd op timeout", "9"), ("client_mount_timeout", "soon"),
        ("client_mount_timeout", "2m"), ("debug_rados", "5"), ("debug_rados", "1/20"), ("debug_ms", "0/5"),
        ("debug_objecter", "x"), ("debug-ms", "1"), ("log_to_stderr", "true"), ("log_to_stderr", "2"),
        ("log_to_stderr", "nonsense"), ("log_to_stderr", "yes"), ("err_to_stderr", "0"), ("rbd_cache", "false"),
        ("rbd_cache_size", "1M"), ("rbd_cache_size", "x"), ("objecter_inflight_op_bytes", "10K"),
        ("objecter_inflight_op_bytes", "-1"), ("objecter_inflight_op_bytes", "1.5M"), ("librados_thread_count", "0"),
        ("librados_thread_count", "3"), ("no_such_option", "1"), ("", "1"), ("osd_pool_default_size", "11"),
        ("osd_pool_default_size", "0"), ("osd_pool_default_size", "2"), ("mon_host", "127.0.0.1:1"), ("fsid", "x"),
        ("fsid", "00000000-0000-0000-0000-000000000001"), ("ms_type", "async+posix"), ("auth_supported", "none"),
        ("log_max_recent", "9"), ("log_max_recent", "x"), ("keyring", "/k"), ("key", "k"), ("keyfile", "/f"),
        ("log_file", "/tmp/$name.log"), ("admin_socket", "/tmp/$cluster-$name.asok"), ("objecter_tick_interval", "2.5"),
        ("osd_client_watch_timeout", "5"), ("client_cache_size", "5"),
    ):
        code = raw("conf_set", cluster, option.encode(), value.encode())
        show(f"conf_set({option}, {value})", f"{code} then {get(cluster, option.encode())}")
    for length in (0, 1, 3, 4):
        raw("conf_set", cluster, b"rados_mon_op_timeout", b"123")
        show(f"conf_get length {length}", get(cluster, b"rados_mon_op_timeout", length))
    for path in (b"/nonexistent", b"", b"/", b"/nonexistent,/dev/null", b"/dev/null"):
        call("conf_read_file", cluster, path)
    raw("shutdown", cluster)
    for words in (
        ["prog"], ["prog", "osd", "tree"], ["--rados-osd-op-timeout", "5", "x"], ["p", "--rados-osd-op-timeout", "5", "x"],
        ["p", "--rados_osd_op_timeout=6", "--", "--rados_osd_op_timeout=7"], ["p", "--rados-osd-op-timeout"],
        ["p", "--no-such-option", "1", "-x"], ["p", "--log-to-stderr", "y"], ["p", "--no-log-to-stderr", "y"],
        ["p", "--log_to_stderr=false", "y"], ["p", "-m", "127.0.0.1:1", "y"], ["p", "--id", "u", "y"], ["p", "-n", "client.u"],
        ["p", "-k", "/keys", "z"], ["p", "-c", "/nonexistent", "z"], ["p", "--cluster", "c", "z"], ["p", "-i", "3", "z"],
        ["p", "--rados-osd-op-timeout", "soon", "z"], ["p", "--debug-ms", "1/2", "z"], ["p", "--version"], ["p", "-d", "z"],
        ["p", "-f", "z"], ["p", "--mon-host", "h", "z"], ["p", "--keyring=/x", "z"], ["p", "-K", "/x", "z"], ["p", "", "z"],
    ):
        cluster = created(configured=False, connected=False)
        given = [word.encode() for word in words]
        kept = Texts([b""] * max(len(given), 1))
        code = raw("conf_parse_argv_remainder", cluster, len(given), Texts(given), kept)
        left = [word.decode() for word in kept[: len(given)] if word is not None] if code == 0 else []
        values = [get(cluster, name) for name in (b"rados_osd_op_timeout", b"log_to_stderr", b"mon_host", b"keyring", b"debug_ms")]
        show(f"parse_argv_remainder {words}", f"{code} {left} {values[:3]} {values[4]}")
        raw("shutdown", cluster)
        cluster = created(configured=False, connected=False)
        code = raw("conf_parse_argv", cluster, len(given), Texts(given))
        show(f"parse_argv {words}", f"{code} {get(cluster, b'rados_osd_op_timeout')}")
        raw("shutdown", cluster)
    import ctypes
    libc = ctypes.CDLL(None)
    for text in ("", "--rados-osd-op-timeout 4", "--rados-osd-op-timeout=soon", "'--rados-osd-op-timeout' \"3\"", "--nonsense 1 word",
                 "--rados_osd_op_timeout", "   ", "--rados-osd-op-timeout 'unclosed"):
        libc.setenv(b"PROBE_ARGS", text.encode(), 1)
        cluster = created(configured=False, connected=False)
        code = raw("conf_parse_env", cluster, b"PROBE_ARGS")
        show(f"parse_env {text}", f"{code} {get(cluster, b'rados_osd_op_timeout')}")
        raw("shutdown", cluster)
    cluster = created(configured=False, connected=False)
    call("conf_parse_env", cluster, b"NO_SUCH_VARIABLE")
    raw("shutdown", cluster)
    # Once connected.
    cluster = created()
    call("connect", cluster)
    for option, value in (("rados_osd_op_timeout", "30"), ("client_mount_timeout", "7"), ("mon_host", "x"), ("keyring", "x"),
                          ("log_to_stderr", "false"), ("no_such_option", "1"), ("debug_rados", "1"), ("ms_type", "async")):
        code = raw("conf_set", cluster, option.encode(), value.encode())
        show(f"connected conf_set({option}, {value})", code)
    call("conf_read_file", cluster, None)
    call("conf_parse_env", cluster, None)
    made = c_void_p()
    show("create_with_context", raw("create_with_context", byref(made), c_void_p(raw("cct", cluster))))
    show("its option", get(made, b"rados_osd_op_timeout"))
    call("connect", made)
    raw("shutdown", made)
    raw("shutdown", cluster)


def names_of(cluster, length):
    buffer = create_string_buffer(max(length, 1))
    code = raw("pool_list", cluster, buffer, length)
    return code, buffer.raw[:length]


def pools(pool):
    """Pools: names of all kinds, numbers, buffers."""
    cluster = created()
    buffer = create_string_buffer(4096)
    for name in (b"", b"x" * 200, b"x" * 300, b"a b", b"a/b", b".a", b"-a", b"a%b", "ü".encode(), b"a\tb", b"1", b"a\x01b", b"all"):
        call("pool_lookup", cluster, name)
        call("pool_create", cluster, name)
        number = raw("pool_lookup", cluster, name)
        show("exists", number >= 0)
        if number >= 0:
            call("pool_create", cluster, name)
            show("reverse", (raw("pool_reverse_lookup", cluster, number, buffer, 4096), shown_name(buffer.value)))
            io = ioctx(cluster, name)
            show("ioctx name", (raw("ioctx_get_pool_name", io, buffer, 4096), shown_name(buffer.value)))
            call("write_full", io, b"o", b"x", 1)
            raw("ioctx_destroy", io)
            call("pool_delete", cluster, name)
            call("pool_delete", cluster, name)
    call("ioctx_create", cluster, b"none", byref(c_void_p()))
    call("ioctx_create2", cluster, 987654, byref(c_void_p()))
    call("ioctx_create2", cluster, -1, byref(c_void_p()))
    call("pool_lookup", cluster, b"none")
    call("pool_delete", cluster, b"none")
    call("pool_reverse_lookup", cluster, 987654, buffer, 4096)
    call("pool_reverse_lookup", cluster, -1, buffer, 4096)
    number = raw("pool_lookup", cluster, pool)
    for length in (0, 1, len(pool), len(pool) + 1):
        show(f"pool_reverse_lookup length {length - len(pool)}", raw("pool_reverse_lookup", cluster, number, buffer, length))
    raw("pool_create", cluster, b"second")
    _, everything = names_of(cluster, 4096)
    listed = sorted(name for name in everything.split(b"\0") if name)
    show("pool_list", [name.decode() for name in listed if not name.startswith((b".", b"device"))])
    needed = raw("pool_list", cluster, None, 0)
    show("pool_list needs", needed == sum(len(name) + 1 for name in listed) + 1)
    show("pool_list short", names_of(cluster, 3)[0] == needed)
    show("pool_list null", raw("pool_list", cluster, None, 10))
    # The last zero may not fit.
    show("pool_list exact", names_of(cluster, needed - 1)[0] == needed)
    raw("pool_delete", cluster, b"second")
    call("pool_create_with_auid", cluster, b"owned", 7)
    call("pool_create_with_auid", cluster, b"owned", 2**64 - 1)
    call("pool_delete", cluster, b"owned")
    call("pool_create_with_crush_rule", cluster, b"ruled", 0)
    call("pool_delete", cluster, b"ruled")
    call("pool_create_with_crush_rule", cluster, b"ruled", 77)
    call("pool_delete", cluster, b"ruled")
    call("pool_create_with_all", cluster, b"owned", 7, 0)
    call("pool_create_with_all", cluster, b"owned", 2**64 - 1, 0)
    call("pool_delete", cluster, b"owned")
    base = c_int64(-5)
    show("pool_get_base_tier", (raw("pool_get_base_tier", cluster, number, byref(base)), base.value == number))
    call("pool_get_base_tier", cluster, 987654, byref(base))
    for length in (0, 10):
        show(f"inconsistent_pg_list length {length}", raw("inconsistent_pg_list", cluster, number, buffer, length))
    call("inconsistent_pg_list", cluster, 987654, buffer, 10)
    call("inconsistent_pg_list", cluster, 987654, None, 10)
    io = ioctx(cluster, pool)
    call("ioctx_pool_set_auid", io, 7)
    call("ioctx_pool_set_auid", io, 2**64 - 1)
    owner = c_int64(5)
    show("ioctx_pool_get_auid", (raw("ioctx_pool_get_auid", io, byref(owner)), owner.value))
    needs, size = c_int(9), c_int64(9)
    show("alignment", (raw("ioctx_pool_requires_alignment", io), raw("ioctx_pool_requires_alignment2", io, byref(needs)), needs.value,
                       raw("ioctx_pool_required_alignment", io), raw("ioctx_pool_required_alignment2", io, byref(size)), size.value))
    call("ioctx_pool_requires_alignment2", io, None)
    call("ioctx_pool_required_alignment2", io, None)
    for length in (0, 1, len(pool), len(pool) + 1):
        show(f"ioctx_get_pool_name length {length - len(pool)}", raw("ioctx_get_pool_name", io, buffer, length))
    show("ioctx_get_cluster", raw("ioctx_get_cluster", io) == cluster.value)
    show("ioctx_get_id", raw("ioctx_get_id", io) == number)
    # A pool that is removed while a context is open on it.
    raw("pool_create", cluster, b"short-lived")
    gone = ioctx(cluster, b"short-lived")
    call("write_full", gone, b"o", b"x", 1)
    call("pool_delete", cluster, b"short-lived")
    raw("wait_for_latest_osdmap", cluster)
    call("write_full", gone, b"o", b"x", 1)
    call("read", gone, b"o", buffer, 10, 0)
    call("stat", gone, b"o", None, None)
    call("ioctx_pool_stat", gone, create_string_buffer(256))
    call("ioctx_get_pool_name", gone, buffer, 4096)
    call("ioctx_pool_requires_alignment2", gone, byref(needs))
    call("application_list", gone, buffer, byref(c_size_t(10)))
    call("application_enable", gone, b"app", 0)
    place = c_void_p()
    show("nobjects_list_open", raw("nobjects_list_open", gone, byref(place)))
    show("nobjects_list_next", raw("nobjects_list_next", place, byref(c_char_p()), None, None))
    call("ioctx_snap_list", gone, None, 0)
    raw("ioctx_destroy", gone)
    raw("ioctx_destroy", io)
    raw("shutdown", cluster)


def shown_name(name):
    return name.decode("utf-8", "backslashreplace")[:30], len(name)


def masked(text):
    """A command's answer without the parts that differ between clusters."""
    text = text.decode("utf-8", "backslashreplace")
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(\+0000|Z)?", "TIME", text)
    text = re.sub(r"127\.0\.0\.1:\d+(/\d+)?", "ADDR", text)
    return text


def shape(output):
    """The start and the end of an answer, on which programs that read it depend."""
    text = output.decode("utf-8", "backslashreplace")
    first = next((char for char in text if not char.isspace()), "")
    return f"begins {first if first in '{[' else 'text' if first else 'empty'} leads {len(text) - len(text.lstrip())} ends {len(text) - len(text.rstrip(chr(10)))}"


def commands(pool):
    """Commands for all targets: codes, texts, and how the data ends."""
    cluster = created()
    number = raw("pool_lookup", cluster, pool)
    name = pool.decode()
    pg = f"{number}.0"
    asked = [
        {"prefix": "nonsense"}, {"prefix": ""}, {}, {"prefix": "osd pool create"}, {"prefix": "osd pool get", "pool": "none", "var": "size"},
        {"prefix": "osd pool get", "pool": name, "var": "nonsense"}, {"prefix": "osd pool get", "pool": name, "var": "size"},
        {"prefix": "osd pool set", "pool": name, "var": "nonsense", "val": "1"}, {"prefix": "osd pool set", "pool": name, "var": "size", "val": "x"},
        {"prefix": "osd pool set", "pool": name, "var": "min_size", "val": "9"}, {"prefix": "osd pool delete", "pool": name},
        {"prefix": "osd pool rename", "srcpool": "none", "destpool": "b"}, {"prefix": "osd pool application get", "pool": "none"},
        {"prefix": "osd pool application get", "pool": name}, {"prefix": "osd out", "ids": ["99"]}, {"prefix": "osd out", "ids": ["x"]},
        {"prefix": "osd down", "ids": ["99"]}, {"prefix": "osd find", "id": 99}, {"prefix": "osd metadata", "id": 99}, {"prefix": "osd set", "key": "nonsense"},
        {"prefix": "osd set", "key": "noout"}, {"prefix": "osd unset", "key": "noout"}, {"prefix": "osd map", "pool": "none", "object": "o"},
        {"prefix": "osd crush rule dump", "name": "none"}, {"prefix": "osd crush rule rm", "name": "none"}, {"prefix": "osd crush rule ls"},
        {"prefix": "osd blocklist", "blocklistop": "rm", "addr": "127.0.0.9:0/9"}, {"prefix": "osd blocklist", "blocklistop": "add", "addr": "nonsense"},
        {"prefix": "osd blocklist ls"}, {"prefix": "osd dump", "epoch": 99999},
        {"prefix": "osd getmap", "epoch": 99999}, {"prefix": "osd getmaxosd"}, {"prefix": "osd ls"}, {"prefix": "osd stat"}, {"prefix": "osd pool ls"},
        {"prefix": "osd pool stats", "pool_name": "none"}, {"prefix": "osd lspools"}, {"prefix": "osd tree"}, {"prefix": "osd df"}, {"prefix": "osd perf"},
        {"prefix": "pg map", "pgid": "99.0"}, {"prefix": "pg map", "pgid": "x"}, {"prefix": "pg dump"}, {"prefix": "pg stat"}, {"prefix": "pg ls"},
        {"prefix": "status"}, {"prefix": "health"}, {"prefix": "health", "detail": "detail"}, {"prefix": "df"}, {"prefix": "df", "detail": "detail"}, {"prefix": "fsid"}, {"prefix": "quorum_status"},
        {"prefix": "mon stat"}, {"prefix": "mon dump"}, {"prefix": "mon dump", "epoch": 1}, {"prefix": "mon dump", "epoch": 999}, {"prefix": "mon metadata"}, {"prefix": "mon metadata", "id": "none"},
        {"prefix": "mon feature ls"}, {"prefix": "versions"}, {"prefix": "version"}, {"prefix": "features"}, {"prefix": "mgr stat"}, {"prefix": "mgr dump"}, {"prefix": "mgr module ls"}, {"prefix": "mgr services"},
        {"prefix": "service dump"}, {"prefix": "service status"}, {"prefix": "config dump"}, {"prefix": "config get", "who": "osd.0", "key": "nonsense"}, {"prefix": "config get", "who": "osd.0", "key": "osd_max_backfills"}, {"prefix": "config help", "key": "nonsense"},
        {"prefix": "config set", "who": "osd", "name": "nonsense", "value": "1"}, {"prefix": "config set", "who": "osd", "name": "osd_max_backfills", "value": "x"}, {"prefix": "config rm", "who": "osd", "name": "osd_max_backfills"}, {"prefix": "config ls"}, {"prefix": "config log"},
        {"prefix": "config-key get", "key": "none"}, {"prefix": "config-key set", "key": "probe/k", "val": "v"}, {"prefix": "config-key get", "key": "probe/k"}, {"prefix": "config-key exists", "key": "probe/k"}, {"prefix": "config-key exists", "key": "none"},
        {"prefix": "config-key ls"}, {"prefix": "config-key dump"}, {"prefix": "config-key rm", "key": "probe/k"}, {"prefix": "config-key rm", "key": "none"},
        {"prefix": "auth get", "entity": "client.none"}, {"prefix": "auth ls"}, {"prefix": "auth get-key", "entity": "client.none"}, {"prefix": "auth get", "entity": "nonsense"}, {"prefix": "auth rm", "entity": "client.none"},
        {"prefix": "auth get-or-create", "entity": "client.probe", "caps": ["mon"]}, {"prefix": "auth add", "entity": "client.probe", "caps": ["mon", "nonsense"]},
        {"prefix": "log", "logtext": ["probe"]}, {"prefix": "log last", "num": 1}, {"prefix": "log last", "num": 1, "level": "nonsense"}, {"prefix": "log last", "num": 1, "channel": "audit"}, {"prefix": "log last", "num": 1, "channel": "nonsense"},
        {"prefix": "osd crush tree"}, {"prefix": "osd crush dump"}, {"prefix": "osd crush class ls"}, {"prefix": "osd crush show-tunables"}, {"prefix": "osd erasure-code-profile ls"}, {"prefix": "osd erasure-code-profile get", "name": "none"},
        {"prefix": "osd blocked-by"}, {"prefix": "osd utilization"}, {"prefix": "osd numa-status"}, {"prefix": "osd pool get-quota", "pool": name}, {"prefix": "osd pool set-quota", "pool": "none", "field": "max_bytes", "val": "1"}, {"prefix": "osd pool set-quota", "pool": name, "field": "max_bytes", "val": "x"},
        {"prefix": "osd pool mksnap", "pool": "none", "snap": "s"}, {"prefix": "osd pool rmsnap", "pool": name, "snap": "none"}, {"prefix": "osd tier add", "pool": "none", "tierpool": "none2"}, {"prefix": "osd ok-to-stop", "ids": ["99"]}, {"prefix": "osd safe-to-destroy", "ids": ["99"]},
        {"prefix": "osd last-stat-seq", "id": 99}, {"prefix": "osd purge", "id": 99}, {"prefix": "osd rm", "ids": ["99"]}, {"prefix": "osd in", "ids": ["0"]}, {"prefix": "osd info"}, {"prefix": "osd info", "id": 99}, {"prefix": "time-sync-status"}, {"prefix": "report"}, {"prefix": "node ls"},
        {"prefix": "get_command_descriptions"}, {"prefix": "tell"}, {"prefix": "fs ls"}, {"prefix": "mds stat"}, {"prefix": "osd count-metadata", "property": "osd_objectstore"}, {"prefix": "osd versions"}, {"prefix": "osd get-require-min-compat-client"},
        {"prefix": "osd pool ls", "detail": "detail"}, {"prefix": "osd pool autoscale-status"}, {"prefix": "balancer status"}, {"prefix": "telemetry status"}, {"prefix": "crash ls"}, {"prefix": "device ls"}, {"prefix": "progress"}, {"prefix": "pg scrub", "pgid": "99.0"},
    ]
    for request in asked:
        for form in ("", "json"):
            full = dict(request, **({"format": form} if form else {}))
            text = json.dumps(full).encode()
            function = "mgr_command" if request.get("prefix") in OF_MANAGER else "mon_command"
            code, output, said = command(function, cluster, text)
            label = f"{function} {json.dumps(full)}"
            if code < 0:
                output = b""
            what = shape(output) if code >= 0 else "-"
            if request.get("prefix") in {"osd getmaxosd", "osd ls", "config-key get", "osd pool get", "osd crush class ls"} and code >= 0:
                what = repr(masked(output))
            if request.get("prefix") in {"report", "osd getmap", "osd getcrushmap"} and code >= 0:
                said = b"-"
            show(label, f"{code} {what} {masked(said)!r}")
    for function, target in (("mon_command_target", (b"a",)), ("mgr_command_target", (b"x",)), ("osd_command", (0,)), ("pg_command", (pg.encode(),))):
        for request in ({"prefix": "nonsense"}, {"prefix": "version"}, {"prefix": ""}, {"prefix": "config show"}, {"prefix": "config get", "var": "nonsense"},
                        {"prefix": "config get", "var": "debug_ms"}, {"prefix": "config set", "var": "nonsense", "val": ["1"]}, {"prefix": "perf dump"}, {"prefix": "dump_ops_in_flight"},
                        {"prefix": "bench", "count": 4096, "size": 4096}, {"prefix": "query", "pgid": pg}, {"prefix": "list_unfound", "pgid": pg}, {"prefix": "get_command_descriptions"},
                        {"prefix": "injectargs", "injected_args": ["--debug_ms=0"]}, {"prefix": "help"}, {"prefix": "heap", "heapcmd": "stats"}, {"prefix": "log dump"}, {"prefix": "config diff"}, {"prefix": "status"}):
            for form in ("", "json"):
                full = dict(request, **({"format": form} if form else {}))
                code, output, said = command(function, cluster, json.dumps(full).encode(), *target)
                show(f"{function} {json.dumps(full)}".replace(f'"{pg}"', "PG"), f"{code} {shape(output) if code >= 0 else '-'} {masked(said)[:60].replace(pg, 'PG')!r}")
    for function, target in (("mon_command_target", (b"none",)), ("mon_command_target", (b"0",)), ("mon_command_target", (b"9",)), ("mon_command_target", (b"",)), ("osd_command", (99,)), ("osd_command", (-1,)),
                             ("pg_command", (b"nonsense",)), ("pg_command", (b"99.0",)), ("pg_command", (b"",)), ("pg_command", (f"{number}.ff".encode(),))):
        show(f"{function}({target})".replace(f"{number}.ff", "PG.ff"), command(function, cluster, b'{"prefix": "version"}', *target)[0])
    for text in (b"", b"{", b"[]", b'"x"', b"nonsense", b"\xff", b'{"prefix": "fsid", "prefix": "version"}', b'{"prefix": "fsid"} x', b'{"prefix":"fsid","format":"nonsense"}', b'{"prefix":"fsid","format":"xml"}', b'{"prefix":"fsid","extra":"x"}'):
        code, output, said = command("mon_command", cluster, text)
        show(f"mon_command {shown_text(text)}", f"{code} {shape(output) if code >= 0 else '-'} {masked(said)[:80]!r}")
    # A command in parts, and without places for its results.
    parts = Texts([b'{"prefix": ', b'"fsid"}'])
    show("in parts", raw("mon_command", cluster, parts, 2, None, 0, None, None, None, None))
    show("no parts", raw("mon_command", cluster, parts, 0, None, 0, None, None, None, None))
    answer, length = c_void_p(), c_size_t()
    for mon in (b"nobody", b"a", b"0", b""):
        show(f"ping_monitor {mon}", raw("ping_monitor", cluster, mon, byref(answer), byref(length)))
    buffer = create_string_buffer(64)
    for length in (0, 1, 36, 37, 64):
        call("cluster_fsid", cluster, buffer, length)
    for address, seconds in ((b"", 0), (b"nonsense", 5), (b"127.0.0.1:0/4294967295", 5), (b"127.0.0.9", 5), (b"127.0.0.9:1", 5), (b"[::1]:0/7", 5), (b"127.0.0.1:0/99999999999", 5)):
        call("blocklist_add", cluster, address, seconds)
    low, required = c_int8(-1), c_int8(-1)
    show("get_min_compatible_osd", (raw("get_min_compatible_osd", cluster, byref(low)), low.value))
    show("get_min_compatible_client", (raw("get_min_compatible_client", cluster, byref(low), byref(required)), low.value, required.value))
    for service, daemon, facts in ((b"osd", b"0", b"\0"), (b"client", b"a", b"\0"), (b"", b"a", b"\0"), (b"probe", b"", b"\0"), (b"probe", b"a", b"k\0v\0\0"), (b"probe", b"b", b"\0")):
        call("service_register", cluster, service, daemon, facts)
    call("service_update_status", cluster, b"k\0v\0\0")
    call("service_update_status", cluster, b"\0")
    raw("shutdown", cluster)


def shown_text(text):
    return text.decode("utf-8", "backslashreplace")


OF_MANAGER = {"pg dump", "pg stat", "pg ls", "osd df", "osd perf", "osd pool stats", "service status", "osd blocked-by", "osd utilization", "osd ok-to-stop", "osd safe-to-destroy",
              "osd last-stat-seq", "osd pool autoscale-status", "balancer status", "telemetry status", "crash ls", "device ls", "progress", "pg repair", "pg scrub", "osd numa-status"}

PARTS = [unconnected, configuration, pools, commands]
