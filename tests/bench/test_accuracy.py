"""Accuracy rows are made from runs and replace older rows with the same settings."""

import json

import pytest

from benchmarks.accuracy import rows_of_run, with_targets
from tgflow.bench.row import Row


@pytest.mark.parametrize(
    ("training", "model"),
    [
        ("learning_rate = 3e-4", 'half_life = 1e7\ngroups = ["shares"]'),
        (
            "learning_rate = 0.0003\nseed = 4\nnum_threads = 2",
            'groups = ["shares"]\nhalf_life = 1e+7',
        ),
        ("learning_rate = 0.00030", 'depth = 5\ngroups = [ "shares",]\nhalf_life = 10000000.0'),
    ],
)
def test_settings_of_a_row_do_not_depend_on_their_spelling(tmp_path, training, model):
    found = {"stream": "enron.csv", "model": "counts", "num_seeds": 3, "test.ap": 0.9}
    (tmp_path / "metrics.json").write_text(json.dumps(found | {"num_parameters": 9}))
    training, model = f"epochs = 5\nbatch_size = 100\n{training}", f'name = "counts"\n{model}'
    (tmp_path / "config.toml").write_text(f"[offline]\n{training}\n[model]\n{model}\n")
    [row] = rows_of_run(tmp_path)
    assert row.params["settings"] == (
        "--batch-size 100 --learning-rate 0.0003 --epochs 5 "
        '--model-set groups=["shares"] --model-set half_life=10000000.0'
    )


def row_of(name, model, value, stream="collegemsg", settings="", **params):
    return Row(name, value, "", {"stream": stream, "model": model, "settings": settings, **params})


def test_best_result_is_computed_from_the_rows():
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


def test_default_target_is_the_better_of_tgn_and_the_heuristics():
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
