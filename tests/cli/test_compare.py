"""`tgflow compare`: output files, resume and choice of models."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from helpers.live_runs import write_events
from tgflow.cli import main
from tgflow.cli.model_choices import chosen, preset_line
from tgflow.graph.events import EventBatch
from tgflow.models import MODELS
from tgflow.report.compare.outcome import Outcome
from tgflow.report.compare.presets import Family, measure, settings_of
from tgflow.run.config import load_config

SMALL = ("--dim", 8, "--batch-size", 50, "--threads", 1, "--seeds", 1)


def metrics_of(path):
    return json.loads((path / "metrics.json").read_text())


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Directory of a comparison over 400 events."""
    folder = tmp_path_factory.mktemp("compared")
    events = write_events(folder / "made.csv")
    out = folder / "out"
    models = "jodie,tgn+pairs,slow=jodie"
    code = main(
        [
            *("compare", "-s", str(events), "--models", models, "-o", str(out)),
            *("--model-set", "slow.learning_rate=0.0001", "--frozen-at", "0.5"),
            *("--set", "learning.mrr_further=source:3,historical:3"),
            *map(str, SMALL),
        ]
    )
    assert code == 0
    return out


def test_compare_writes_figures_scores_and_a_page(compared):
    metrics = metrics_of(compared)
    keys = ["jodie/0", "jodie frozen/0", "tgn+pairs/0", "tgn+pairs frozen/0", "slow/0",
            "slow frozen/0"]  # fmt: skip
    assert list(metrics["participants"]) == keys
    assert metrics["participants"]["jodie frozen/0"]["frozen_at"] == 200
    assert metrics["participants"]["slow/0"]["learning"] == {"learning_rate": 0.0001}
    assert metrics["num_groups"] == 2
    outcome = Outcome.read(compared)
    assert all(scores.shape == (400, 3) for scores in outcome.scores.values())
    page = (compared / "report.html").read_text()
    assert "6 models on made" in page
    assert "ahead of its frozen copy by, in MRR" in page
    assert "preset" in metrics["preset_line"]
    for name, title in (("mrr_source", "source&#39;s last"), ("mrr_hist", "historical")):
        assert f'"{title}">{metrics["participants"]["slow/0"][f"prequential.{name}"]:.4f}' in page


def test_compare_page_is_rebuilt(compared, tgflow):
    page = (compared / "report.html").read_bytes()
    (compared / "report.html").unlink()
    assert tgflow("compare", "--report", compared).code == 0
    assert (compared / "report.html").read_bytes() == page


