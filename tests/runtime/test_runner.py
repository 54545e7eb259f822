"""A runner is a composition of parts: with ingestion and display, or with a plain iterable only."""

from __future__ import annotations

import pytest
import torch

from helpers.live_runs import write_events
from tgflow.checkpoint import CheckpointStore, CheckpointWriter
from tgflow.cli.errors import MEMORY, exit_code
from tgflow.config import load_config, replaced
from tgflow.graph import TemporalGraph
from tgflow.plan import BatchError, Plan
from tgflow.runtime.checkpoints import Checkpoints, Component
from tgflow.runtime.log import RunLog
from tgflow.runtime.model_maker import make_model
from tgflow.runtime.runner import Runner
from tgflow.runtime.stream import is_out_of_memory
from tgflow.streams import open_stream
from tgflow.train import step
from tgflow.train.continual import ContinualTrainer


@pytest.fixture
def config(tmp_path):
    path = write_events(tmp_path / "events.csv", size=230)
    flags = {
        "stream.path": str(path),
        "model.dim": 8,
        "model.neighbors": 3,
        "continual.batch_size": 50,
        "checkpoint.checkpoint_batches": 2,
    }
    return load_config(flags=flags)


def model_of(config):
    return make_model(config, config.continual, 0)


def plain_runner(config, batches, path, **parts):
    """Return a runner that learns from an iterable: no ingestion, no display, nothing watches it.

    It resumes where its checkpoints left off.
    """
    store = CheckpointStore(path)
    found = store.newest()
    if found is None:
        trainer = ContinualTrainer(model_of(config), TemporalGraph(time_unit="s"), config.continual)
    else:
        trainer = ContinualTrainer.from_checkpoint(model_of(config), found[1], config.continual)
    checkpoints = Checkpoints(
        trainer,
        store,
        CheckpointWriter(store),
        RunLog(None, say=lambda line: None),
        config.checkpoint,
        saved=None if found is None else found[0],
    )
    return Runner(trainer, batches, checkpoints, services=[checkpoints], **parts)


class Observer(Component):
    """Calls a function with each record."""

    def __init__(self, call):
        self.on_step = call


def newest(path):
    """Return the number of events in the newest checkpoint."""
    found = CheckpointStore(path).newest()
    assert found is not None
    return found[0]


def test_a_runner_without_ingestion_resumes_with_the_same_bits(config, tmp_path):
    whole = plain_runner(config, open_stream(config.stream.path), tmp_path / "whole").run()

    def until_100(record):
        if record["stop"] == 100:
            runner.flow.stop()

    batches = list(open_stream(config.stream.path))
    runner = plain_runner(config, batches, tmp_path / "cut", components=[Observer(until_100)])
    assert runner.run().stopped
    assert runner.status.state == "stopped"
    [events] = batches
    resumed = plain_runner(config, [events[100:]], tmp_path / "cut").run()
    assert resumed.state_sha256 == whole.state_sha256
    assert resumed.metrics["prequential.ap"] == whole.metrics["prequential.ap"]


def test_parts_add_to_each_record_and_are_left_in_reverse(config, tmp_path):
    seen: list[object] = []

    class Service:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            seen.append(f"+{self.name}")

        def __exit__(self, *error):
            seen.append(f"-{self.name}")

    class Half(Component):
        def figures(self, step):
            return {"half": step.stop / 2}

        def report(self):
            return {"end": {"at": seen.append("report")}}

    runner = plain_runner(
        config,
        open_stream(config.stream.path),
        tmp_path / "run",
        components=[Half(), Observer(lambda record: seen.append(record["half"]))],
        display=Service("display"),
    )
    runner.services = [*runner.services, Service("a"), Service("b")]
    assert "end" in runner.run().reports
    steps = [25.0, 50.0, 75.0, 100.0, 115.0]
    assert seen == ["+a", "+b", "+display", *steps, "-display", "report", "-b", "-a"]


def fails_at(monkeypatch, owner, name, number, error):
    """Let a call of a function fail: the one with this number, from 1."""
    plain, calls = getattr(owner, name), []

    def call(*arguments, **options):
        calls.append(name)
        if len(calls) == number:
            raise error
        return plain(*arguments, **options)

    monkeypatch.setattr(owner, name, call)


NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    ("owner", "name", "error", "kept", "said"),
    [
        (step.TrainStep, "backward", NO_MEMORY, 100, None),
        (Plan, "batch", NO_MEMORY, 50, None),
        (torch.optim.Adam, "step", NO_MEMORY, None, "has changed the model in part"),
    ],
)
def test_memory_that_ends_leaves_whole_micro_batches_or_says_what_stands(
    config, tmp_path, monkeypatch, owner, name, error, kept, said
):
    config, warnings = replaced(config, {"checkpoint.checkpoint_batches": None}), []
    stream = open_stream(config.stream.path)
    runner = plain_runner(config, stream, tmp_path / "run", warn=warnings.append)
    fails_at(monkeypatch, owner, name, 3, error)
    with pytest.raises((type(error), BatchError)) as found:
        runner.run()
    assert is_out_of_memory(found.value)
    assert exit_code(found.value) == MEMORY
    if kept is None:
        assert CheckpointStore(tmp_path / "run").newest() is None
        assert said in warnings[0]
        assert "there is no checkpoint yet" in warnings[0]
    else:
        assert newest(tmp_path / "run") == kept
        assert not warnings
