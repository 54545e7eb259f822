"""Other processes, their sockets, and modules run quickly like `python -m`.

A `WarmProcess` is a fork of a process that has imported tgflow: imports take most of the time of
a short run that is killed and restarted. In all else it is a separate process: signals, files,
memory, exit status.
"""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

TESTS = Path(__file__).parents[1]


def environment():
    """Return this process's environment, with `helpers` importable."""
    path = (str(TESTS), os.environ.get("PYTHONPATH"))
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def stat_of(pid):
    """Return the fields of /proc/PID/stat after the name: state, parent, and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def is_there(pid):
    """Return whether a process is running."""
    try:
        return stat_of(pid)[0] not in "ZX"
    except OSError:
        return False


def children_of(parent, file):
    """Return the running child processes of a process with a file of /proc, such as "environ"."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):
            stat = stat_of(pid)
            if int(stat[1]) == parent and stat[0] not in "ZX":
                found[pid] = Path(f"/proc/{pid}/{file}").read_bytes()
    return found


def addresses_listened_on():
    """The local addresses, in hexadecimal, that sockets of this process listen on."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            own.add(os.readlink(descriptor))
        except OSError:  # the one that lists them
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.append(fields[1].split(":")[0])
    return found


def free_port():
    """Return a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


IMPORTED_FIRST = (
    "torch._dynamo",  # imports at the creation of an optimizer take seconds
    "tgflow.ranks.join",
    "tgflow.cli.inputs",
    "tgflow.cli.app",
)


class WarmProcess:
    """A fork that runs a module, with the required subset of `subprocess.Popen`."""

    def __init__(self, program, environment):
        self._server = _server(tuple(sorted(environment.items())))
        with tempfile.NamedTemporaryFile(prefix="warm-", delete=False) as out:
            self._out = Path(out.name)
        self.pid = int(self._asked({"program": [*program], "out": out.name}))
        self.returncode = None
        """Exit code as in `Popen`: negative for a signal, None while it runs."""

    def poll(self):
        """Return its exit code, None while it runs."""
        if self.returncode is None:
            self.returncode = self._asked({"poll": self.pid})
        return self.returncode

    def send_signal(self, number):
        """Send a signal unless it has ended; its pid is not reused before `poll` returns a code."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def communicate(self, timeout=300.0):
        """Wait until it ends, at most for the timeout; return its stdout and stderr."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.send_signal(signal.SIGKILL)
                raise subprocess.TimeoutExpired(str(self._out), timeout)
            time.sleep(0.002)
        text = self._out.read_text()
        self._out.unlink()
        return text, None

    def _asked(self, question):
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())


@cache
def _server(settings):
    """Start the fork server, which ends with the test process."""
    return subprocess.Popen(
        [sys.executable, "-m", "helpers.processes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment() | dict(settings),
    )


def _serve():
    """Serve fork requests; returns in each fork with its program."""
    for line in sys.stdin:
        question = json.loads(line)
        if "poll" in question:
            pid, status = os.waitpid(question["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                _redirect(question["out"])
                return question["program"]
        print(json.dumps(answer), flush=True)
    sys.exit()


def _redirect(out):
    nothing, written = os.open(os.devnull, os.O_RDONLY), os.open(out, os.O_WRONLY | os.O_APPEND)
    for to, fd in ((0, nothing), (1, written), (2, written)):
        os.dup2(fd, to)
    os.close(nothing)
    os.close(written)
    sys.stdin = open(0)  # noqa: SIM115


if __name__ == "__main__":
    for _name in IMPORTED_FIRST:
        import_module(_name)
    sys.argv = _serve()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
