"""What `tgflow plan` counts and refuses."""

from __future__ import annotations

from helpers.live_runs import write_features


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
    assert all(each > 0 for each in found["loads"]["inputs"])


def test_shards_shrink_with_the_world(tgflow, events_csv):
    one, four = (
        made_plan(tgflow, events_csv, "--world", world, "--json").json["memory"] for world in (1, 4)
    )
    for alone, shared in zip(one, four, strict=True):
        assert alone["replicated"] == shared["replicated"]
        if shared["sharded"] is not None:
            assert alone["sharded"] == alone["replicated"]
            assert shared["sharded"] == -(-alone["replicated"] // 4)
    assert {each["name"] for each in four if each["sharded"]} == {"neighbors", "node memory"}


def test_features_of_edges_are_counted(tgflow, tmp_path):
    path = write_features(tmp_path / "x.csv", 200)
    memory = made_plan(tgflow, path, "--features", "f*", "--world", 4, "--json").json["memory"]
    [edges] = [each for each in memory if each["name"] == "edge features"]
    assert edges["replicated"] == 200 * 2 * 4


def test_some_micro_batches_are_a_sample_of_all(tgflow, events_csv):
    some, whole = (
        made_plan(tgflow, events_csv, "--world", 2, "--batches", n, "--json").json for n in (2, 0)
    )
    assert (some["num_batches"], whole["num_batches"]) == (2, 8)
    assert 0 < sum(some["loads"]["rows"]) < sum(whole["loads"]["rows"])


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
