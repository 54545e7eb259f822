"""Ranks on two hosts: network namespaces joined by a link that can be cut."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from helpers.live_runs import SMALL, same_run, write_events
from helpers.processes import environment
from tgflow.cli import main

ADDRESSES = ["10.213.7.1", "10.213.7.2"]
PORT = 29511


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


LINKS = [f"tg{os.getpid() % 10**6}v{number}" for number in range(2)]


@contextmanager
def or_skipped():
    """Skip the test if network namespaces cannot be created."""
    try:
        yield
    except OSError as error:
        pytest.skip(f"there are no such devices here: {error}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"there are no network namespaces here: {error.stderr!r}")


@pytest.fixture
def namespaces():
    """Two network namespaces; skipped if they cannot be created."""
    names = [f"tgflow-{os.getpid()}-{number}" for number in range(2)]
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and ip")
    try:
        with or_skipped():
            for name in names:
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def connected(names):
    """Set up the link and address of each namespace; return both."""
    for name, link, address in zip(names, LINKS, ADDRESSES, strict=True):
        ip("link", "set", link, "netns", name)
        ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
        ip("-n", name, "link", "set", link, "up")
    return list(zip(names, LINKS, strict=True))


@pytest.fixture
def hosts(namespaces):
    """Two namespaces joined by a link, and the interface in each."""
    with or_skipped():
        ip("link", "add", LINKS[0], "type", "veth", "peer", "name", LINKS[1])
        return connected(namespaces)


EVENTS = 1_200
TIMEOUT = 10  # seconds; a rank on a busy machine can be silent for some of them


def torchrun(number, hosts, folder, *arguments):
    """Start one rank of a run on its host by torchrun."""
    name, link = hosts[number]
    options = [
        *("--nnodes", 2, "--nproc-per-node", 1, "--max-restarts", 5, "--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", f"{ADDRESSES[0]}:{PORT}", "--rdzv-id", folder.name),
        *("--rdzv-conf", f"is_host={1 - number}", "--local-addr", ADDRESSES[number]),
        *("-m", "tgflow", "run", *arguments, "--interface", link),
    ]
    command = [sys.executable, "-m", "torch.distributed.run", *map(str, options)]
    with (folder / f"said-{number}").open("w") as said:
        return subprocess.Popen(
            ["ip", "netns", "exec", name, *command],
            stdout=said,
            stderr=said,
            env=environment() | {"OMP_NUM_THREADS": "1"},
        )


def learned(run):
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_run_on_two_hosts_survives_a_temporary_network_outage(hosts, tmp_path):
    events = write_events(tmp_path / "events.csv", EVENTS)
    options = ("--stream", events, *SMALL, "--checkpoint-batches", 3)
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(["run", *map(str, options), "--slices", "2", "--out", str(one)]) == 0
    slowly = ("--out", two, "--resume", "--rank-timeout", TIMEOUT, "--speed", 60 * 40)
    agents = [torchrun(number, hosts, tmp_path, *options, *slowly) for number in range(2)]
    deadline = time.monotonic() + 300
    while learned(two) < 8:
        assert time.monotonic() < deadline, (tmp_path / "said-0").read_text()
        time.sleep(0.05)
    name, link = hosts[1]
    ip("-n", name, "link", "set", link, "down")
    time.sleep(2 * TIMEOUT)
    ip("-n", name, "link", "set", link, "up")
    for number, agent in enumerate(agents):
        assert agent.wait(timeout=300) == 0, (tmp_path / f"said-{number}").read_text()
    same_run(one, two)
    starts = (two / "run.log").read_text().count('"event": "start"')
    assert starts > 1, "the cut was never felt"
