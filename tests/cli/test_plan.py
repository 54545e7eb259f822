"""What `tgflow plan` counts and refuses."""

from __future__ import annotations

import pytest

from helpers.live_runs import write_features


@pytest.fixture
def plan(tgflow, events_csv):
    small = ("--dim", 8, "--neighbors", 3, "--batch-size", 50)
    return lambda *more, path=events_csv: tgflow("plan", "--data", path, *small, *more)


def test_loads_are_shared_by_64_ranks_and_counted_in_a_sample_of_batches(plan):
    found = plan("--world", 64, "--json").json
    assert found["slices"] == found["world"] == 64
    assert found["slices_of_rank"] == [[rank] for rank in range(64)]
    assert found["num_batches"] == 8
    # Each event once to predict and once to learn, and half as many replayed, but at the start.
    assert 2 * 400 < sum(found["loads"]["rows"]) <= 2.5 * 400
    assert max(found["loads"]["rows"]) <= sum(found["loads"]["rows"]) / 64 + 2 * 8
    assert all(each > 0 for each in found["loads"]["inputs"])
    some = plan("--world", 64, "--batches", 2, "--json").json
    assert some["num_batches"] == 2
    assert 0 < sum(some["loads"]["rows"]) < sum(found["loads"]["rows"])


def test_shards_shrink_with_the_world_and_features_are_counted(plan, tmp_path):
    path = write_features(tmp_path / "x.csv", 200)
    one, four = (
        plan("--features", "f*", "--world", world, "--json", path=path).json["memory"]
        for world in (1, 4)
    )
    for alone, shared in zip(one, four, strict=True):
        assert alone["replicated"] == shared["replicated"]
        if shared["sharded"] is not None:
            assert alone["sharded"] == alone["replicated"]
            assert shared["sharded"] == -(-alone["replicated"] // 4)
    assert {"neighbors", "node memory"} <= {each["name"] for each in four if each["sharded"]}
    [edges] = [each for each in four if each["name"] == "edge features"]
    assert edges["replicated"] == 200 * 2 * 4


def test_a_larger_stream_needs_more_and_may_not_fit(plan):
    more = ("--events", "1e10", "--nodes", "1e9", "--memory-limit", "64GB")
    ran = plan("--world", 4, *more)
    assert ran.code == 0
    assert "a log holds at most 2^33 events" in ran.out
    assert "event log: 240 GB, all of it on every rank" in ran.out
    assert "node ids: 56 GB, all of it on rank 0" in ran.out
    fits = plan("--world", 4, "--memory-limit", "1GB")
    assert "fits in 1 GB a rank, replicated" in fits.out
