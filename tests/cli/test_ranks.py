"""Runs of several ranks match one process, end together and print one error message."""

import json
import os
import re
import signal
from functools import partial

import pytest
import torch

from helpers.live_runs import SHARDED, SMALL, same_run, write_events, write_features
from helpers.rank_runs import (
    SOON,
    arguments,
    codes,
    open_nothing,
    raise_at,
    run_ranks,
    seconds_after,
    signal_at,
)
from tgflow.cli import inputs as assemble
from tgflow.cli import main
from tgflow.cli.errors import DATA, INTERNAL, MEMORY, NO_INPUT, UNAVAILABLE, USAGE
from tgflow.models.tgn import TGN
from tgflow.run import followers as rank_parts
from tgflow.run import monitoring as watch
from tgflow.run.config import load_config
from tgflow.run.config.schema import ServeConfig
from tgflow.run.records import read_health

EVENTS = 400


@pytest.fixture
def events(tmp_path):
    return write_features(tmp_path / "events.csv", EVENTS, nodes=90)


def alone(events, out, *more):
    assert main(arguments(events, out, *more)) == 0
    return out


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def shown(capsys):
    """Return the printed text on one line."""
    return " ".join(capsys.readouterr().out.split())


def saved(run):
    """Return the number of node partitions in each checkpoint of a run, by name."""
    return {
        path.name: len([*path.glob("memory-p*")]) for path in (run / "checkpoints").glob("ckpt-*")
    }


def test_ranks_match_one_process_and_only_rank_0_prints(events, tmp_path, capsys):
    one = alone(events, tmp_path / "one", "--slices", 2)
    argv = arguments(events, tmp_path / "two", "--json")
    ends = run_ranks(tmp_path, 2, argv, open_nothing)
    assert codes(ends) == [0, 0], ends
    same_run(one, tmp_path / "two")
    said = json.loads(ends[0].out)
    assert said["num_events"] == EVENTS
    assert (ends[1].out, ends[1].err) == ("", "")
    own = lines(tmp_path / "two" / "ranks" / "001.log")
    assert [line["event"] for line in own] == ["start", "end"]
    health = read_health(tmp_path / "two" / "health.json")
    assert [*health["ranks"]] == ["0", "1"]
    for each in health["ranks"].values():
        assert min(each["memory_bytes"], each["free_bytes"]) > 1 << 20
        assert each["sent_bytes"].keys() == {"gradient", "rows", "queries", "other"}
    assert health["ranks"]["0"]["compute_seconds"] > 0
    assert health["ranks"]["0"]["sent_bytes"]["gradient"] > 0
    assert said["ranks"].keys() == health["ranks"].keys()
    assert "<th>rank 1</th><td>computes " in (tmp_path / "two" / "report.html").read_text()
    assert main(["info", str(tmp_path / "two")]) == 0
    assert re.search(r"rank 1 +computes .* s, waits .* s, holds .*; sent: gradient", shown(capsys))


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [(), SHARDED])
@pytest.mark.parametrize("rank", [0, 1])
def test_signal_to_any_rank_ends_all_with_a_checkpoint(events, tmp_path, rank, sharded):
    one, two = alone(events, tmp_path / "one", "--slices", 2), tmp_path / "two"
    slowly = arguments(events, two, "--speed", 60 * 100, *sharded)
    ends = run_ranks(tmp_path, 2, slowly, signal_at(rank, 100, signal.SIGTERM))
    assert codes(ends) == [0, 0], ends
    assert 100 <= lines(two / "metrics.jsonl")[-1]["stop"] < EVENTS
    ends = run_ranks(tmp_path, 2, arguments(events, two, "--resume", "--speed", 1e9))
    assert codes(ends) == [0, 0], ends
    same_run(one, two)


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_killed_rank_ends_the_others_and_all_resume_bit_for_bit(events, tmp_path, rank):
    one = alone(events, tmp_path / "one", "--checkpoint-batches", 2, "--slices", 3)
    two = tmp_path / "two"
    argv = arguments(events, two, "--checkpoint-batches", 2)
    ends = run_ranks(tmp_path, 3, argv, signal_at(rank, 200, signal.SIGKILL))
    assert ends[rank].code == -signal.SIGKILL
    others = [end for number, end in enumerate(ends) if number != rank]
    assert codes(others) == [UNAVAILABLE] * 2, ends
    if rank > 0:
        assert f"rank {rank} " in others[0].err, "rank 0 names it"
    ends = run_ranks(tmp_path, 2, [*argv, "--resume"])
    assert codes(ends) == [0, 0], ends
    same_run(one, two)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["auto", "log"])
