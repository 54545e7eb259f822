"""Loggers record each metric once per step, also after a resume."""

import csv
from pathlib import Path

import pytest

import tgflow as tg
from helpers.fake_loggers import fake_tensorboard, fake_wandb
from helpers.made_streams import made_events, pieces
from tgflow.checkpoint.durable import fs
from tgflow.report.callbacks.logger import numbers
from tgflow.run.loggers import RunLoggers


class Kept(tg.callbacks.FigureCallback):
    """A user-defined logger that keeps the logged data."""

    def __init__(self):
        self.logged = {}

    def log(self, step, figures):
        self.logged[step] = numbers(figures)


def small_model(graph):
    widths = {"memory_dim": 8, "time_dim": 8, "embedding_dim": 8}
    return tg.TGN.for_graph(graph, neighbors=3, **widths)


def trained(*observers):
    """Learn 90 events, 30 at a time, with some callbacks; return the trainer."""
    graph = tg.TemporalGraph(edge_x_dim=2)
    trainer = tg.ContinualTrainer(small_model(graph), graph, tg.ContinualConfig(batch_size=30))
    trainer.run(pieces(made_events(90), 45), observers)
    return trainer


def rows(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def test_steps_of_a_stream_are_logged_by_number_of_events(tmp_path):
    kept = Kept()
    with tg.callbacks.CSVLogger(tmp_path / "figures.csv") as logger:
        trained(kept, logger)
    assert list(kept.logged) == [30, 60, 90]
    found = rows(tmp_path / "figures.csv")
    assert [int(row["step"]) for row in found] == [30, 60, 90]
    for row, figures in zip(found, kept.logged.values(), strict=True):
        assert {name: float(x) for name, x in row.items() if x and name != "step"} == figures


def test_csv_file_is_truncated_to_the_resumed_step(tmp_path):
    path = tmp_path / "made" / "figures.csv"
    with tg.callbacks.CSVLogger(path) as logger:
        for step in (10, 20, 30):
            logger.log(step, {"loss": step / 10})
    with path.open("a") as file:
        file.write("4")  # a row torn by a crash
    with tg.callbacks.CSVLogger(path, step=20) as logger:
        logger.log(30, {"loss": 9.0, "ap": 0.5})
        logger.flush()
        assert [row["step"] for row in rows(path)] == ["10", "20", "30"], "readable at once"
    assert [row["ap"] for row in rows(path)] == ["", "", "0.5"]
    assert [row["loss"] for row in rows(path)] == ["1.0", "2.0", "9.0"]
    with tg.callbacks.CSVLogger(path) as logger:
        logger.log(5, {"loss": 1.0})
    assert [row["step"] for row in rows(path)] == ["5"], "a training that begins keeps none"


@pytest.mark.parametrize("step", [0, 10, 40, 70, 100])
def test_csv_file_is_rotated_and_a_resume_neither_loses_nor_repeats_rows(tmp_path, step):
    path = tmp_path / "figures.csv"
    files = (path.with_name("figures.csv.1"), path)

    def log(start, stop, begin):
        with tg.callbacks.CSVLogger(path, step=begin, max_bytes=30) as logger:
            for at in range(start, stop, 10):
                logger.log(at, {"loss": at / 4, **({"ap": 0.5} if at > 60 else {})})

    def steps():
        return [int(row["step"]) for each in files if each.exists() for row in rows(each)]

    log(10, 110, 0)
    kept = steps()
    assert kept == [*range(kept[0], 101, 10)]
    assert kept[0] > 10
    assert all(each.stat().st_size < 60 for each in files)
    tg.callbacks.CSVLogger(path, step=step, max_bytes=30).close()
    assert steps() == [each for each in kept if each <= step]
    log(step + 10, 140, step)
    assert steps() == [*range(steps()[0], 131, 10)]


def test_event_files_of_tensorboard_are_bounded(tmp_path, monkeypatch):
    fake_tensorboard(monkeypatch)
    sizes = []
    for start in range(0, 180, 30):  # resumes, each of which begins a file
        with tg.callbacks.TensorBoard(tmp_path, step=start, max_bytes=1_000) as logger:
            for step in range(start + 1, start + 31):
                logger.log(step, {"loss": 0.5, "ap": 0.5})
                sizes.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
                assert sizes[-1] >= min(100 * len(sizes), 1_000), "the latest figures are kept"
    assert 1_000 < max(sizes) <= 3_000


def test_csv_file_that_cannot_be_rewritten_is_appended_to(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    path = tmp_path / "figures.csv"
    with tg.callbacks.CSVLogger(path) as logger:
        logger.log(10, {"loss": 0.5})
        with monkeypatch.context() as disk:
            disk.setattr(fs, "sync_data", full)
            with pytest.raises(OSError, match="No space left"):
                logger.log(20, {"ap": 0.5})
        logger.log(30, {"loss": 0.25})
    assert path.read_text() == "step,loss\n10,0.5\n30,0.25\n"


def test_all_loggers_are_closed_even_if_one_fails(tmp_path, monkeypatch):
    def full(self):
        raise OSError("no room")

    runs = fake_wandb(monkeypatch)
    with monkeypatch.context() as disk:
        disk.setattr(tg.callbacks.CSVLogger, "close", full)
        loggers = RunLoggers(("csv", "wandb"), tmp_path, 0, {})
        with pytest.raises(OSError, match="no room"):
            loggers.close()
    (tmp_path / "metrics.csv").write_text("src,dst\n")
    with pytest.raises(ValueError, match="not a file of figures"):
        RunLoggers(("wandb", "csv"), tmp_path, 0, {})
    assert [run.is_finished for run in runs] == [True, True]


@pytest.mark.parametrize("damage", ["2x", "20,0.5,7", "20,x", "20,\xff", "20,nan"])
def test_damaged_csv_row_is_skipped_and_counted(tmp_path, caplog, damage):
    path = tmp_path / "figures.csv"
    good = "10,0.25\n30,0.5\n"
    path.write_bytes(f"step,loss\n{good}{damage}\n{damage}\n40,0.1\n".encode("latin-1"))
    tg.callbacks.CSVLogger(path, step=30).close()
    assert path.read_text() == "step,loss\n" + good
    assert f"2 rows of {path} are damaged, and left out" in caplog.text


def test_foreign_file_is_not_overwritten(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("src,dst,t\n1,2,3\n")
    with pytest.raises(ValueError, match="not a file of figures, it has no column step; name"):
        tg.callbacks.CSVLogger(path)
    assert path.read_text() == "src,dst,t\n1,2,3\n"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_weights_and_biases_logs_each_step_once_offline(tmp_path, monkeypatch):
    runs = fake_wandb(monkeypatch)
    with tg.callbacks.WandB(tmp_path, project="pay") as logger:
        trained(logger)
    with tg.callbacks.WandB(tmp_path, step=60) as logger:
        for step in (90, 120):
            logger.log(step, {"loss": 0.5})
    with tg.callbacks.WandB(tmp_path) as logger:
        logger.log(30, {"loss": 0.5})
    first, second, other = runs
    assert first.options["mode"] == second.options["mode"] == "offline"
    assert first.options["dir"] == str(tmp_path)
    assert first.options["project"] == "pay"
    assert first.options["id"] == second.options["id"] != other.options["id"]
    assert [step for step, _ in first.logged] == [30, 60, 90]
    assert second.logged == [(120, {"loss": 0.5})]
    assert "running/ap" in first.logged[-1][1]
    assert all(run.is_finished for run in runs)
