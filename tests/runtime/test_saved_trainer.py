"""A trainer saved from Python is a run directory like any other."""

from __future__ import annotations

import json

import pytest
import torch

import tgflow as tg
from helpers.live_runs import write_events
from tgflow.cli import main

CONFIG = tg.ContinualConfig(batch_size=50)


def tgflow(*words):
    return main([str(word) for word in words])


@pytest.fixture
def saved(tmp_path):
    """Return a trainer that has learned a file, and the directory that it was saved to."""
    path = write_events(tmp_path / "events.csv", 230)
    trainer = tg.ContinualTrainer(tg.TGN(memory_dim=8), tg.TemporalGraph(time_unit="s"), CONFIG)
    trainer.run(tg.open_stream(path, id_kind="string", time_unit="s"))
    trainer.save(tmp_path / "run")
    return trainer, tmp_path / "run"


def test_saved_trainer_answers_as_the_live_one(saved, capsys):
    trainer, path = saved
    live, opened = tg.open_run(trainer), tg.open_run(path)
    assert torch.equal(
        live.score(["1", "2"], ["2", "3"]).logit, opened.score(["1", "2"], ["2", "3"]).logit
    )
    capsys.readouterr()
    assert tgflow("predict", path, "--src", "1", "--top", 2, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["dst"] for row in rows] == live.top_k("1", k=2).dst
    assert tgflow("info", path) == 0
    assert "resume with: tgflow run" in capsys.readouterr().out


def test_resumed_run_continues_with_the_bits_of_an_undisturbed_trainer(saved, tmp_path):
    trainer, path = saved
    more = write_events(tmp_path / "events.csv", 400)
    assert tgflow("run", "--resume", "-o", path) == 0
    straight = tg.ContinualTrainer.from_checkpoint(tg.TGN(memory_dim=8), trainer.checkpoint())
    [events] = list(tg.open_stream(more, id_kind="string", time_unit="s"))
    straight.run([events[230:]])
    resumed = tg.open_run(path)
    assert resumed.position == 400
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_a_trainer_does_not_overwrite_other_files_or_a_later_state(saved, tmp_path):
    trainer, path = saved
    trainer.save(path)
    with pytest.raises(FileExistsError, match="holds files already"):
        trainer.save(tmp_path)
    young = tg.ContinualTrainer(tg.TGN(memory_dim=8), tg.TemporalGraph())
    with pytest.raises(FileExistsError, match="holds a later state"):
        young.save(path)
