"""What a run reached becomes a row, in place of an older one with the same settings."""

import json

from benchmarks.accuracy import merged, row_of_run
from tgflow.bench.row import Row


def test_row_of_a_run_says_what_was_typed(tmp_path):
    found = {"stream": "data/enron.csv.gz", "model": "counts", "num_seeds": 1, "test.ap": 0.93}
    (tmp_path / "metrics.json").write_text(json.dumps(found | {"num_parameters": 9}))
    model = '[model]\nname = "counts"\nhidden = 16\nboth = true\n'
    learning = "[offline]\nlearning_rate = 0.01\nepochs = 5\n"
    (tmp_path / "config.toml").write_text(model + learning)
    row = row_of_run(tmp_path)
    assert (
        row.params["settings"]
        == "--learning-rate 0.01 --epochs 5 --model-set both=true --model-set hidden=16"
    )
    assert (row.value, row.target, row.params["stream"]) == (0.93, 0.929, "enron")


def test_row_of_a_continual_run_is_prequential(tmp_path):
    found = {"stream": "data/enron.csv.gz", "model": "tgn+pairs", "num_events": 125_235}
    (tmp_path / "metrics.json").write_text(json.dumps(found | {"prequential.ap": 0.95}))
    (tmp_path / "config.toml").write_text('[stream]\ntime_unit = "d"\n')
    row = row_of_run(tmp_path)
    assert (row.name, row.value) == ("prequential AP", 0.95)
    assert row.params["settings"] == "--time-unit d"


def test_newer_rows_take_the_place_of_older_ones():
    def row(value, settings):
        params = {"stream": "enron", "model": "counts", "settings": settings}
        return Row("test AP", value, "", params)

    old = [row(0.1, "a"), row(0.2, "b")]
    assert [each.value for each in merged(old, [row(0.3, "a")])] == [0.3, 0.2]
