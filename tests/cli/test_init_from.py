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
        (["--dim", "12"], 2, "has other parameters: --dim is 8 there and 12 here"),
        (["--features", "t"], 2, "--features: those of the run have width 0, and now 1"),
        (["--feature-scale", "log", "--features", "t"], 2, "--features: those"),
        (["--time-unit", "ms"], 65, "ms"),
        (["--init-from", "nowhere"], 66, "nowhere is not a run: it has no config.toml"),
    ],
)
def test_settings_incompatible_with_the_model_are_refused(begin, more, code, said):
    ran = begin(*more)
    assert said in ran.err
    assert ran.code == code


@pytest.mark.parametrize("first", ["train", "run"])
def test_settings_of_columns_features_and_task_are_inherited(tgflow, first):
    """The later file has other categories and relations first, and integers among its ids."""
    head = "payer,shop,at,amount,kind,land,fraud"
    kinds, lands = ("card", "cash"), ("at", "be", "ch")
    lines = [
        f"{'' if i > 150 else 'a'}{i % 9},{i * i % 7},{1000 + i},{i % 50 * 9},{kinds[i // 160]},"
        f"{lands[i // 80]},{i % 5 == 0:d}"
        for i in range(240)
    ]
    for name, part in (("old", lines[:150]), ("new", lines[160:])):
        Path(f"{name}.csv").write_text("\n".join([head, *part]) + "\n")
    more = ["--epochs", 1] if first == "train" else []
    ran = tgflow(
        first, "-s", "old.csv", "-o", "old", *SMALL, *more, "--src", "payer", "--dst", "shop",
        "--t", "at", "--time-unit", "s", "--features", "amount", "--relation", "kind",
        "--categorical", "land", "--set", "stream.max_categories=4", "--feature-scale", "log",
        "--direction", "bipartite", "--task", "edge", "--target", "fraud",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    ran = tgflow("run", "-s", "new.csv", "-o", "new", "--init-from", "old", "--threads", 1)
    assert ran.code == 0, ran.err
    old, new = tg.open_run("old"), tg.open_run("new")
    assert (old.classes["land"], new.classes["land"]) == (["at", "be"], ["at", "be", "ch"])
    assert new.classes["relation"] == ["card", "cash"]
    last = new.graph.edge_x.read(150 + 79, 150 + 80)[0]
    assert int(last[1:].argmax()) == 2, "the third category has the third slot"
    assert new.config.task == old.config.task
    assert new.config.graph.feature_scale == "log"
    assert new.ids.find(["4"], "dst").item() == old.ids.find(["4"], "dst").item() >= 0
    ran = tgflow("run", "-s", "new.csv", "-o", "w", "--init-from", "old", "--classes", 5)
    assert (ran.code, "--classes is" in ran.err) == (2, True), ran.err
    assert "there and 5 here" in ran.err
    ran = tgflow("run", "-s", "new.csv", "-o", "w", "--init-from", "old", "--feature-scale", "none")
    assert (ran.code, "has --feature-scale log, this one none" in ran.err) == (2, True), ran.err


def test_events_before_those_of_the_other_run_are_late(begin):
    ran = begin(stream="old")
    assert ran.code == 65
    assert "before" in ran.err


def test_init_from_is_refused_with_several_ranks(made):
    assert find_initial(made / "off", world=1).meta["position"]
    with pytest.raises(ConfigError, match="leave out --nproc"):
        find_initial(made / "off", world=2)
