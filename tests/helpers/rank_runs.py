"""Runs on several ranks: in forked processes with faults, on hosts, in Ray workers."""

import builtins
import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import tgflow as tg
from helpers import faults
from helpers.live_runs import SMALL, act_at
from helpers.made_models import X_DIM, made_events, made_model
from helpers.processes import environment
from helpers.worlds import run_apart
from tgflow.cli import inputs as assemble
from tgflow.cli import main
from tgflow.ranks.control import checksum

_STOPPED_SECONDS = 25
SOON = 5.0
"""Seconds within which all ranks end after losing one."""


class End(NamedTuple):
    """Exit record of a rank."""

    code: int | None
    """Its exit code, negative for a signal; None if it had to be killed."""
    out: str = ""
    err: str = ""
    at: float = 0.0
    """Exit time, by `time.monotonic`."""


def arguments(events, out, *more):
    """Return the arguments of a small run."""
    options = ("--stream", events, "--out", out, *SMALL, *more)
    return ["run", *map(str, options)]


def run_ranks(tmp_path, world, argv, prepare=None):
    """Return the exit record of each rank of a run, by arguments of all, or a tuple of each one's.

    `prepare` is called in each process, with its rank, before anything else; it can be pickled.
    """
    meeting = tmp_path / f"meeting-{time.monotonic_ns():020}"
    meeting.mkdir()
    found = run_apart(world, _rank_of_run, world, meeting, argv, prepare)
    return [End(*each.result) if each.result is not None else End(each.code) for each in found]


def codes(ends):
    return [end.code for end in ends]


def seconds_after(tmp_path, ends):
    """Return the seconds from the last fault to the exit of ranks that were not killed."""
    latest = max(tmp_path.glob("meeting-*"))
    disturbed = float((latest / _DISTURBED).read_text())
    return [end.at - disturbed for end in ends if end.at]


def open_nothing(rank):
    """Make streams impossible to open, except on rank 0."""
    if rank > 0:
        assemble.open_partitioned = assemble.open_source = None


def signal_at(rank, position, number):
    """Send a signal to a rank once it has learned so many events."""
    return partial(_prepare, rank, position, partial(_signal, number))


def raise_at(rank, position, error):
    """Fail a rank once it has learned so many events."""
    return partial(_prepare, rank, position, partial(_raise, error))


def signal_in(rank, point, count, number, after=0.0):
    """Send a signal to a rank some seconds after hit `count` of a point of `helpers.faults`."""
    return partial(_prepare_point, rank, point, count, number, after)


def _rank_of_run(rank, world, meeting, argv, prepare):
    """Run as one rank, and return its `End`."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "TGFLOW_MEETING": str(meeting),
    }
    if prepare is not None:
        prepare(rank)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv[rank] if isinstance(argv, tuple) else argv)
    return tuple(End(code, out.getvalue(), err.getvalue(), time.monotonic()))


def _prepare(disturbed, position, act, rank):
    if rank == disturbed:
        act_at(builtins, position, act)  # for as long as the process lives


def _prepare_point(disturbed, point, count, number, after, rank):
    if rank == disturbed:
        faults.call_at(point, count, partial(_signal_late, after, number))


def _signal_late(after, number):
    time.sleep(after)
    _signal(number, None)


def _signal(number, _runner):
    _note()
    if number == signal.SIGSTOP:  # otherwise it would only end at the timeout
        script = f"sleep {_STOPPED_SECONDS}; kill -9 {os.getpid()}"
        subprocess.Popen(["sh", "-c", script], start_new_session=True)
    os.kill(os.getpid(), number)
    if number == signal.SIGTERM:
        time.sleep(0.5)


def _raise(error, _runner):
    _note()
    raise error


_DISTURBED = "disturbed"


def _note():
    (Path(os.environ["TGFLOW_MEETING"]) / _DISTURBED).write_text(str(time.monotonic()))


ADDRESSES = ["10.213.7.1", "10.213.7.2"]
_BOOT = 'mount --bind "$1" /proc/sys/kernel/random/boot_id && shift && exec "$@"'


@dataclass(frozen=True)
class Host:
    """A network namespace with an interface of its own, whose processes see another boot."""

    namespace: str
    link: str
    address: str
    boot: Path

    def start(self, command, said, environ=None):
        """Start a command of this interpreter on the host; it appends its output to `said`."""
        words = ["unshare", "-m", "sh", "-c", _BOOT, "sh", str(self.boot), sys.executable]
        words += map(str, command)
        with said.open("a") as file:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *words],
                stdout=file,
                stderr=file,
                env=environment()
                | {"OMP_NUM_THREADS": "1"}
                | {name: str(value) for name, value in (environ or {}).items()},
            )

    def set_link(self, state):
        """Cut the link ("down"), or connect it again ("up")."""
        ip("-n", self.namespace, "link", "set", self.link, state)

    def kill(self):
        """Kill all processes of the host at once, as a power failure does."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.namespace], check=True, capture_output=True, text=True
        )
        for pid in found.stdout.split():
            os.kill(int(pid), signal.SIGKILL)


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def open_hosts(folder):
    """Make two hosts, with files in `folder`; skips the test if they cannot be made."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and ip")
    mark = os.getpid() % 10**6
    hosts = [
        Host(f"tgflow-{mark}-{number}", f"tg{mark}v{number}", address, folder / f"boot-{number}")
        for number, address in enumerate(ADDRESSES)
    ]
    for host in hosts:
        host.boot.write_text(f"{host.namespace}\n")
    try:
        try:
            for host in hosts:
                ip("netns", "add", host.namespace)
                ip("-n", host.namespace, "link", "set", "lo", "up")
            ip("link", "add", hosts[0].link, "type", "veth", "peer", "name", hosts[1].link)
            for host in hosts:
                ip("link", "set", host.link, "netns", host.namespace)
                ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", host.link)
                ip("-n", host.namespace, "link", "set", host.link, "up")
        except OSError as error:
            pytest.skip(f"there are no such devices here: {error}")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"there are no network namespaces here: {error.stderr!r}")
        yield hosts
    finally:
        for host in hosts:
            with_namespace = ["ip", "netns", "del", host.namespace]
            subprocess.run(with_namespace, check=False, capture_output=True)


def train_with_ray(config):
    """Learn as one of the workers; write the checksum of the parameters to the folder `to`."""
    torch.set_num_threads(1)
    peers = tg.join({"seed": 1}, timeout=120.0)
    settings = tg.ContinualConfig(batch_size=16, slices=2)
    graph = tg.TemporalGraph("undirected", X_DIM)
    trainer = tg.ContinualTrainer(made_model("tgn"), graph, settings, peers=peers)
    trainer.run([made_events(64)])
    digest = int(checksum(dict(trainer.model.named_parameters())).item())
    Path(config["to"], f"rank-{peers.rank}-of-{peers.world}").write_text(str(digest))
    peers.close()
