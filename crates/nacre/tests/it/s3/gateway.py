"""Gateways as separate processes, for the suites that need them."""

import atexit
import resource
import socket
import subprocess
import time


def free_port():
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port > 40000:
            return port


def wait(what, holds, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


class Gateway:
    """A gateway in its own process."""

    def __init__(self, nacre, conf, *options, frontends="", files=None):
        """`frontends` are further words for rgw_frontends; `files` is the limit of open files."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        limit = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))) if files else None
        self.process = subprocess.Popen(
            [nacre, "gateway", "-c", conf, "--rgw_frontends", f"beast port={self.port} {frontends}", "--exporter_http_port=-1",
             *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limit)
        # Whatever the result of the suite.
        atexit.register(self.process.kill)
        line = self.process.stdout.readline()
        assert line.split()[:4] == ["gateway", "is", "ready:", self.url], (line, self.process.stderr.read())

    def resident(self):
        """Resident memory in bytes."""
        with open(f"/proc/{self.process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    def end(self):
        """Stops it in order. Returns its output."""
        self.process.terminate()
        return self.ended()

    def ended(self):
        """Waits until it has ended in order, as requested. Returns its output."""
        _, said = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, said
        return said
