"""Worlds of real processes: exchanges are delivered and counted, dead ranks named."""

import os
import signal
import threading
import time

import pytest
import torch

from helpers.effort import cases
from helpers.worlds import in_world, run_apart
from tgflow.base.peers import Flow, PeerLost

WORLDS = cases([1, 2, 3, 4], quick=[3])


def message(sender, receiver):
    """Different lengths for each pair; rank 1 sends nothing to itself and rank 0."""
    size = 0 if sender == 1 and receiver < 2 else 3 * sender + receiver
    return torch.full((size,), 10 * sender + receiver, dtype=torch.uint8)


def exchange_all(peers):
    sends = [message(peers.rank, rank) for rank in range(peers.world)]
    receives = [torch.empty_like(message(rank, peers.rank)) for rank in range(peers.world)]
    peers.exchange(sends, receives, kind="rows")
    for rank, received in enumerate(receives):
        assert torch.equal(received, message(rank, peers.rank))
    sent = sum(len(buffer) for rank, buffer in enumerate(sends) if rank != peers.rank)
    flow = peers.traffic.flows["rows"]
    assert (flow.calls, flow.bytes) == (1, sent)
    assert flow.seconds > 0


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_exchange_payloads_of_any_length(world):
    in_world(world, exchange_all)


def use_groups_at_once(peers):
    """Two threads with different orders of calls, which do not interleave."""
    mine = torch.full((100,), peers.rank)
    wanted = torch.arange(peers.world).repeat_interleave(100)

    def many(group, results):
        sizes = [100] * peers.world
        results += [peers.gather(mine, sizes, kind=group, group=group) for _ in range(100)]

    found = {"train": [], "plan": [], "feed": []}
    threads = [threading.Thread(target=many, args=item) for item in found.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(each, wanted) for results in found.values() for each in results)
    assert {flow.calls for flow in peers.traffic.flows.values()} == {100}


def test_groups_can_be_used_by_concurrent_threads():
    in_world(2, use_groups_at_once)


def misuse(peers):
    with pytest.raises(ValueError, match=r"sends must .* for each of 2 ranks, got 1"):
        peers.exchange([message(0, 0)], [message(0, 0)] * 2, kind="rows")
    exchange_all(peers)
    peers.close()
    peers.close()
    with pytest.raises(PeerLost, match="this rank has left the world"):
        peers.gather(torch.ones(1), [1, 1], kind="gradient")
    assert peers.traffic.flows.keys() == {"rows"}


def test_misuse_is_refused_before_sending_and_a_world_can_be_closed():
    in_world(2, misuse)


def lose_rank_1(peers, how):
    exchange_all(peers)
    pids = peers.gather(torch.tensor([os.getpid()]), [1] * peers.world, kind="pids").tolist()
    if peers.rank == 1:
        how_it_ends(how)
    start = time.monotonic()
    with pytest.raises(PeerLost) as found:
        peers.gather(torch.ones(1), [1] * peers.world, kind="gradient")
    seconds = time.monotonic() - start
    again = time.monotonic()
    with pytest.raises(PeerLost) as later:
        peers.broadcast(torch.ones(1), kind="feed", group="feed")
    assert time.monotonic() - again < 0.1
    assert str(later.value) == str(found.value) == str(peers.failure)
    assert peers.traffic.flows.get("gradient", Flow()).calls == 0
    if how == "stop":
        os.kill(pids[1], signal.SIGKILL)
    peers.close()
    return seconds, str(found.value)


def how_it_ends(how):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    raise RuntimeError("a fault of its own")


@pytest.mark.parametrize("how", cases(["kill", "raise"], quick=["kill"]))
def test_dead_rank_is_named_by_the_others_immediately(how):
    outcomes = run_apart(3, lose_rank_1, how, joined=20.0)
    assert outcomes[1].code == (-signal.SIGKILL if how == "kill" else 1)
    for rank in (0, 2):
        seconds, text = outcomes[rank].result
        assert seconds < 5
        assert text.startswith(f"rank {rank} lost another one: rank 1 (process ")
        assert "did not respond within 2 s" in text


@pytest.mark.slow
def test_hanging_rank_is_named_after_the_timeout():
    outcomes = run_apart(2, lose_rank_1, "stop", joined=3.0)
    seconds, text = outcomes[0].result
    assert 2 < seconds < 8
    assert text.startswith("rank 0 lost another one: rank 1 (process ")
    assert "did not respond within 2 s" in text
