"""Rendezvous of ranks: stale addresses are ignored and mismatched ranks refused."""

import os
import signal
import socket
import sys
import threading
import time
import warnings
from importlib import import_module

import pytest
import torch
import torch.distributed as dist

import tgflow
from helpers.effort import cases
from helpers.processes import addresses_listened_on, free_port
from helpers.worlds import results_of, run_apart
from tgflow.base.peers import PeerLost, Peers, WorldError


def in_directory(folder, rank, world):
    return {"RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "TGFLOW_MEETING": folder}


def at(port, world):
    return {
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }


def by_agent(port, rank, world, restarts):
    return {
        "RANK": rank,
        **at(port, world),
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "TORCHELASTIC_RESTART_COUNT": restarts,
    }


def join_with(environ, delay=0.0, **options):
    """Join after `delay` seconds; return the reached ranks."""
    os.environ.update({name: str(value) for name, value in environ.items()})
    time.sleep(delay)
    peers = tgflow.join(**{"timeout": 20.0} | options)
    mine = torch.tensor([peers.rank])
    found = peers.gather(mine, [1] * peers.world, kind="rank").tolist()
    peers.close()
    return found


def join_as(rank, environs, options=()):
    """Join as configured; return the outcome."""
    try:
        return join_with(environs[rank], **(options[rank] if options else {}))
    except (WorldError, PeerLost) as error:
        return f"{type(error).__name__}: {error}"


def outcomes_of(environs, options=()):
    return [each.result for each in run_apart(len(environs), join_as, environs, options)]


def test_single_process_does_not_wait_for_others(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert type(tgflow.join()) is Peers
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert type(tgflow.join()) is Peers, "a world of one sends nothing, and costs nothing"
    with pytest.raises(ValueError, match="timeout must be above 0, got 0"):
        tgflow.join(timeout=0)


@pytest.mark.slow
def test_join_times_out_without_rank_0(tmp_path):
    [text] = outcomes_of([in_directory(tmp_path, 1, 2)], [{"timeout": 0.5}])
    assert text.startswith("PeerLost: rank 1 found no attempt of rank 0 to join within 0.5 s")
    [text] = outcomes_of([{"RANK": 1} | at(free_port(), 2)], [{"timeout": 0.5}])
    assert text.startswith("PeerLost: rank 1 found no rank 0 to join within 0.5 s")


def test_ranks_with_different_settings_are_refused(tmp_path):
    environs = [in_directory(tmp_path, rank, 2) for rank in range(2)]
    for text in outcomes_of(environs, [{"settings": {"seed": rank}} for rank in range(2)]):
        assert text.startswith("WorldError: rank 1 has seed=1 and rank 0 has seed=0; start all")


def ended(store):
    """Rank 0 has ended before this rank joined its attempt."""
    store.set("tgflow/attempt", "2 old")


def accepted(store):
    """An earlier process of this rank had joined, and the world was complete."""
    store.set("tgflow/attempt", "2 old")
    store.add("2 old/joined/1", 1)
    store.set("2 old/verdict", "null")


def smaller(store):
    """The world had fewer ranks, this rank none of them."""
    store.set("tgflow/attempt", "1 old")
    store.set("1 old/verdict", "null")


def join_late(rank, environs):
    """Join; rank 0 starts after the others have found the stale attempt."""
    return join_with(environs[rank], delay=0.0 if rank else 1.0)


@pytest.mark.parametrize("what", cases([ended, accepted, smaller], [ended, accepted]))
def test_stale_attempts_in_the_store_of_an_agent_are_left(what):
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    what(agent)
    environs = [by_agent(agent.port, rank, 2, 0) for rank in range(2)]
    assert results_of(run_apart(2, join_late, environs)) == [[0, 1]] * 2


def test_store_of_a_rank_0_that_ends_meanwhile_is_left():
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    store = [
        dist.TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    ]
    store[0].set("tgflow/attempt", "2 old")
    threading.Timer(0.7, store.clear).start()
    environs = [{"RANK": rank} | at(port, 2) for rank in range(2)]
    assert results_of(run_apart(2, join_late, environs)) == [[0, 1]] * 2


def test_restart_counts_may_differ_and_stale_addresses_may_be_in_the_agent_store():
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for restarts in ([0, 0], [2, 1]):
        environs = [by_agent(agent.port, rank, 2, restarts[rank]) for rank in range(2)]
        assert outcomes_of(environs) == [[0, 1]] * 2


def test_missing_rank_is_named_by_all_ranks(tmp_path):
    environs = [in_directory(tmp_path, rank, 4) for rank in (0, 1, 3)]
    text = "PeerLost: 3 of 4 ranks joined within 1.5 s; missing: 2"
    assert outcomes_of(environs, [{"timeout": 1.5}] * 3) == [text] * 3


def join_while_rank_0_stops(rank, folder, name):
    """Join; rank 0 is stopped before a call, and is killed by the rank waiting for it."""
    joining = import_module("tgflow.ranks.join")  # the package names a function so
    joining.ANSWER_SECONDS = 0.2
    pid = folder / "pid"
    if rank == 0:
        pid.write_text(str(os.getpid()))
        setattr(joining, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGSTOP))
    said = join_as(rank, [in_directory(folder, each, 2) for each in range(2)], [{"timeout": 2}] * 2)
    os.kill(int(pid.read_text()), signal.SIGKILL)
    return said


@pytest.mark.slow
@pytest.mark.parametrize("where", ["_find_problem", "Ranks"])
def test_stopped_rank_0_does_not_block_the_others(where, tmp_path):
    """Stopped before it publishes the world, and before it connects to the others."""
    [_, text] = [each.result for each in run_apart(2, join_while_rank_0_stops, tmp_path, where)]
    assert text == "PeerLost: rank 1 has found a rank 0 that does not answer: is it stopped?"


def join_group(rank, folder, names):
    """Join the ranks `names` of a process group; return their ranks, and a sum in the group."""
    store = dist.FileStore(str(folder / "store"), 3)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
    subgroup = dist.new_group(names)
    found = []
    if rank in names:
        for _ in range(2):  # again after it was left
            peers = tgflow.join({"seed": 1}, timeout=20.0, group=subgroup)
            mine = torch.tensor([peers.rank])
            found.append(peers.gather(mine, [1] * peers.world, kind="rank").tolist())
            word = torch.tensor([rank])
            peers.broadcast(word, kind="feed", group="feed")
            found.append(word.item())
            peers.close()
    total = torch.tensor([rank])
    dist.all_reduce(total)
    return found, total.item()


def test_process_group_is_joined_and_stays_open(tmp_path):
    outcomes = results_of(run_apart(3, join_group, tmp_path, [1, 2]))
    assert outcomes == [([], 3), ([[0, 1], 1] * 2, 3), ([[0, 1], 1] * 2, 3)]


def join_with_threads(rank, environs, strict):
    torch.set_num_threads(1 + rank)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", RuntimeWarning)
        return join_as(rank, environs, [{"strict": strict}] * 2), [str(w.message) for w in found]


@pytest.mark.parametrize("strict", [False, True])
def test_different_thread_counts_warn_or_are_refused(tmp_path, strict):
    environs = [in_directory(tmp_path, rank, 2) for rank in range(2)]
    outcomes = [each.result for each in run_apart(2, join_with_threads, environs, strict)]
    text = "rank 1 computes with threads 2 and "
    if strict:
        assert [outcome.startswith(f"WorldError: {text}") for outcome, _ in outcomes] == [True] * 2
    else:
        assert [outcome for outcome, _ in outcomes] == [[0, 1]] * 2
        assert [len(found) for _, found in outcomes] == [1, 0]
        assert outcomes[0][1][0].startswith(text)


def listen_and_watch(rank, environs):
    """Return the listening addresses of a rank, and objects unpickled while joining and sending."""
    os.environ.update({name: str(value) for name, value in environs[rank].items()})
    unpickled = []
    sys.addaudithook(
        lambda event, args: unpickled.append(args) if event == "pickle.find_class" else None
    )
    peers = tgflow.join({"seed": 1}, timeout=20.0)
    for group in ("train", "plan", "feed"):
        peers.gather(torch.ones(1), [1, 1], kind="rank", group=group)
        peers.broadcast(torch.ones(1), kind="feed", group=group)
    return addresses_listened_on(), unpickled


def test_join_listens_only_on_its_interface_and_unpickles_nothing():
    environs = [{"RANK": rank} | at(free_port(), 2) for rank in range(2)]
    environs[1]["MASTER_PORT"] = environs[0]["MASTER_PORT"]
    for each in run_apart(2, listen_and_watch, environs):
        assert not each.error
        listening, unpickled = each.result
        assert unpickled == []
        assert set(listening) == {"0100007F"}  # 127.0.0.1
        assert len(listening) >= 1
