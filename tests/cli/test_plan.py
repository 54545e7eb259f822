"""What `tgflow plan` says of a world, against what real ranks send; and what it refuses."""

from __future__ import annotations

import pytest
import torch

from helpers.effort import slow
from helpers.live_runs import write_events, write_features
from helpers.shards import sharded_rows, with_sharded_memory
from helpers.worlds import in_world
from tgflow.cli.planning import plan_of
from tgflow.cli.rank_plan import World
from tgflow.distributed.asking import AskingSampler
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.models import TGAT, TGN
from tgflow.sampling import Frontier
from tgflow.sampling.expand import distinct
from tgflow.sampling.hops import hop_by_hop
from tgflow.schedule import SliceSchedule
from tgflow.train import ContinualConfig, ContinualTrainer
from tgflow.train.microbatch import PREDICT
from tgflow.train.plans import micro_batch_plans

SLICES = 5
X_DIM = 3
SMALL = {"embedding_dim": 8, "time_dim": 8, "heads": 2, "dropout": 0.0, "edge_x_dim": X_DIM}
MODELS = {
    "tgn": lambda: TGN(**SMALL, memory_dim=8, neighbors=3),
    "tgat": lambda: TGAT(**SMALL, neighbors=2, layers=2),
}


def made_events(num_events=150):
    """Events among enough nodes that all ranks own some; the last micro-batch is not full."""
    draw = torch.Generator().manual_seed(3)
    src, dst = torch.randint(200, (2, num_events), generator=draw)
    return EventBatch(src, dst, torch.arange(num_events) // 2, torch.ones(num_events, X_DIM))


def made_graph(shard=None):
    return TemporalGraph.from_events(made_events(), shard=shard)


def config_of(**changes):
    return ContinualConfig(batch_size=40, slices=SLICES, mrr_negatives=3, **changes)


def ask(peers, shard_of_graph, plan, epoch, index, wanted):
    """Sample a rank's slices of a batch by asking the owners of nodes."""

    def walk(number):
        roots = plan.draw(epoch, index, number)
        frontier, row = distinct(roots.queries, None)
        as_of = roots.host.end if plan.sees_all_before else None
        if number not in wanted:  # a rank with fewer slices than others asks nothing
            empty = (column[:0] for column in (frontier.nodes, frontier.t, frontier.position))
            frontier, row = Frontier(*empty), row[:0]
        return hop_by_hop(
            1.0, None, frontier, plan.fanouts, rows=row, key=roots.key, as_of=as_of,
            by_time=False, by_position=plan.with_memory,
        )  # fmt: skip

    most = -(-SLICES // peers.world)
    numbers = [*wanted, *(each for each in range(SLICES) if each not in wanted)][:most]
    AskingSampler(shard_of_graph, peers, plan.sampler).walk([walk(each) for each in numbers])


def learned(peers, name, config, is_sharded=False):
    """Return the bytes by kind that a rank sends while it learns a stream."""
    torch.manual_seed(0)
    model, graph = MODELS[name](), TemporalGraph(edge_x_dim=X_DIM)
    if is_sharded:
        model = with_sharded_memory(model, peers)
        graph = TemporalGraph(edge_x=sharded_rows(X_DIM, peers), shard=peers.shard)
    trainer = ContinualTrainer(model, graph, config, peers=peers)
    for _ in trainer.steps([made_events()]):
        pass
    return {kind: flow.bytes for kind, flow in peers.traffic.flows.items()}


def asked(peers, name, config):
    """Return the bytes by kind that a rank sends to sample a stream's batches from shards."""
    whole, mine = made_graph(), made_graph(shard=peers.shard)
    plans = micro_batch_plans(whole, MODELS[name](), config)
    wanted = SliceSchedule(SLICES, peers.world).slices_of(peers.rank)
    for index in range(len(plans)):
        for epoch, plan in ((PREDICT, plans.predict), (1, plans.learn)):
            ask(peers, mine, plan, epoch, index, wanted)
    return {kind: flow.bytes for kind, flow in peers.traffic.flows.items()}


def planned(world, name, config):
    """Return the bytes by kind of each rank, as they are planned."""
    torch.manual_seed(0)
    schedule = SliceSchedule(config.slices, world)
    found = plan_of(made_graph(), MODELS[name](), config, schedule, World(world, num_batches=0))
    return found.costs.sent


TRAINED = ("gradient", "scores", "rows", "lost", "checksum", "figures", "order", "step")


@pytest.mark.parametrize(
    ("world", "name", "updates"),
    [slow(2, "tgn", 2), slow(4, "tgn", 1), slow(4, "tgat", 1), slow(2, "tgn", 0)],
)
def test_planned_bytes_are_counted_bytes(world, name, updates):
    """Of everything that ranks send to learn together, headers included."""
    config = config_of(updates=updates)
    counts = in_world(world, learned, name, config)
    sent = planned(world, name, config)
    known = {kind for each in counts for kind in each}
    assert known <= {*TRAINED}
    for kind in known:
        assert sent[kind] == [each.get(kind, 0) for each in counts], kind
    assert {kind for kind in TRAINED if any(sent.get(kind, ()))} <= known


SHARDED = (
    "memory queries", "memory rows", "memory clocks", "memory", "memory stored", "edge rows",
)  # fmt: skip


@pytest.mark.parametrize(("world", "updates"), [(3, 2), slow(4, 1), slow(2, 0)])
def test_planned_bytes_are_counted_bytes_where_all_is_sharded(world, updates):
    """But for 8 bytes to each rank for each turn: there is one for each micro-batch at most."""
    config = config_of(updates=updates)
    counts = in_world(world, learned, "tgn", config, True)
    sent = planned(world, "tgn", config)
    sent["step"] = sent["step, memory sharded"]
    turns = [each.pop("turns") for each in counts]
    assert turns == [turns[0]] * world
    assert all(0 < found <= most for found, most in zip(turns, sent["turns"], strict=True))
    known = {kind for each in counts for kind in each}
    assert known == {*SHARDED, *TRAINED, "queries", "answers"} - {"rows"} - (
        set() if updates else {"gradient"}
    )
    for kind in known:
        assert sent[kind] == [each.get(kind, 0) for each in counts], kind


@pytest.mark.parametrize(
    ("world", "name", "visibility"), [(2, "tgat", "event"), (4, "tgn", "batch")]
)
def test_planned_questions_are_those_that_owners_get(world, name, visibility):
    config = config_of(visibility=visibility)
    counts = in_world(world, asked, name, config)
    sent = planned(world, name, config)
    for kind in ("queries", "answers"):
        assert sent[kind] == [each[kind] for each in counts], kind


def made_plan(tgflow, path, *more):
    small = ("--dim", 8, "--neighbors", 3, "--batch-size", 50)
    return tgflow("plan", "--data", path, *small, *more)


def test_world_64_of_a_small_stream(tgflow, events_csv):
    found = made_plan(tgflow, events_csv, "--world", 64, "--json").json
    assert found["slices"] == found["world"] == 64
    assert found["slices_of_rank"] == [[rank] for rank in range(64)]
    assert found["num_batches"] == 8
    # Each event once to predict and once to learn, and half as many replayed, but at the start.
    assert 2 * 400 < sum(found["loads"]["rows"]) <= 2.5 * 400
    assert max(found["loads"]["rows"]) <= sum(found["loads"]["rows"]) / 64 + 2 * 8
    columns = 2 * 8 * 400 + 8 * 400
    assert found["bytes"]["feed"] == [63 * columns, *[0] * 63]
    # 20 nodes: the parts of 44 ranks hold none, which therefore answer nothing.
    assert sum(each > 0 for each in found["bytes"]["answers"]) == 20


def test_what_is_in_shards_shrinks_with_the_world(tgflow, events_csv):
    one, four = (
        made_plan(tgflow, events_csv, "--world", world, "--json").json["memory"] for world in (1, 4)
    )
    for alone, shared in zip(one, four, strict=True):
        assert alone["whole"] == shared["whole"]
        assert alone["shard"] == (None if shared["shard"] is None else alone["whole"])
        if shared["shard"] is not None:
            assert shared["shard"] == -(-alone["whole"] // 4)
    assert {each["name"] for each in four if each["shard"]} == {"neighbors", "node memory"}


def test_one_rank_sends_nothing(tgflow, events_csv):
    found = made_plan(tgflow, events_csv, "--world", 1, "--json").json
    assert {kind: sum(each) for kind, each in found["bytes"].items() if sum(each)} == {}


def test_a_larger_stream_needs_more_and_may_not_fit(tgflow, events_csv):
    ran = made_plan(
        tgflow, events_csv, "--world", 4, "--events", "1e10", "--nodes", "1e9", "--memory-limit",
        "64GB",
    )  # fmt: skip
    assert ran.code == 0
    assert "a log holds at most 2^33 events" in ran.out
    assert "event log: 240 GB, all of it on every rank" in ran.out
    assert "node ids: 56 GB, all of it on rank 0" in ran.out
    fits = made_plan(tgflow, events_csv, "--world", 4, "--memory-limit", "1GB")
    assert "fits in 1 GB a rank, replicated" in fits.out


def test_some_micro_batches_are_a_sample_of_all(tgflow, events_csv):
    some, whole = (
        made_plan(tgflow, events_csv, "--world", 2, "--batches", n, "--json").json for n in (2, 0)
    )
    assert (some["num_batches"], whole["num_batches"]) == (2, 8)
    assert sum(some["bytes"]["gradient"]) * 4 == sum(whole["bytes"]["gradient"])


def test_features_travel_where_they_are_in_shards(tgflow, tmp_path):
    path = write_features(tmp_path / "x.csv", 200)
    found = made_plan(tgflow, path, "--features", "f*", "--world", 4, "--json").json
    counts = 4 * 3 * 8 * found["num_batches"]
    assert sum(found["bytes"]["edge rows"]) > counts
    assert (sum(found["bytes"]["edge rows"]) - counts) % (8 + 2 * 4) == 0
    assert found["bytes"]["feed"] == [3 * 200 * (24 + 8), 0, 0, 0]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--world", 65), "a world has 1 to 64 ranks, got 65"),
        (("--world", 0), "a world has 1 to 64 ranks, got 0"),
        (("--world", 4, "--slices", 2), "a batch has 2 slices, so at most 2 of 4 ranks"),
    ],
)
def test_worlds_that_cannot_be_are_refused(tgflow, events_csv, flags, said):
    ran = made_plan(tgflow, events_csv, *flags)
    assert ran.code == 2
    assert said in ran.err


def test_a_stream_without_events_is_refused(tgflow, tmp_path):
    path = write_events(tmp_path / "none.csv", size=0)
    ran = made_plan(tgflow, path, "--world", 2)
    assert ran.code == 65
    assert "no events to plan" in ran.err