@pytest.mark.parametrize("name", ["metrics.json", "scores.arrow"])
def test_damaged_files_are_named(compared, tgflow, name):
    path = Path(shutil.copytree(compared, "damaged")) / name
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data[: 2 * len(data) // 3] if name == "scores.arrow" else data)
    ran = tgflow("compare", "--report", "damaged")
    assert ran.code == 76
    assert "the comparison in damaged cannot be used" in ran.err
    assert "or compare again with another --out" in ran.err


def test_offline_protocol_compares_on_the_test_split(compared, tgflow):
    path = compared.parent / "made.csv"
    flags = ("-m", "recency,jodie", "--protocol", "dyglib/1", "--epochs", 1, *SMALL)
    ran = tgflow("compare", path, *flags, "-o", "offline")
    assert ran.code == 0, ran.err
    summary = metrics_of(Path("offline"))
    assert "dyglib/1: 70/15/15" in summary["protocol_line"]
    outcome = Outcome.read(Path("offline"))
    start, rows = summary["test.start_event"], outcome.scores["jodie/0"]
    assert rows.shape == (400 - start, 3)
    plain = ("-m", "jodie")
    alone = tgflow("train", "-s", path, *plain, *flags[2:-2], "-o", "alone")
    assert alone.code == 0, alone.err
    for name in ("test.ap", "test.mrr", "val.ap"):
        assert summary["participants"]["jodie/0"][name] == metrics_of(Path("alone"))[name]
    assert float(rows[:, 0].mean()) == pytest.approx(
        summary["participants"]["jodie/0"]["test.mrr"], abs=1e-6
    )
    assert "2 models on made" in Path("offline/report.html").read_text()


def test_metric_that_selects_is_shown_first(compared, tgflow):
    path = compared.parent / "made.csv"
    flags = ("--models", "recency,edgebank", "--mrr-negatives", 5, *SMALL)
    for protocol, name in (("tgbl/1", "MRR"), ("dyglib/1", "AP")):
        ran = tgflow("compare", "-s", path, *flags, "--protocol", protocol, "-o", name)
        assert ran.code == 0, ran.err
        assert f"recency/0  test {name} 0." in ran.err


def settings(models, **flags):
    config = load_config(flags={"compare.models": [models], **flags})
    return config.model, config.task, config.compare


def test_each_model_gets_only_its_own_settings():
    config = settings(
        "tgn,small=tgn+pairs,craft",
        **{"model.dim": 8, "model.settings": {"table_size": 64, "small.memory_dim": 4}},
    )
    tgn, small, craft = chosen(*config, None)
    assert tgn.settings == dict.fromkeys(("memory_dim", "time_dim", "embedding_dim"), 8)
    assert small.settings["memory_dim"] == 4
    assert craft.settings == {"embedding_dim": 8, "table_size": 64}


def stream(src, dst, t):
    return EventBatch(torch.as_tensor(src), torch.as_tensor(dst), torch.as_tensor(t))


def family_of(src, dst, t):
    return measure(stream(src, dst, t), 1.0).family


def test_preset_is_chosen_by_measuring_the_stream():
    many = torch.arange(1000)
    assert family_of(many % 7, 7 + many % 5, many // 100) == "discrete"
    assert family_of(2 * many, 2 * many + 1, many) == "sparse"
    assert family_of(many % 40, 40 + many // 5 % 600, many) == "recommendation"
    assert family_of(many % 7, (many + 1) % 7, many) == "repeat"
    facts = measure(stream([0, 1, 0, 2], [1, 0, 2, 3], [0, 5, 5, 20]), 2.0)
    assert (facts.repeat, facts.new, facts.num_times) == (0.25, 0.75, 3)
    assert facts.step_seconds == 20.0
    assert not facts.bipartite


def test_presets_set_supported_settings_and_flags_override_them():
    facts = measure(
        stream(torch.zeros(50).long(), torch.ones(50).long(), torch.arange(50) // 25), 1
    )
    assert facts.family == "discrete"
    [choice] = chosen(*settings("tpnet"), facts)
    assert choice.preset == {"walk_decay": math.log(2) / 20}
    [choice] = chosen(*settings("tpnet", **{"model.settings": {"walk_decay": 0.5}}), facts)
    assert choice.settings["walk_decay"] == 0.5
    assert choice.preset == {}
    for family in Family.__args__:
        for name, values in settings_of(family, facts).items():
            known = set(MODELS[name].config.__dataclass_fields__) | {"loss"}
            assert set(values) <= known, (family, name)


SPARSE = measure(stream(*(2 * torch.arange(60) + end for end in (0, 1)), torch.arange(60)), 1)


def test_automatic_lineup_of_a_sparse_stream_excludes_pair_history_models():
    config = settings("auto,own=tgn+pairs")
    names = [choice.label for choice in chosen(*config, SPARSE)]
    assert "tgn+pairs" not in names
    assert {"tgn", "own"} <= set(names)  # explicitly named models stay
    line = preset_line(config[2], SPARSE, chosen(*config, SPARSE))
    assert line.startswith("preset sparse (stream measured: sparse: ")
    assert line.endswith("; leaves out tgn+pairs")
    other = settings("auto", **{"compare.preset": "repeat"})
    assert "tgn+pairs" in [choice.label for choice in chosen(*other, SPARSE)]
    assert "leaves out" not in preset_line(other[2], SPARSE, [])


def test_comparison_over_few_distinct_times_learns_by_time_step(tgflow):
    rows = [f"{i % 7},{7 + i * i % 5},{i // 30}" for i in range(150)]
    Path("days.csv").write_text("\n".join(["src,dst,t", *rows]) + "\n")
    flags = ("compare", "-s", "days.csv", "--time-unit", "d", "--models", "jodie", *SMALL)
    ran = tgflow(*flags, "-o", "whole")
    assert ran.code == 0, ran.err
    assert "preset discrete" in ran.err
    metrics = metrics_of(Path("whole"))
    assert metrics["cut_at_steps"]
    assert "micro-batches end with their time" in metrics["protocol_line"]
    assert metrics["participants"]["jodie/0"]["num_steps"] == 5
    assert tgflow(*flags, "--no-cut-at-steps", "-o", "plain").code == 0
    assert metrics_of(Path("plain"))["participants"]["jodie/0"]["num_steps"] == 3
