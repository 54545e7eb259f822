"""The bench of caches: on few events, its hit rates those of the slow reference."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
import torch

import benchmarks.cache
from benchmarks import cache_gather
from benchmarks.cache_live import follow, live_rows
from benchmarks.cache_planner import least_misses
from benchmarks.cache_rounds import KEEPS, NEXT, round_rows, run_rounds
from helpers.cache_reference import ReferenceCache
from helpers.strategies import skewed_events
from tgflow.bench import cache as bench
from tgflow.bench.cache_trace import TGAT, TGN, Model, Trace, plan_of, replay, traces
from tgflow.bench.options import Options
from tgflow.bench.row import Params

QUICK = Options(quick=True)
EVENTS = skewed_events(1_500, 80)


@pytest.fixture(scope="module")
def edges() -> Trace:
    return traces(plan_of(TGN, EVENTS))[0]


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo"])
def test_hit_rates_are_the_references(edges, policy):
    reference = ReferenceCache(100, policy)
    for ids in edges.batches:
        reference.gather(ids.tolist())
    assert replay(edges, 100, policy).counters.hits == reference.counters.hits > 0


def test_knowing_more_never_misses_more(edges):
    misses = {policy: replay(edges, 150, policy).counters.misses for policy in bench.POLICIES}
    assert misses["belady"] == min(misses.values())
    assert misses["belady"] < misses["lru"]


def test_every_size_and_policy_has_a_row_and_a_point(edges):
    of: Params = {"stream": "made", "model": TGN.note}
    cached = list(bench.replay_rows(edges, of, bench.QUICK_SHARES))
    assert len(cached) == len(bench.QUICK_SHARES) * len(bench.POLICIES)
    assert all(0 <= row.value <= 1 for row in cached)
    root = ET.fromstring(bench.draw(cached))
    assert sum(element.tag.endswith("circle") for element in root.iter()) == len(cached)


@pytest.mark.parametrize("model", [TGN, TGAT])
def test_what_the_planner_is_worth_is_told(model: Model) -> None:
    rows = list(benchmarks.cache.trace_rows("made", EVENTS, model, QUICK))
    worth = [row for row in rows if row.name.startswith(("misses,", "planning"))]
    assert [(row.name, row.params["rows of"]) for row in worth] == [
        (name, kind)
        for kind in ("edges", "nodes")
        for name in (
            "misses, LRU to window of 256",
            "misses, window of 256 to all",
            "planning an access",
        )
    ]
    assert [row.target is not None for row in worth[::3]] == [True, False]
    for row in worth[::3]:
        assert 1 <= row.value <= float(row.params["at most"]) + 0.01


def test_no_policy_misses_less_than_first_uses_or_what_exceeds_the_cache() -> None:
    trace = Trace("edges", [torch.tensor([0, 1, 2]), torch.tensor([2, 1])], 3)
    assert [least_misses(trace, capacity) for capacity in (0, 1, 2, 3)] == [5, 3, 3, 3]
    assert replay(trace, 3, "belady").counters.misses == 3
    assert replay(trace, 1, "belady").counters.misses == 4


HOT, OTHER = torch.arange(5), torch.arange(5, 10)


@pytest.mark.parametrize(
    ("keeps", "expected"),
    [
        ((), (0, 20, 0)),
        (("reuse",), (0, 20, 0)),
        (("reuse", "restore"), (5, 15, 10)),
        (("reuse", "restore", "preload"), (10, 10, 15)),
        (("reuse", NEXT), (5, 15, 5)),
    ],
)
def test_what_is_kept_spares_the_next_round_misses(keeps, expected):
    """Two rounds of five rows, with five others evaluated after each."""
    for writes_through in (True, False):
        counters = run_rounds(
            [[HOT, OTHER, HOT, OTHER]], 10, 5, 2, keeps=keeps, writes_through=writes_through
        ).counters
        assert (counters.hits, counters.misses, counters.preloaded) == expected


def test_a_bare_cache_is_emptied_before_the_rows_of_a_round_come():
    rounds = [[HOT, OTHER, HOT, OTHER]]
    through = run_rounds(rounds, 10, 10, 2, keeps=()).counters
    beside = run_rounds(rounds, 10, 10, 2, keeps=(), writes_through=False).counters
    assert (through.hits, through.misses, through.written) == (10, 10, 10)
    assert (beside.hits, beside.misses, beside.written) == (0, 20, 0)


def test_rounds_have_a_row_for_each_way_and_targets_for_the_last():
    rows = list(round_rows("made", EVENTS, QUICK))
    ways = [(w, ", ".join(keeps)) for w in ("yes", "no") for keeps in KEEPS]
    assert [(row.params["written through"], row.params["with"]) for row in rows[::2]] == ways
    assert all(row.value <= 1 for row in rows)
    assert all((row.target_ratio is None) == (NEXT not in row.params["with"]) for row in rows)


def test_a_gather_finds_about_nine_in_ten():
    table = cache_gather.filled(200_000, 8)
    for policy in cache_gather.POLICIES:
        rows = list(cache_gather.timed_rows(table, 16_000, policy, QUICK))
        assert rows[0].params["beside"] == "table.gather"
        for row in rows:
            assert float(row.params["hit rate"]) == pytest.approx(0.9, abs=0.05)
            assert row.value > 0


def test_rows_that_are_written_through_need_not_be_read(edges):
    """Rows are asked for in the batches after their own: a cache that holds all reads none."""
    through = follow(edges, edges.num_rows, writes_through=True).counters
    beside = follow(edges, edges.num_rows, writes_through=False).counters
    assert through.misses == 0 < beside.misses
    assert through.written == edges.num_rows
    for row in live_rows("made", edges):
        assert (row.ratio or 0) >= 1
