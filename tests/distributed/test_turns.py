"""Turns of ranks that prepare batches together."""

from __future__ import annotations

import pytest

from helpers.plan_variants import made_events, plan_of
from helpers.thread_peers import ThreadPeers, in_threads
from tgflow.distributed.asking import AskingSampler
from tgflow.graph import TemporalGraph
from tgflow.plan.in_order import BatchError
from tgflow.plan.turns import SharePreparer, TurnGate, TurnsOver
from tgflow.schedule import SliceSchedule


def test_who_leaves_lets_those_go_who_have_begun_a_turn():
    def work(peers: ThreadPeers) -> list[str]:
        gate, said = TurnGate(peers), []
        with gate.turn(3):
            said.append("first")
        if peers.rank == 1:
            gate.leave()
        for _ in range(2):
            try:
                with gate.turn(3):
                    said.append("next")
            except TurnsOver:
                said.append("over")
        gate.leave()
        return said

    assert in_threads(3, work) == [["first", "over", "over"]] * 3


def test_what_fails_names_the_batch_and_ends_all_ranks():
    def work(peers: ThreadPeers) -> None:
        graph = TemporalGraph("undirected", 3, shard=peers.shard)
        graph.append(made_events(41))
        plan, schedule = plan_of(graph, slices=4), SliceSchedule(4, peers.world)
        walk = AskingSampler(graph, peers, plan.sampler).walk
        slices = schedule.slices_of(peers.rank)
        SharePreparer(lambda epoch: plan, walk, slices, schedule.most).shares([(0, 99)])

    with pytest.raises(BatchError, match="batch 99 of epoch 0 failed: there is no batch 99"):
        in_threads(2, work)
