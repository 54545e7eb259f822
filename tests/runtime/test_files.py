"""The run directory."""

from __future__ import annotations

import math

import pytest

from helpers.forged import flip_bit
from tgflow.checkpoint import Checkpoint, save
from tgflow.runtime.files import DamagedJson, Records, RunFiles, read_records


def test_records_can_be_read_while_the_run_goes_on(tmp_path):
    rundir = RunFiles(tmp_path / "new" / "run")
    rundir.make()
    rundir.log({"loss": 0.5})
    rundir.log({"loss": math.nan, "list": [math.inf, 1]})
    path = rundir.path / "metrics.jsonl"
    written = [{"loss": 0.5}, {"loss": None, "list": [None, 1]}]
    assert read_records(path) == Records(written, 0)
    with path.open("a") as file:
        file.write('{"loss": 0.')
    assert read_records(path) == Records(written, 0)
    rundir.close()


def test_a_record_with_any_changed_bit_is_left_out_and_counted(tmp_path):
    rundir = RunFiles(tmp_path)
    for index in range(3):
        rundir.log({"index": index, "loss": 0.5, "who": "caf\u00e9"})
    rundir.close()
    path = tmp_path / "metrics.jsonl"
    good = path.read_bytes()
    first, second, third = read_records(path).kept
    start, stop = good.index(b"\n") + 1, good.rindex(b"\n", 0, -1)
    for bit in range(8 * start, 8 * stop):
        path.write_bytes(flip_bit(good, bit))
        found = read_records(path)
        assert found.kept in ([first, third], [first, second, third])
        assert len(found.kept) == 3 or found.num_damaged >= 1


def test_figures_that_are_not_what_was_written_are_refused(tmp_path):
    rundir = RunFiles(tmp_path)
    rundir.write_json("figures.json", {"a": 1, "b": {"1": [0.1]}})
    assert rundir.read_json("figures.json") == {"a": 1, "b": {"1": [0.1]}}
    assert rundir.read_json("none.json") is None
    path = tmp_path / "figures.json"
    assert len(path.read_text().splitlines()) == 2 + 3, "an entry a line, and the checksum"
    for text, problem in (
        (path.read_text().replace("0.1", "0.2"), "its checksum differs"),
        (path.read_text().replace('"a"', '"b"'), "its checksum differs"),
        ("[1]", "its checksum differs"),
        ("{", "it is not JSON"),
    ):
        path.write_text(text)
        with pytest.raises(DamagedJson, match=problem):
            rundir.read_json("figures.json")


def test_a_place_is_free_where_nothing_was_learned(tmp_path):
    def left(name, position):
        rundir = RunFiles(tmp_path / name)
        rundir.make()
        rundir.write_metrics({"num_events": position})
        (rundir.path / "log").mkdir()
        checkpoint = Checkpoint({})
        checkpoint.note("position", position)
        save(rundir.path / "checkpoints" / "ckpt-000000000000", checkpoint)
        return rundir.path

    RunFiles(left("nothing", 0)).clear()
    assert list((tmp_path / "nothing").iterdir()) == []
    with pytest.raises(FileExistsError, match="holds files already"):
        RunFiles(left("something", 7))
    damaged = left("damaged", 0) / "checkpoints" / "ckpt-000000000000" / "manifest.json"
    damaged.write_text("{}")
    with pytest.raises(FileExistsError, match="holds files already"):
        RunFiles(tmp_path / "damaged")


def test_a_place_is_free_where_a_run_was_killed_over_a_file(tmp_path):
    for name in (".metrics.csv.partial", ".scores.json.partial", ".config.toml.partial", ".lock"):
        (tmp_path / name).touch()
    RunFiles(tmp_path).clear()
    (tmp_path / ".notes.txt.partial").touch()
    with pytest.raises(FileExistsError, match="holds files already"):
        RunFiles(tmp_path)
