"""A run out of memory leaves whole micro-batches or reports its state."""

import pytest
import torch

from helpers.live_runs import write_events
from tgflow import ContinualTrainer, Plan, TemporalGraph, open_stream
from tgflow.checkpoint import CheckpointStore, CheckpointWriter
from tgflow.cli.errors import MEMORY, exit_code
from tgflow.plan import BatchError
from tgflow.run.checkpoints import Checkpoints
from tgflow.run.config import load_config
from tgflow.run.log import RunLog
from tgflow.run.model_maker import make_model
from tgflow.run.runner import Runner
from tgflow.run.stream import is_out_of_memory
from tgflow.train import step


def fails_at(monkeypatch, owner, name, number, error):
    """Make the n-th call of a function fail, counted from 1."""
    plain, calls = getattr(owner, name), []

    def call(*arguments, **options):
        calls.append(name)
        if len(calls) == number:
            raise error
        return plain(*arguments, **options)

    monkeypatch.setattr(owner, name, call)


NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory")
IN_PART = "has changed the model in part; there is no checkpoint yet"
NO_ROOM = "could not be saved: no room; there is no checkpoint yet"


@pytest.mark.parametrize(
    ("owner", "name", "error", "kept", "said"),
    [
        (step.TrainStep, "backward", NO_MEMORY, 100, None),
        (Plan, "batch", NO_MEMORY, 50, None),
        (torch.optim.Adam, "step", NO_MEMORY, None, IN_PART),
        (step.TrainStep, "backward", NO_MEMORY, None, NO_ROOM),
    ],
)
def test_out_of_memory_leaves_whole_micro_batches_or_reports_the_state(
    tmp_path, monkeypatch, owner, name, error, kept, said
):
    stream = open_stream(write_events(tmp_path / "events.csv", size=230), time_unit="s")
    config = load_config(flags={"model.dim": 8, "model.neighbors": 3, "learning.batch_size": 50})
    store, model = (
        CheckpointStore(tmp_path / "run"),
        make_model(config.model, config.task, config.continual, 0),
    )
    trainer = ContinualTrainer(model, TemporalGraph(time_unit="s"), config.continual)
    run_log, warnings = RunLog(None, say=lambda line: None), []
    checkpoints = Checkpoints(trainer, store, CheckpointWriter(store), run_log, config.checkpoint)
    runner = Runner(trainer, stream, checkpoints, services=[checkpoints], warn=warnings.append)
    fails_at(monkeypatch, owner, name, 3, error)
    if said == NO_ROOM:
        fails_at(monkeypatch, ContinualTrainer, "save_to", 1, MemoryError("no room"))
    with pytest.raises((type(error), BatchError)) as found:
        runner.run()
    assert is_out_of_memory(found.value)
    assert exit_code(found.value) == MEMORY
    left = store.newest()
    assert (left and left[0]) == kept
    assert [said in text for text in warnings] == ([] if said is None else [True])
