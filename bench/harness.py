"""What the benchmarks share: the program to measure, /proc, fio, tables, and the sections of RESULTS.md."""

import argparse
import contextlib
import datetime
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(HERE)
RESULTS = os.path.join(HERE, "RESULTS.md")
TICK_US = 1_000_000 / os.sysconf("SC_CLK_TCK")
# The daemons that a benchmark started end with it, also where it is told to end.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
# The sections of RESULTS.md in order: the name in the markers, the heading.
SECTIONS = {
    "bluestore": "Nacre beside Ceph: BlueStore",
    "memstore": "Nacre beside Ceph: MemStore",
    "clients": "Many clients",
    "long": "Ten minutes of writes",
    "striper": "Striped objects beside Ceph's libradosstriper",
    "s3": "S3 beside radosgw",
    "notifications": "Bucket notifications beside radosgw",
    "notifications-nacre": "Bucket notifications on Nacre alone",
    "tiers": "A cache tier under the gateway",
    "tiers-bluestore": "The same, in front of BlueStore",
    "tier-works": "A cache tier beside its pools",
    "tier-steady": "A cache tier that is written to for minutes",
    "s3-memory": "Memory of a gateway under many uploads",
    "restart": "A BlueStore that starts again",
    "stores": "The three stores",
    "overwrites": "BlueStore's overwrites, fullness and metadata",
    "kvstore": "RocksDB without optimisation",
    "idle": "An idle cluster",
}
HEAD = """# Measured figures

Written by the programs of this folder (`bench/all`; each writes its own section with `--write-results`). Machines are noisy: the ratios,
taken between rounds of one run, say more than the rates.

- Both systems run at the same time on loopback, with the same number of OSD and mon processes (Ceph has a mgr besides), cephx
  authentication without encryption, and caches of the same size; they take turns in being measured.
- A row is measured after a warm-up, which ends when the rates of three slices of 5 s (2 s for blocks of 4 MiB and striped objects) differ
  by at most 10 %, or at its limit ("no" in the column *steady*). Objects are removed after the measured window, not in it. Rows of 4 KiB
  write new objects, rows of 4 MiB overwrite 1 000 (MemStore: 300) in turn and striped objects are overwritten after 2 GiB, as the disk is
  not large enough for more; for the same reason PUTs of 4 MiB by S3 are measured for 8 s after at most 4 s. All OSDs have devices of the same size.
- OSD CPU is that of all OSD processes together, divided by the operations of the client. *Written* is what the disk wrote
  (`/proc/diskstats`) for each byte that the client wrote, all replicas together. `write_bytes` in `/proc/PID/io` would not do: it counts a
  whole folio of the page cache for each small write to it, up to twice what reaches the disk.
- *Target* is the design's figure for that row, where it has one.
"""


