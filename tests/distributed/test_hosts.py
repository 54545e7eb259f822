"""Ranks on two hosts: namespaces of this one, joined by a cable that can be cut."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from helpers.live_runs import SMALL, same_run, write_events
from helpers.processes import environment
from tgflow.cli import main

ADDRESSES = ["10.213.7.1", "10.213.7.2"]
PORT = 29511
RANK = """
import json, os, sys, time
import torch
import tgflow
from pathlib import Path
from helpers.sockets import addresses_listened_on

folder, interface, cut = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "cut"
peers = tgflow.join(interface=interface, timeout=30.0 if not cut else 4.0)
found = {"ranks": peers.gather(torch.tensor([peers.rank]), [1, 1], kind="rank").tolist()}
found["listening"] = sorted(set(addresses_listened_on()))
if cut:
    (folder / f"ready-{peers.rank}").touch()
    try:
        while True:
            peers.gather(torch.ones(1), [1, 1], kind="rank")
    except tgflow.peers.PeerLost as error:
        found["lost"] = str(error)
    while not (folder / "cut").exists():
        time.sleep(0.01)
(folder / f"{peers.rank}.json").write_text(json.dumps(found))
"""


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts():
    """Two network namespaces and the interface in each; skipped where they cannot be made."""
    names = [f"tgflow-{os.getpid()}-{number}" for number in range(2)]
    links = [f"tg{os.getpid() % 10**6}v{number}" for number in range(2)]
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and ip")
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", links[0], "type", "veth", "peer", "name", links[1])
        for name, link, address in zip(names, links, ADDRESSES, strict=True):
            ip("link", "set", link, "netns", name)
            for words in (
                ["addr", "add", f"{address}/24", "dev", link],
                ["link", "set", link, "up"],
            ):
                ip("-n", name, *words)
            ip("-n", name, "link", "set", "lo", "up")
        yield list(zip(names, links, strict=True))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"there are no network namespaces here: {error.stderr!r}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def start(rank, hosts, folder, cut):
    """Start a rank on its host, as a launcher that sets an address would."""
    name, link = hosts[rank]
    numbers = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": PORT}
    environ = {key: str(value) for key, value in numbers.items()} | {"MASTER_ADDR": ADDRESSES[0]}
    script = [sys.executable, "-c", RANK, str(folder), link, "cut" if cut else "whole"]
    return subprocess.Popen(["ip", "netns", "exec", name, *script], env=environment() | environ)


def results(ranks, folder):
    for process in ranks:
        assert process.wait(timeout=120) == 0
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def as_in_proc(address):
    """The address as /proc/net/tcp has it."""
    return "".join(f"{int(byte):02X}" for byte in reversed(address.split(".")))


@pytest.mark.slow
def test_hosts_join_by_the_interface_that_is_named_and_listen_on_no_other(hosts, tmp_path):
    ranks = [start(rank, hosts, tmp_path, cut=False) for rank in range(2)]
    for found, address in zip(results(ranks, tmp_path), ADDRESSES, strict=True):
        assert found == {"ranks": [0, 1], "listening": [as_in_proc(address)]}


@pytest.mark.slow
def test_a_cable_that_is_cut_is_a_lost_rank_after_the_timeout(hosts, tmp_path):
    ranks = [start(rank, hosts, tmp_path, cut=True) for rank in range(2)]
    deadline = time.monotonic() + 120
    while not all((tmp_path / f"ready-{rank}").exists() for rank in range(2)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    ip("-n", hosts[1][0], "link", "set", hosts[1][1], "down")
    (tmp_path / "cut").touch()
    for rank, found in enumerate(results(ranks, tmp_path)):
        assert found["lost"].startswith(f"rank {rank} lost another one: ")


EVENTS = 1_200


def torchrun(number, hosts, folder, *arguments):
    """Start one rank of a run on its host, by a torchrun that meets the other one."""
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
@pytest.mark.timeout(500)
def test_a_run_on_two_hosts_outlives_a_cable_that_is_cut_for_a_while(hosts, tmp_path):
    events = write_events(tmp_path / "events.csv", EVENTS)
    options = ("--stream", events, *SMALL, "--checkpoint-batches", 3)
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(["run", *map(str, options), "--slices", "2", "--out", str(one)]) == 0
    slowly = ("--out", two, "--resume", "--rank-timeout", 5, "--speed", 60 * 40)
    agents = [torchrun(number, hosts, tmp_path, *options, *slowly) for number in range(2)]
    deadline = time.monotonic() + 120
    while learned(two) < 8:
        assert time.monotonic() < deadline, (tmp_path / "said-0").read_text()
        time.sleep(0.05)
    name, link = hosts[1]
    ip("-n", name, "link", "set", link, "down")
    time.sleep(10)
    ip("-n", name, "link", "set", link, "up")
    for number, agent in enumerate(agents):
        assert agent.wait(timeout=300) == 0, (tmp_path / f"said-{number}").read_text()
    same_run(one, two)
    starts = (two / "run.log").read_text().count('"event": "start"')
    assert starts > 1, "the cut was never felt"
