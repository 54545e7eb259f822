"""Accuracy rows are made from runs, whose settings are compared as values."""

import json

from benchmarks.accuracy import rows_of_run


def test_settings_of_a_row_do_not_depend_on_their_spelling(tmp_path):
    found = {"stream": "enron.csv", "model": "counts", "num_seeds": 3, "test.ap": 0.9}
    (tmp_path / "metrics.json").write_text(json.dumps(found | {"num_parameters": 9}))
    (tmp_path / "config.toml").write_text(
        "[learning]\nlearning_rate = 0.00030\nepochs = 5\nbatch_size = 100\nseed = 4\n"
        '[model]\nname = "counts"\ndepth = 5\ngroups = [ "shares",]\nhalf_life = 1e+7\n'
    )
    [row] = rows_of_run(tmp_path)
    assert row.params["settings"] == (
        "--batch-size 100 --learning-rate 0.0003 --epochs 5 "
        '--model-set groups=["shares"] --model-set half_life=10000000.0'
    )
