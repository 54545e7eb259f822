"""`tgflow run --init-from`: a trained model continues learning on a new stream."""

import csv
import json
from pathlib import Path

import pytest
import torch

import tgflow as tg
from helpers.live_runs import SMALL, same_run
from tgflow.cli import main
from tgflow.run.config import ConfigError
from tgflow.run.saved import find_initial

OLD, NEW = 120, 130


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with two parts of a stream, and a model trained on the first."""
    folder = tmp_path_factory.mktemp("initial")
    lines = [f"acc_{i % 9},shop_{i * i % 7},{1_600_000 + i}" for i in range(OLD + NEW)]
    for name, part in (("old", lines[:OLD]), ("new", lines[OLD:])):
        (folder / f"{name}.csv").write_text("\n".join(["src,dst,t", *part]) + "\n")
    words = ["train", "-s", folder / "old.csv", *SMALL, "--epochs", 1, "-o", folder / "off"]
    assert main([str(word) for word in words]) == 0
    return folder


@pytest.fixture
def begin(tgflow, made):
    """Run over the new part into `out`, with more flags."""
    return lambda *more, stream="new": tgflow(
        "run", "-s", made / f"{stream}.csv", "--batch-size", 50, "--threads", 1,
        "--init-from", made / "off", "-o", "out", *more,
    )  # fmt: skip


def test_init_from_continues_model_events_and_ids(begin, resume, made):
    assert begin("--scores", "s.csv", "--json", "--limit", 50).code == 0
    old, run = tg.open_run(made / "off"), tg.open_run("out")
    assert run.config.model.dim == 8, "the model is the other run's"
    assert run.position == OLD + 50
    assert run.ids.decode(torch.arange(9)) == old.ids.decode(torch.arange(9))
    assert torch.equal(run.graph.log.read(0, OLD).t, old.graph.log.read(0, OLD).t)
    with Path("s.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["position"]) for row in rows] == list(range(OLD, OLD + 50))
    answer = old.score(rows[0]["src"], rows[0]["dst"], int(rows[0]["t"]))
    assert float(answer.logit) == pytest.approx(float(rows[0]["logit"]), rel=1e-4, abs=1e-4)
    assert json.loads(Path("out/metrics.json").read_text())["num_events"] == 50
    assert resume("--limit", 1_000).code == 0
    metrics = json.loads(Path("out/metrics.json").read_text())
    assert metrics["rows"]["accepted"] == metrics["num_events"] == NEW
    Path("out/checkpoints").rename("away")
    Path("out").rename("whole")
    assert begin("--scores", "t.csv").code == 0
    Path("out/checkpoints").rename("first")
    Path("out/checkpoints").mkdir()
    assert resume("--scores", "u.csv").code == 0, "it starts over from its log"
    same_run(Path("whole"), Path("out"))


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--direction", "bipartite"], 2, "--init-from: events are undirected there, and"),
        (["--dim", "12"], 76, "does not fit this model"),
        (["--time-unit", "ms"], 65, "ms"),
        (["--init-from", "nowhere"], 66, "nowhere is not a run: it has no config.toml"),
    ],
)
def test_settings_incompatible_with_the_model_are_refused(begin, more, code, said):
    ran = begin(*more)
    assert said in ran.err
    assert ran.code == code


def test_events_before_those_of_the_other_run_are_late(begin):
    ran = begin(stream="old")
    assert ran.code == 65
    assert "before" in ran.err


def test_init_from_is_refused_with_several_ranks(made):
    assert find_initial(made / "off", world=1).meta["position"]
    with pytest.raises(ConfigError, match="leave out --nproc"):
        find_initial(made / "off", world=2)