def run(args, **kw):
    """The standard output of a command that must succeed."""
    done = subprocess.run(args, capture_output=True, text=True, **kw)
    if done.returncode != 0:
        sys.exit(f"{' '.join(args)}\nfailed with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def parser(doc, section=None):
    """A parser with the options that all benchmarks have."""
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--nacre", help="the binary (default: target/release/nacre of this clone, built if it is missing)")
    p.add_argument("--json", metavar="FILE", help="write all figures there")
    if section:
        p.add_argument("--write-results", action="store_true", help="write the section of bench/RESULTS.md")
    return p


def product(args):
    """The path of the binary to measure; builds it where none is named and none is there."""
    if args.nacre:
        return os.path.abspath(args.nacre)
    path = os.path.join(TOP, "target", "release", "nacre")
    if not os.path.exists(path):
        print("# building the product", file=sys.stderr)
        if subprocess.run(["make", "-C", TOP, "build"], stdout=sys.stderr).returncode != 0:
            sys.exit("the product does not build")
    return path


def build_example(name, target=None, environment=None):
    """Builds an example of crates/store as the product is built; returns its path."""
    command = ["cargo", "build", "--locked", "--release", "-p", "nacre-store", "--example", name, "--message-format=json",
               *(["--target-dir", target] if target else [])]
    built = subprocess.run(command, cwd=TOP, stdout=subprocess.PIPE, text=True, env=environment)
    if built.returncode != 0:
        sys.exit("the benchmark does not build")
    artifacts = (json.loads(line) for line in built.stdout.splitlines() if line.startswith("{"))
    return [a["executable"] for a in artifacts if a.get("target", {}).get("name") == name][-1]


def build_load(folder):
    """Compiles bench/load.c; returns the program's path."""
    path = os.path.join(folder, "load")
    run([os.environ.get("CC", "clang"), "-O2", "-o", path, os.path.join(HERE, "load.c"), "-lradosstriper", "-lrados", "-lpthread", "-lm"])
    return path


def libraries(nacre, folder):
    """A folder with Nacre's C libraries under Ceph's names, for LD_LIBRARY_PATH."""
    built = os.path.join(os.path.dirname(nacre), "librados.so")
    if not os.path.exists(built):
        sys.exit(f"{built} is missing: make build")
    for name in ("librados.so.2", "libradosstriper.so.1"):
        os.symlink(built, os.path.join(folder, name))
    return folder


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def disk_of(path):
    """The numbers, as in /proc/diskstats, of the disk that holds a folder."""
    device = os.stat(path).st_dev
    return [str(os.major(device)), str(os.minor(device))]


def disk_written(disk):
    """Bytes that a disk has written so far; `None` where the kernel does not count them."""
    with open("/proc/diskstats") as f:
        found = [line.split() for line in f]
    return next((int(fields[9]) * 512 for fields in found if fields[:2] == disk), None)


class Usage:
    """What processes have used so far: CPU time, page faults, and their resident memory; and what the disk below `DISK_FOLDER` wrote."""

    # Where the stores are that are measured; programs that choose another place set it.
    DISK_FOLDER = tempfile.gettempdir()

    def __init__(self, pids):
        self.cpu_us = self.faults = self.resident_mb = 0
        self.written = disk_written(disk_of(self.DISK_FOLDER))
        for pid in pids:
            with open(f"/proc/{pid}/stat") as f:
                fields = f.read().rsplit(")", 1)[1].split()
            self.cpu_us += (int(fields[11]) + int(fields[12])) * TICK_US
            self.faults += int(fields[7]) + int(fields[9])
            with open(f"/proc/{pid}/status") as f:
                self.resident_mb += int(re.search(r"^VmRSS:\s+(\d+)", f.read(), re.M)[1]) / 1024

    def each(self, before, ops, block):
        """What was used since `before` for each operation."""
        ops = max(ops, 1)
        return {
            "osd_us_per_op": (self.cpu_us - before.cpu_us) / ops,
            "faults_per_op": (self.faults - before.faults) / ops,
            "written_per_byte": None if self.written is None else (self.written - before.written) / ops / block,
            "resident_mb": self.resident_mb,
        }


SYNC_CALLS = ["fsync", "fdatasync", "sync_file_range", "syncfs"]


class Syncs:
    """Counts the sync calls of processes until it is asked for the count, where perf may."""

    def __init__(self, pids):
        try:
            self.perf = subprocess.Popen(
                ["perf", "stat", "-x,", "-e", ",".join(f"syscalls:sys_enter_{c}" for c in SYNC_CALLS)]
                + ["-p", ",".join(map(str, pids))],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        except FileNotFoundError:
            self.perf = None

    def count(self):
        if not self.perf:
            return None
        self.perf.send_signal(signal.SIGINT)
        counts = [line.split(",")[0] for line in self.perf.communicate()[1].splitlines() if "sys_enter" in line]
        return sum(map(int, counts)) if counts and all(c.isdigit() for c in counts) else None


def drive(args, pids, block, environment=None):
    """Runs bench/load.c; returns the figures of the measured window and, slice by slice, of the whole run."""
    program = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    errors = []
    reader = threading.Thread(target=lambda: errors.append(program.stderr.read()))
    reader.start()
    started = before = Usage(pids)
    total = syncs = None
    slices = []
    for line in program.stdout:
        if not line.startswith("{"):
            continue
        record, usage = json.loads(line), Usage(pids)
        if record["kind"] in ("warm-up", "slice"):
            slices.append({**record, **usage.each(before, record["ops"], block)})
            before = usage
        elif record["kind"] == "measuring":
            started, steady, warmed_up = usage, record["steady"], record["end_s"]
            syncs = Syncs(pids)
        elif record["kind"] == "total":
            total = {**record, **usage.each(started, record["ops"], block), "steady": steady, "warm_up_s": warmed_up}
    program.wait()
    reader.join()
    if program.returncode != 0 or total is None:
        sys.exit(f"{' '.join(args)}\nfailed with {program.returncode}:\n{errors[0][-2000:]}")
    count = syncs.count()
    total["syncs_per_op"] = None if count is None else count / max(total["ops"], 1)
    total["mb_per_s"] = total["iops"] * block / 1e6
    return total, slices


def fio_mb_per_s(folder, seconds):
    """What the file system under `folder` takes with O_DIRECT, 4 MiB at a time, 16 in flight."""
    path = os.path.join(folder, "fio")
    out = run(["fio", "--name=direct", f"--filename={path}", "--rw=write", "--bs=4M", "--iodepth=16", "--ioengine=libaio",
               "--direct=1", "--size=2G", f"--runtime={seconds}", "--time_based", "--fallocate=none", "--end_fsync=1",
               "--output-format=json"])
    os.unlink(path)
    return json.loads(out)["jobs"][0]["write"]["bw_bytes"] / 1e6


def medians(rounds):
    """The median of each figure of the rounds, or its last value if it is no number."""
    out = {}
    for key in rounds[0]:
        values = [r[key] for r in rounds if r.get(key) is not None]
        if key == "steady":
            out[key] = all(values)
        elif values and all(isinstance(v, (int, float)) for v in values):
            out[key] = statistics.median(values)
        else:
            out[key] = values[-1] if values else None
    return out


def ratio(ours, theirs, key="iops"):
    """The median of the rounds' ratios."""
    return statistics.median(a[key] / b[key] for a, b in zip(ours, theirs) if b[key])


def number(value, digits=0, suffix=""):
    return "" if value is None else f"{value:,.{digits}f}{suffix}".replace(",", " ")


def table(columns, rows):
    """A table in Markdown."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def machine():
    """The machine, the kernel and the versions, in a sentence."""
    with open("/proc/cpuinfo") as f:
        model = re.search(r"^model name\s*:\s*(.+)$", f.read(), re.M)
    with open("/proc/meminfo") as f:
        memory = int(re.search(r"^MemTotal:\s+(\d+)", f.read(), re.M)[1]) / (1 << 20)
    return f"{os.cpu_count()} processors ({model[1] if model else os.uname().machine}), {memory:.0f} GiB, Linux {os.uname().release}"


def description(nacre, command, more=""):
    """What stands under a section's heading: date, machine, versions, command."""
    version = run([nacre, "--version"]).strip()
    load = os.getloadavg()[0]
    text = f"{datetime.date.today()}. {machine()}. {version}{', ' + more if more else ''}. Load average at the end: {load:.1f}."
    return f"{text}\n\n```sh\n{command}\n```"


def command_line():
    """How this program was called, without the options that say where its output goes; REEF stands for the folder with Ceph."""
    words, args = [os.path.relpath(sys.argv[0], TOP)], iter(sys.argv[1:])
    for arg in args:
        if arg == "--json":
            next(args, None)
        elif arg == "--ceph-root":
            next(args, None)
            words += [arg, "REEF"]
        elif arg != "--write-results":
            words.append(arg)
    return " ".join(words)


def write_section(name, body):
    """Replaces a section of RESULTS.md, between its markers; makes the file where there is none."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    text = ""
    with contextlib.suppress(FileNotFoundError), open(RESULTS) as f:
        text = f.read()
    sections = {}
    for known in SECTIONS:
        found = re.search(rf"<!-- {known} -->\n(.*?)<!-- /{known} -->", text, re.S)
        if found:
            sections[known] = found[1]
    sections[name] = f"## {SECTIONS[name]}\n\n{body.strip()}\n"
    parts = [f"<!-- {known} -->\n{sections[known]}<!-- /{known} -->\n" for known in SECTIONS if known in sections]
    with tempfile.NamedTemporaryFile("w", dir=HERE, delete=False) as f:
        f.write(HEAD + "\n" + "\n".join(parts))
    os.chmod(f.name, 0o644)
    os.replace(f.name, RESULTS)
    print(f"# wrote the section '{SECTIONS[name]}' of {os.path.relpath(RESULTS)}", file=sys.stderr)


def finish(args, section, nacre, body, figures, more="", so_far=False):
    """Prints the section's text, and writes it and the figures where that is asked for. What there is `so_far` is only written."""
    text = description(nacre, command_line(), more) + "\n\n" + body
    if not so_far:
        print(text)
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"arguments": vars(args), **figures}, f, indent=1)
    if args.write_results:
        write_section(section, text)