def test_features_scaled_on_ranks_match_one_process(tmp_path, scale):
    stream = write_features(tmp_path / "made.csv", 300, nodes=60)
    flags = ("--features", "f*", "--feature-scale", scale, "-m", "tgat")
    assert main(arguments(stream, tmp_path / "one", "--slices", 2, *flags)) == 0
    ends = run_ranks(tmp_path, 2, arguments(stream, tmp_path / "two", *flags))
    assert codes(ends) == [0, 0], ends
    same_run(tmp_path / "one", tmp_path / "two")
    said = json.loads((tmp_path / "two/metrics.json").read_text())["features"]["scale"]
    assert "all to mean 0 and deviation 1 by the first 300 events" in said


@pytest.mark.slow
def test_feature_files_of_ranks_match_one_process_also_when_one_is_lost(tmp_path):
    stream, two = write_features(tmp_path / "made.csv", 300, nodes=60), tmp_path / "two"
    flags = ("--features", "f*", "-m", "tgat", "--slices", 3, "--checkpoint-batches", 2)
    assert main(arguments(stream, tmp_path / "one", *flags)) == 0
    argv = arguments(stream, two, *flags, "--edge-table", "disk", "--edge-cache", "4KiB")
    ends = run_ranks(tmp_path, 2, argv, signal_at(1, 200, signal.SIGKILL))
    assert codes(ends) == [UNAVAILABLE, -signal.SIGKILL], ends
    (two / "edge-x-001.rows").unlink()
    ends = run_ranks(tmp_path, 3, [*argv, "--resume"])  # one file is there, two come from rank 0
    assert codes(ends) == [0] * 3, ends
    same_run(tmp_path / "one", two)
    sizes = {path.stat().st_size for path in two.glob("edge-x*.rows")}
    assert len(sizes) == 1


def test_srun_without_a_world_is_refused_with_the_line_to_type(monkeypatch, capsys):
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    for more in ([], ["--nproc", "2"]):
        assert main(["run", "x.csv", *more]) == USAGE
        assert "MASTER_PORT=29400 srun -n 8 tgflow run" in capsys.readouterr().err


# Settings that are refused


