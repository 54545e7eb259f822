"""`tgflow run --init-from`: what another run has learned goes on over a new stream."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

import tgflow as tg
from helpers.live_runs import SMALL, same_run
from tgflow.cli import main
from tgflow.config import ConfigError, load_config
from tgflow.runtime.saved_run import find_initial

OLD, NEW = 120, 130


def write_part(path, start, stop):
    lines = [f"acc_{i % 9},shop_{i * i % 7},{1_600_000 + i}" for i in range(start, stop)]
    path.write_text("src,dst,t\n" + "\n".join(lines) + "\n")
    return path


def flags(folder, name):
    return ["-s", folder / f"{name}.csv", "--id-kind", "string"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with two parts of a stream, and a model that was trained on the first."""
    folder = tmp_path_factory.mktemp("initial")
    write_part(folder / "old.csv", 0, OLD)
    write_part(folder / "new.csv", OLD, OLD + NEW)
    words = ["train", *flags(folder, "old"), *SMALL, "--epochs", 1, "-o", folder / "off"]
    assert main([str(word) for word in words]) == 0
    return folder


def begin(tgflow, made, out, *more):
    return tgflow(
        "run", *flags(made, "new"), "--batch-size", 50, "--threads", 1,
        "--init-from", made / "off", "-o", out, *more,
    )  # fmt: skip


def test_model_events_and_ids_go_on(tgflow, made):
    assert begin(tgflow, made, "on", "--scores", "s.csv", "--json", "--limit", 60).code == 0
    old, run = tg.open_run(made / "off"), tg.open_run("on")
    assert run.config.model.dim == 8, "the model is the other run's"
    assert run.position == OLD + 60
    assert run.ids.decode(torch.arange(9)) == old.ids.decode(torch.arange(9))
    first = run.graph.log.read(0, OLD)
    assert torch.equal(first.t, old.graph.log.read(0, OLD).t)
    with Path("s.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["position"]) for row in rows] == list(range(OLD, OLD + 60))
    answer = old.score(rows[0]["src"], rows[0]["dst"], int(rows[0]["t"]))
    assert float(answer.logit) == pytest.approx(float(rows[0]["logit"]), rel=1e-4, abs=1e-4)
    assert json.loads(Path("on/metrics.json").read_text())["num_events"] == 60
    assert tgflow("run", "--resume", "-o", "on", "--limit", 80).code == 0
    assert tg.open_run("on").position == OLD + 80
    assert tgflow("run", "--resume", "-o", "on", "--limit", 1_000).code == 0
    metrics = json.loads(Path("on/metrics.json").read_text())
    assert metrics["rows"]["accepted"] == metrics["num_events"] == NEW


def test_it_starts_over_from_its_log_before_the_first_checkpoint(tgflow, made):
    assert begin(tgflow, made, "whole").code == 0
    assert begin(tgflow, made, "again").code == 0
    Path("again/checkpoints").rename("away")
    Path("again/checkpoints").mkdir()
    assert tgflow("run", "--resume", "-o", "again").code == 0
    same_run(Path("whole"), Path("again"))


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (
            ["--direction", "bipartite"],
            2,
            "--init-from: events are undirected there, and",
        ),
        (["--dim", "12"], 76, "does not fit this model"),
        (["--time-unit", "ms"], 65, "ms"),
        (["--init-from", "nowhere"], 66, "nowhere is no run: it has no config.toml"),
    ],
)
def test_what_does_not_go_together_is_said(tgflow, made, more, code, said):
    ran = begin(tgflow, made, "out", *more)
    assert said in ran.err
    assert ran.code == code


def test_ranks_do_not_begin_with_another_run(made):
    config = load_config(flags={"start.init_from": str(made / "off")})
    assert find_initial(config) is not None
    with pytest.raises(ConfigError, match="leave out --nproc"):
        find_initial(config, world=2)


def test_events_before_those_of_the_other_run_are_late(tgflow, made):
    words = ("--batch-size", 50, "--threads", 1, "--init-from", made / "off", "-o", "out")
    ran = tgflow("run", *flags(made, "old"), *words)
    assert ran.code == 65
    assert "before" in ran.err
