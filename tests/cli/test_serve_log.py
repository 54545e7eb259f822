"""Replicas that follow a run's log and checkpoints: `tgflow serve` of an active run."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tgflow as tg
from helpers.effort import cases
from helpers.live_runs import SMALL, write_events
from tgflow.checkpoint import list_checkpoints
from tgflow.run import replica as replicas
from tgflow.run.replica import LogReplica

pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")


@pytest.fixture
def looks_at_once(monkeypatch):
    monkeypatch.setattr(replicas, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(replicas, "_READ_SECONDS", 0.0)


def started(tgflow, *flags):
    """Run a stream to its end; return a copy of its directory with the first checkpoint alone."""
    path = write_events(Path("made.csv"), 450)
    every = (
        "--checkpoint-batches",
        2,
        "--set",
        "checkpoint.keep=9",
        "--set",
        "checkpoint.keep_log=true",
    )
    assert tgflow("run", "-s", path, *SMALL, *flags, *every, "-o", "out").code == 0
    shutil.copytree("out", "copy")
    for each in list_checkpoints(Path("copy/checkpoints"))[1:]:
        shutil.rmtree(each.path)
    return Path("copy")


def follow(replica):
    """Let a replica store all that is there."""
    before = -1
    while replica.predictor.position > before:
        before = replica.predictor.position
        replica.advance()


def same_answers(replica, reference):
    run = replica.predictor
    src, dst = torch.randint(0, 20, (2, 16), generator=torch.Generator().manual_seed(1))
    now = torch.full((16,), int(run.graph.log.t_last) + 1)
    expected = tg.Inference(reference.model, reference.graph, seed=reference.config.seed)
    assert torch.equal(run.logits(src, dst, now), expected.score(src, dst, now))


@pytest.mark.parametrize("model", cases(["tgn+pairs", "tgat"], ["tgn+pairs"]))
def test_answers_are_those_of_the_checkpoint_that_stored_the_logged_events(
    tgflow, looks_at_once, model
):
    run = started(tgflow, "--model", model, "--allowed-lateness", 600)
    replica = LogReplica(run)
    first = replica.predictor.position
    assert first < 450
    assert replica.health().behind == 450 - first
    follow(replica)
    assert (replica.predictor.position, replica.parameters) == (450, first)
    assert replica.health().behind == 0
    # a trainer that continues from there without updates, with the same events
    start, all_of = tg.open_run(run), tg.open_run("out")
    again = tg.ContinualTrainer(
        start.model, start.graph, replace(start.config.continual, updates=0)
    )
    again.run([all_of.graph.log.read(first, 450)], progress=False)
    same_answers(replica, again)
    assert replica.predictor.ids.decode(torch.arange(20)) == all_of.ids.decode(torch.arange(20))


def test_logged_events_that_were_not_learned_are_not_stored(tgflow):
    run = tg.open_run(started(tgflow))
    first = run.position
    for limit in (first, first + 70, first + 70, first + 120):
        while run.advance(limit):
            pass
        assert run.position == limit


def test_newer_checkpoint_replaces_parameters_and_no_answer_goes_back(tgflow, looks_at_once):
    run = started(tgflow)
    log = next((run / "log").glob("*.log"))
    frames = log.read_bytes()
    log.write_bytes(frames[:-1])  # as while the last frame is written
    replica = LogReplica(run)
    first = replica.predictor.position
    follow(replica)
    assert replica.predictor.position < 450
    log.write_bytes(frames)
    follow(replica)
    assert (replica.predictor.position, replica.parameters) == (450, first)
    shutil.copytree("out/checkpoints", run / "checkpoints", dirs_exist_ok=True)
    while replica.parameters == first:
        replica.advance()
        assert replica.predictor.position == 450
    assert replica.parameters == 450
    same_answers(replica, tg.open_run("out").trainer())