WHOLE = """
from tgflow.models import TGN


class Whole(TGN):
    def commit(self, batch):
        pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "more", "said"),
    [
        ("run", "--set tables.cache_policy=belady", "--set tables.cache_policy"),
        ("run", "--rank-memory halved", "--rank-memory"),
        ("run", "--set ranks.interface=nowhere0", r"'nowhere0' is none .*; there are .*127\.0\.0"),
        ("run", "--slices 1", "--slices: a batch has 1, so at most 1 of 2 .*or pass --slices 2"),
        ("run", "--model ./own.py:Whole", "Whole overrides commit.*: define messages and store"),
        ("run", "--features f* --edge-table auto", "--edge-table auto: 2 ranks would use a file"),
        ("train", "--slices 1", "--slices: a batch has 1"),
        ("train", "--features f* --edge-table auto", "--edge-table auto: 2 ranks would use a file"),
    ],
)
def test_single_process_settings_are_refused_with_ranks(
    events, tmp_path, monkeypatch, command, more, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(WHOLE)
    argv = [command, *arguments(events, tmp_path / "run", *more.split())[1:]]
    ends = run_ranks(tmp_path, 2, argv, partial(go_to, tmp_path))
    assert codes(ends) == [USAGE] * 2, ends
    assert all(re.search(said, end.err) for end in ends), ends
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "flag", "values"),
    [("run", "--learning-rate", (1e-3, 1e-4)), ("train", "--seeds", (2, 3))],
)
def test_ranks_with_other_settings_are_refused(tmp_path, command, flag, values):
    argv = [command, "--stream", "events.csv", "--out", "run", *map(str, SMALL), flag]
    ends = run_ranks(tmp_path, 2, tuple([*argv, str(value)] for value in values))
    assert codes(ends) == [USAGE] * 2, ends
    for end in ends:
        assert f"rank 1 has {flag}={values[1]} and rank 0 has {flag}={values[0]}" in end.err


@pytest.mark.parametrize(
    ("world", "ranks_of_host", "threads"), [(1, None, 32), (16, 4, 8), (64, 1, 32), (40, 40, 1)]
)
def test_cores_of_a_host_are_divided_by_its_ranks(monkeypatch, world, ranks_of_host, threads):
    used = []
    monkeypatch.setattr(assemble, "num_cores", lambda: 32)
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setattr("tgflow.set_num_threads", used.append)
    if world > 1:
        launch = {"RANK": 1, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": ranks_of_host}
        address = {"MASTER_ADDR": "h1", "MASTER_PORT": 29400}
        for name, value in (launch | address).items():
            monkeypatch.setenv(name, str(value))
    assert assemble.use_threads(None, ServeConfig()) == threads
    assert used == [threads] * 2
    assert assemble.use_threads(3, ServeConfig()) == 3


def test_number_of_threads_is_fixed_when_a_run_starts(tgflow, events, tmp_path, monkeypatch):
    monkeypatch.setattr(assemble, "num_cores", lambda: 2)
    flags = ("-m", "recency", "--batch-size", 50)
    assert tgflow("run", "-s", events, "-o", tmp_path / "run", "--limit", 100, *flags).code == 0
    assert load_config(tmp_path / "run/config.toml").run.threads == 2
    monkeypatch.setattr(assemble, "num_cores", lambda: 1)
    ran = tgflow("run", "--resume", "-o", tmp_path / "run", "--limit", 200, "--json")
    assert (ran.code, ran.json["threads"]) == (0, 2)


def go_to(folder, rank):
    os.chdir(folder)


# Failures of one rank end all


def see_other_files(folder, rank):
    """Simulate a host with other files on rank 1."""
    rank_parts.SEEN_WITHIN = 0.2
    if rank == 1:
        rank_parts._mark_file = lambda path: folder / "elsewhere"


def diverge(rank):
    """Make a score non-finite on rank 1."""
    if rank == 1:
        forward, calls = TGN.forward, []

        def spoiled(self, batch):
            scores = forward(self, batch)
            calls.append(batch)
            if len(calls) == 6:
                return scores._replace(positive=scores.positive * float("nan"))
            return scores

        TGN.forward = spoiled


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "expected", "said"),
    [
        ("no stream", [NO_INPUT] * 2, "nothing.csv"),
        ("bad rows", [DATA] * 2, "bad"),
        ("bad rows, sharded", [DATA] * 2, "bad"),
        ("other files", [NO_INPUT] * 2, "rank 1 does not see "),
        ("not finite", [INTERNAL] * 2, "not finite"),
        ("fault of 1", [UNAVAILABLE, INTERNAL], "RuntimeError: a fault of rank 1"),
        ("fault of 0", None, "a fault of rank"),
    ],
)
def test_failure_of_one_rank_ends_all_ranks(tmp_path, kind, expected, said):
    events, run = write_events(tmp_path / "events.csv", EVENTS, nodes=90), tmp_path / "run"
    more = ("--max-bad-ratio", 0, *(SHARDED if "sharded" in kind else ()))
    if "bad rows" in kind:
        text = events.read_text().splitlines()
        events.write_text("\n".join([*text[:200], "7,8,not-a-time", *text[200:]]))
    prepare = {
        "other files": partial(see_other_files, tmp_path),
        "not finite": diverge,
        "fault of 1": raise_at(1, 200, RuntimeError("a fault of rank 1")),
        "fault of 0": raise_at(0, 200, RuntimeError("a fault of rank 0")),
    }.get(kind)
    stream = tmp_path / "nothing.csv" if kind == "no stream" else events
    ends = run_ranks(tmp_path, 2, arguments(stream, run, *more), prepare)
    assert said in ends[0].err
    if kind == "fault of 0":  # rank 1 gets the message or detects the loss
        assert (ends[0].code, ends[1].code in (INTERNAL, UNAVAILABLE)) == (INTERNAL, True)
    else:
        assert codes(ends) == expected, ends
    if kind == "no stream":
        assert ends[1].err.startswith("rank 1: rank 0 has ended: ")
    if "bad rows" in kind:
        assert [*saved(run).values()] == [64], "what was learned before is kept, by all ranks"
    if "fault" in kind:
        assert max(seconds_after(tmp_path, ends)) < SOON
    if kind == "fault of 1":
        assert "rank 1 has ended: " in ends[0].err
        assert ends[1].err.startswith("rank 1: ")
        assert said in ends[1].err
        health = read_health(run / "health.json")
        assert health["state"] == "failed"
        assert said in health["reason"]


def hold_too_much(rank):
    """Reach the memory limit on rank 1."""
    watch.GRACE_SECONDS = 0.05
    if rank == 1:
        watch.anonymous_bytes = lambda: 1 << 50


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [(), SHARDED])
def test_rank_at_its_memory_limit_ends_all_with_a_checkpoint(events, tmp_path, sharded):
    """Saved by rank 0 if replicated, and by all ranks if sharded."""
    features = ("--features", "f*")
    one, two = alone(events, tmp_path / "one", "--slices", 2, *features), tmp_path / "two"
    slowly = arguments(
        events, two, "--speed", 60 * 100, "--memory-limit", "1TiB", *features, *sharded
    )
    ends = run_ranks(tmp_path, 2, slowly, hold_too_much)
    assert codes(ends) == [MEMORY] * 2, ends
    assert [*saved(two).values()] == [64]
    assert "rank 1 is at its --memory-limit; see its log" in ends[0].err
    assert "the process holds 1.13e+03 TB" in (two / "ranks" / "001.log").read_text()
    argv = arguments(events, two, "--resume", "--speed", 1e9, *features)
    ends = run_ranks(tmp_path, 2, argv)
    assert codes(ends) == [0, 0], ends
    same_run(one, two)
