"""Shares of batches over shards of a graph, against those of a plan of one that has everything."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from helpers.plan_reference import assert_same_batch
from helpers.plan_variants import VARIANTS, made_events, plan_of
from helpers.shards import STRIDE
from helpers.thread_peers import ThreadPeers, in_threads
from tgflow.batch import Share
from tgflow.distributed.asking import AskingSampler
from tgflow.graph import TemporalGraph
from tgflow.peers import Shard
from tgflow.plan.in_order import BatchError
from tgflow.plan.negatives import NegativeSampler
from tgflow.plan.plan import Plan
from tgflow.plan.turns import SharePreparer, TurnGate, TurnsOver, shares_by_turns
from tgflow.schedule import SliceSchedule
from tgflow.tables import FeatureTable

MADE = made_events(41)
EVENTS = replace(MADE, src=STRIDE * MADE.src, dst=STRIDE * MADE.dst)
SLICES = 4


@dataclass(frozen=True)
class TwoPlans:
    """Plans of one graph: one epoch is predicted, the others are learned."""

    predict: Plan
    learn: Plan

    def plan_of(self, epoch: int) -> Plan:
        return self.learn if epoch else self.predict


def graph_of(shard: Shard) -> TemporalGraph:
    graph = TemporalGraph("undirected", edge_x=FeatureTable(3), shard=shard)
    graph.append(EVENTS)
    return graph


def plans_of(graph: TemporalGraph, variant: dict[str, Any]) -> TwoPlans:
    predicted = variant | {"replay": None, "negatives": NegativeSampler("random", 3)}
    return TwoPlans(
        plan_of(graph, slices=SLICES, **predicted), plan_of(graph, slices=SLICES, **variant)
    )


def preparer_for(peers: ThreadPeers, variant: dict[str, Any]) -> SharePreparer:
    graph = graph_of(peers.shard)
    plans = plans_of(graph, variant)
    asking = AskingSampler(graph, peers, plans.learn.sampler)
    schedule = SliceSchedule(SLICES, peers.world)
    return SharePreparer(plans.plan_of, asking.walk, schedule.slices_of(peers.rank), schedule.most)


def turns_of(size: int, num_batches: int) -> list[list[tuple[int, int]]]:
    """Tasks of micro-batches, `size` of them at once: each is predicted, then learned twice."""
    indices = range(num_batches)
    return [
        [(epoch, index) for index in indices[first : first + size] for epoch in range(3)]
        for first in range(0, num_batches, size)
    ]


@settings(max_examples=tries(60, 5), deadline=None)
@given(
    variant=st.sampled_from(VARIANTS),
    world=st.integers(1, 4),
    size=st.integers(1, 8),
    num_threads=st.integers(0, 2),
)
def test_turns_prepare_what_one_process_would(variant, world, size, num_threads):
    """Predicted and replayed batches ride along; ranks have one, two or four slices."""
    whole = plans_of(graph_of(Shard()), variant)
    turns = turns_of(size, len(whole.predict))

    def work(peers: ThreadPeers) -> list[Share]:
        preparer = preparer_for(peers, variant)
        gate = TurnGate(peers)
        return [*shares_by_turns(turns, preparer, gate, num_threads=num_threads, ahead=2)]

    tasks = [task for turn in turns for task in turn]
    for rank, shares in enumerate(in_threads(world, work)):
        wanted = SliceSchedule(SLICES, world).slices_of(rank)
        for (epoch, index), share in zip(tasks, shares, strict=True):
            expected = whole.plan_of(epoch).share(epoch, index, wanted)
            assert share.numbers == expected.numbers
            for found, batch in zip(share.slices, expected.slices, strict=True):
                assert_same_batch(found, batch)


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
        preparer_for(peers, {}).shares([(0, 99)])

    with pytest.raises(BatchError, match="batch 99 of epoch 0 failed: there is no batch 99"):
        in_threads(2, work)
