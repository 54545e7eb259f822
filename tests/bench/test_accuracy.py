"""What a run reached becomes a row, in place of an older one with the same settings."""

import json

import pytest

from benchmarks.accuracy import headline_table, merged, rows_of_run, with_targets
from benchmarks.results import Result
from tgflow.bench.row import Row


def test_row_of_a_run_says_what_was_typed(tmp_path):
    found = {"stream": "data/enron.csv.gz", "model": "counts", "num_seeds": 1, "test.ap": 0.93}
    (tmp_path / "metrics.json").write_text(json.dumps(found | {"num_parameters": 9}))
    model = '[model]\nname = "counts"\nhidden = 16\nboth = true\n'
    learning = "[offline]\nlearning_rate = 0.01\nepochs = 5\n"
    (tmp_path / "config.toml").write_text(model + learning)
    [row] = with_targets(rows_of_run(tmp_path))[:1]
    assert (
        row.params["settings"]
        == "--learning-rate 0.01 --epochs 5 --model-set both=true --model-set hidden=16"
    )
    assert (row.value, row.target, row.params["stream"]) == (0.93, 0.929, "enron")


@pytest.mark.parametrize(
    ("training", "model"),
    [
        ("learning_rate = 3e-4", "half_life = 1e7\nwindow = true"),
        ("learning_rate = 0.0003\nseed = 4\nnum_threads = 2", "window = true\nhalf_life = 1e+7"),
        ("learning_rate = 0.00030", "depth = 5\nwindow = true\nhalf_life = 10000000.0"),
    ],
)
def test_settings_are_a_rows_however_they_were_typed(tmp_path, training, model):
    found = {"stream": "enron.csv", "model": "counts", "num_seeds": 3, "test.ap": 0.9}
    (tmp_path / "metrics.json").write_text(json.dumps(found | {"num_parameters": 9}))
    training, model = f"epochs = 5\nbatch_size = 100\n{training}", f'name = "counts"\n{model}'
    (tmp_path / "config.toml").write_text(f"[offline]\n{training}\n[model]\n{model}\n")
    [row] = rows_of_run(tmp_path)
    assert row.params["settings"] == (
        "--batch-size 100 --learning-rate 0.0003 --epochs 5 "
        "--model-set half_life=10000000.0 --model-set window=true"
    )


def test_row_of_a_continual_run_is_prequential(tmp_path):
    found = {"stream": "data/enron.csv.gz", "model": "tgn+pairs", "num_events": 125_235}
    (tmp_path / "metrics.json").write_text(json.dumps(found | {"prequential.ap": 0.95}))
    (tmp_path / "config.toml").write_text('[stream]\ntime_unit = "d"\n')
    [row] = rows_of_run(tmp_path)
    assert (row.name, row.value) == ("prequential AP", 0.95)
    assert row.params["settings"] == "--time-unit d"


def test_each_kind_of_negatives_has_a_row(tmp_path):
    found = {"stream": "enron.csv", "model": "recency", "num_seeds": 3, "num_parameters": 0}
    figures = {"test.ap": 0.88, "test.ap_std": 0.01, "test.inductive.ap": 0.8}
    (tmp_path / "metrics.json").write_text(json.dumps(found | figures))
    offline = 'protocol = "dyglib/1"\nnegatives = ["historical", "inductive"]\n'
    (tmp_path / "config.toml").write_text(f"[offline]\n{offline}")
    first, second = rows_of_run(tmp_path)
    assert (first.name, first.value) == ("test AP, historical", 0.88)
    assert (second.name, second.value) == ("test AP, inductive", 0.8)
    assert (first.params["spread"], second.params["spread"]) == (0.01, "")
    settings = "--protocol dyglib/1 --negatives historical --negatives inductive"
    assert first.params["settings"] == second.params["settings"] == settings


def row_of(name, model, value, stream="collegemsg", settings="", **params):
    return Row(name, value, "", {"stream": stream, "model": model, "settings": settings, **params})


def test_the_best_of_all_follows_from_the_rows():
    rows = [
        row_of("test AP", "tpnet", 0.96),
        row_of("test AP", "recency", 0.965),
        row_of("test AP", "edgebank", 0.99, settings="--visibility batch"),
        row_of("test AP, historical", "recency", 0.9),
        row_of("test AP", "made", 0.5, "elsewhere"),
    ]
    found = with_targets(rows)
    assert [row.target for row in found[:5]] == [0.9735, 0.963, 0.756, None, None]
    best = [(row.name, row.params["model"], row.reached) for row in found[5:]]
    assert best == [
        ("test AP, best of all", "recency", False),
        ("test AP, historical, best of all", "recency", False),
    ]
    assert with_targets(found) == found


def test_the_default_is_to_reach_the_better_of_tgn_and_the_rules():
    rows = [
        row_of("prequential AP", "tgn+pairs", 0.9, "enron", events=10),
        row_of("prequential AP", "tgn+pairs", 0.97, events=10),
        row_of("prequential AP", "tgn", 0.91, "enron", events=10),
        row_of("prequential AP", "recency", 0.8, "enron", events=10),
        row_of("prequential AP", "recency", 0.99, "enron", events=5),
        row_of("prequential AP", "counts", 0.95, "enron", events=10),
        row_of("prequential AP", "tgn+pairs", 0.9, "icews14", events=10),
    ]
    targets = [row.target for row in with_targets(rows)]
    assert targets[0] == pytest.approx(0.907)
    assert targets[1:] == [0.96, None, None, None, None, None]


def test_the_readme_has_what_was_measured_and_nothing_else():
    rows = (row_of("test AP", "tpnet", 0.96), row_of("test AP", "recency", 0.955, "enron"))
    assert list(headline_table({"accuracy": Result("", "", "", "", rows)}))[2:] == [
        "| the best of all models | 0.960 (tpnet) | 0.955 (recency) |  |",
        "| the best rule without parameters |  | 0.955 (recency) |  |",
    ]


def test_newer_rows_take_the_place_of_older_ones():
    def row(value, settings):
        params = {"stream": "enron", "model": "counts", "settings": settings}
        return Row("test AP", value, "", params)

    old = [row(0.1, "a"), row(0.2, "b")]
    assert [each.value for each in merged(old, [row(0.3, "a")])] == [0.3, 0.2]
