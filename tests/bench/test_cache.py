"""The bench of caches: on few events, its hit rates those of the slow reference."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
import torch
from strategies import skewed_events

from tgflow.bench import cache as bench
from tgflow.bench import cache_gather
from tgflow.bench.cache_live import follow, live_rows
from tgflow.bench.cache_planner import planner_rows
from tgflow.bench.cache_rounds import KEEPS, round_rows, run_rounds
from tgflow.bench.cache_trace import Trace, replay, tgn_plan, traces
from tgflow.bench.options import Options
from tgflow.testing.cache_reference import ReferenceCache

QUICK = Options(quick=True)
EVENTS = skewed_events(1_500, 80)


@pytest.fixture(scope="module")
def edges() -> Trace:
    return traces(tgn_plan(EVENTS))[0]


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
    rows = list(bench.replay_rows("made", edges, QUICK))
    cached = [row for row in rows if row.name == "cache"]
    assert len(cached) == len(bench.QUICK_SHARES) * len(bench.POLICIES)
    assert all(0 <= row.value <= 1 for row in cached)
    root = ET.fromstring(bench.draw(rows))
    assert sum(element.tag.endswith("circle") for element in root.iter()) == len(cached)


def test_what_the_planner_is_worth_is_told_for_one_hop_and_two():
    rows = list(planner_rows("made", EVENTS, QUICK))
    assert [(row.name, row.params["model"]) for row in rows] == [
        (name, model)
        for model in ("TGN", "TGAT")
        for name in (
            "misses, LRU to window of 256",
            "misses, window of 256 to all",
            "planning an access",
        )
    ]
    assert all(row.value >= 1 for row in rows)


def test_reuse_and_restore_keep_what_is_used_again():
    """Two rounds of the same rows, with others evaluated in between."""
    hot, other = torch.arange(5), torch.arange(5, 10)
    batches = [[hot, other, hot, other]]
    without = run_rounds(batches, 10, 5, 2, keeps=()).counters
    keeps = run_rounds(batches, 10, 5, 2, keeps=KEEPS[-1]).counters
    assert (without.hits, without.misses) == (0, 20)
    assert (keeps.hits, keeps.misses) == (10, 10)
    rows = list(round_rows("made", EVENTS, QUICK))
    assert [row.params["with"] for row in rows[::2]] == [", ".join(keeps) for keeps in KEEPS]
    assert all(row.value <= 1 for row in rows)


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
