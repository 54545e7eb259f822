"""The run directory."""

from __future__ import annotations

import json
import math

import pytest

from tgflow.runtime.files import RunFiles, read_records, to_json


def test_records_can_be_read_while_the_run_goes_on(tmp_path):
    rundir = RunFiles(tmp_path / "new" / "run")
    rundir.make()
    rundir.log({"loss": 0.5})
    rundir.log({"loss": math.nan, "list": [math.inf, 1]})
    path = rundir.path / "metrics.jsonl"
    assert read_records(path) == [{"loss": 0.5}, {"loss": None, "list": [None, 1]}]
    with path.open("a") as file:
        file.write('{"loss": 0.')
    assert len(read_records(path)) == 2
    rundir.close()


def test_files_of_another_run_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds files already; choose another --out"):
        RunFiles(tmp_path)


def test_a_free_name_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("x", "x-2", "x-3"):
        rundir = RunFiles.choose(None, "x")
        assert rundir.path.name == name
        rundir.make()
        rundir.write_metrics({"a": 1})


def test_json_is_strict():
    assert json.loads(to_json({"a": {"b": math.nan}}), parse_constant=pytest.fail) == {
        "a": {"b": None}
    }
