"""Ranks on two hosts: outages of the network, and hosts that leave and return."""

import json
import time

import pytest

from helpers.live_runs import SMALL, same_run, write_events
from tgflow.cli import main

PORT = 29511
EVENTS = 1_200
TIMEOUT = 10  # seconds; a rank on a busy machine can be silent for some of them
PATIENCE = 400


def torchrun(host, folder, *arguments, nnodes="2", store_at=0, hosts=(), **environ):
    """Start one rank of a run on a host by torchrun, whose store is on one of them."""
    number = hosts.index(host)
    options = [
        *("--nnodes", nnodes, "--nproc-per-node", 1, "--max-restarts", 8, "--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", f"{hosts[store_at].address}:{PORT}", "--rdzv-id", folder.name),
        *("--rdzv-conf", f"is_host={int(number == store_at)},last_call_timeout=5"),
        *("--local-addr", host.address),
        *("-m", "tgflow", "run", *arguments, "--set", f"ranks.interface={host.link}"),
    ]
    command = ["-m", "torch.distributed.run", *options]
    return host.start(command, folder / f"said-{number}", environ)


def learned(run):
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def starts(run):
    """Return the positions at which the run was started so far."""
    path = run / "run.log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [entry for entry in map(json.loads, lines) if entry.get("event") == "start"]


def wait_until(is_there, folder):
    deadline = time.monotonic() + PATIENCE
    while not is_there():
        said = "\n".join(path.read_text()[-3000:] for path in folder.glob("said-*"))
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def finish(agents, folder):
    for number, agent in agents.items():
        code = agent.wait(timeout=PATIENCE)
        assert code == 0, (folder / f"said-{number}").read_text()[-6000:]


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_run_on_two_hosts_survives_a_temporary_network_outage(hosts, tmp_path):
    events = write_events(tmp_path / "events.csv", EVENTS)
    options = ("--stream", events, *SMALL, "--checkpoint-batches", 3)
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(["run", *map(str, options), "--slices", "2", "--out", str(one)]) == 0
    slowly = ("--out", two, "--resume", "--set", f"ranks.timeout={TIMEOUT}", "--speed", 60 * 40)
    agents = {
        number: torchrun(host, tmp_path, *options, *slowly, hosts=hosts)
        for number, host in enumerate(hosts)
    }
    wait_until(lambda: learned(two) >= 8, tmp_path)
    hosts[1].set_link("down")
    time.sleep(2 * TIMEOUT)
    hosts[1].set_link("up")
    finish(agents, tmp_path)
    same_run(one, two)
    assert len(starts(two)) > 1, "the cut was never felt"
    assert "rank 0 lost another one: rank 1 (process " in (tmp_path / "said-0").read_text()


ELASTIC = {"nnodes": "1:2", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": 1}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lost", [1, 0])
def test_elastic_run_shrinks_when_a_host_is_killed_and_grows_when_it_returns(hosts, tmp_path, lost):
    """Rank 0 is on the first host; the store of torchrun is on the other one than the lost one."""
    events = write_events(tmp_path / "events.csv", EVENTS)
    options = ("--stream", events, *SMALL, "--checkpoint-batches", 3, "--slices", 2)
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(["run", *map(str, options), "--out", str(one)]) == 0
    slowly = ("--out", two, "--resume", "--set", f"ranks.timeout={6 * TIMEOUT}", "--speed", 60 * 8)

    def start(number):
        return torchrun(
            hosts[number], tmp_path, *options, *slowly, hosts=hosts, store_at=1 - lost, **ELASTIC
        )

    agents = {number: start(number) for number in range(2)}
    wait_until(lambda: learned(two) >= 4, tmp_path)
    hosts[lost].kill()
    before = len(starts(two))
    wait_until(lambda: len(starts(two)) > before, tmp_path)  # without the lost host
    position = learned(two)
    wait_until(lambda: learned(two) > position, tmp_path)
    before = len(starts(two))
    agents[lost] = start(lost)
    wait_until(lambda: len(starts(two)) > before, tmp_path)  # with it again
    finish(agents, tmp_path)
    same_run(one, two)
    assert "slices = 2" in (two / "config.toml").read_text()
