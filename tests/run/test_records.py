"""Files of a run directory: records, figures, health and messages."""

import json
import math
import random

import pytest

from helpers.effort import cases
from helpers.forged import flip_bit
from tgflow.base.text import printable
from tgflow.checkpoint import Checkpoint, save
from tgflow.checkpoint.durable.errors import LogCorrupt
from tgflow.run import log
from tgflow.run import records as files
from tgflow.run.config.schema import RunConfig
from tgflow.run.log import RunLog
from tgflow.run.records import (
    NUMBER,
    STATES,
    DamagedJson,
    RecordFile,
    Records,
    RunFiles,
    read_health,
    read_records,
    write_health,
)


def test_record_with_a_flipped_bit_is_skipped_and_counted(tmp_path):
    rundir = RunFiles(tmp_path)
    for index in range(3):
        rundir.log({"index": index, "loss": math.nan, "who": "caf\u00e9"})
    rundir.record_file.close()
    path = tmp_path / "metrics.jsonl"
    good = path.read_bytes()
    first, second, third = read_records(path).kept
    assert first == {"index": 0, "loss": None, "who": "caf\u00e9"}
    path.write_bytes(good + b'{"loss": 0.')  # as during a run
    assert read_records(path) == Records([first, second, third], 0)
    start, stop = good.index(b"\n") + 1, good.rindex(b"\n", 0, -1)
    for bit in range(8 * start, 8 * stop):
        path.write_bytes(flip_bit(good, bit))
        found = read_records(path)
        assert found.kept in ([first, third], [first, second, third])
        assert len(found.kept) == 3 or found.num_damaged >= 1


def test_modified_metrics_are_refused(tmp_path):
    rundir = RunFiles(tmp_path)
    rundir.write_json("figures.json", {"a": 1, "b": {"1": [0.1]}})
    assert rundir.read_json("figures.json") == {"a": 1, "b": {"1": [0.1]}}
    assert rundir.read_json("none.json") is None
    path = tmp_path / "figures.json"
    assert len(path.read_text().splitlines()) > 3, "an entry a line, as people read it"
    for text, problem in (
        (path.read_text().replace("0.1", "0.2"), "its checksum differs"),
        (path.read_text().replace('"a"', '"b"'), "its checksum differs"),
        ("[1]", "its checksum differs"),
        ("{", "it is not JSON"),
    ):
        path.write_text(text)
        with pytest.raises(DamagedJson, match=problem):
            rundir.read_json("figures.json")


def test_directory_of_a_run_that_learned_nothing_can_be_reused(tmp_path):
    def left(name, position):
        rundir = RunFiles(tmp_path / name)
        rundir.make(RunConfig(share_files=True))
        rundir.write_json("metrics.json", {"num_events": position})
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


def test_directory_with_only_partial_files_can_be_reused(tmp_path):
    for name in (".metrics.json.partial", ".scores.json.partial", ".config.toml.partial", ".lock"):
        (tmp_path / name).touch()
    RunFiles(tmp_path).clear()
    (tmp_path / ".notes.txt.partial").touch()
    with pytest.raises(FileExistsError, match="holds files already"):
        RunFiles(tmp_path)


def test_only_a_run_is_overwritten(tmp_path):
    for name in ("log", "checkpoints", "report.html"):  # also names of others' files
        (tmp_path / name).touch()
    with pytest.raises(FileExistsError, match="which is no file of a run"):
        RunFiles(tmp_path, overwrites=True)
    (tmp_path / "config.toml").touch()
    RunFiles(tmp_path, overwrites=True).clear()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LATEST", 16)
    monkeypatch.setattr(files, "EARLIER", 8)
    monkeypatch.setattr(files, "STEP", 4)
    return tmp_path / "metrics.jsonl"


def numbers(path):
    return [json.loads(line)[NUMBER] for line in path.read_text().splitlines()]


def write(file, start, stop):
    for index in range(start, stop):
        file.write({"index": index, "loss": index / 7})


def test_record_file_keeps_the_latest_and_thins_earlier_records(path):
    file = RecordFile(path)
    for total in range(1, 400):
        write(file, total - 1, total)
        found = numbers(path)
        assert len(found) <= 16 + 8 + 4
        assert found[-min(16, total) :] == [*range(max(0, total - 16), total)]
    assert numbers(path) == [*range(0, 380, 64), *range(380, 399)]
    assert read_records(path).kept[-1] == {"index": 398, "loss": 398 / 7}
    assert not list(path.parent.glob(".*partial"))


@pytest.mark.parametrize("seed", cases(range(8), range(3)))
def test_killed_run_keeps_the_same_records(path, seed, tmp_path):
    whole = RecordFile(tmp_path / "whole.jsonl")
    write(whole, 0, 301)
    chance, at, mark = random.Random(seed), 0, 0
    while at < 301:
        file = RecordFile(path)
        file.rewind(mark)
        saved = min(301, at + chance.randrange(40))
        write(file, at, saved)
        file.sync()
        mark, at = file.num_written, saved
        lost = min(301, saved + chance.randrange(90))
        write(file, saved, lost)  # which no checkpoint counts
        file.close()
        with path.open("ab") as torn:
            torn.write(b'{"index":')
    file = RecordFile(path)
    file.rewind(mark)
    assert path.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_damaged_line_does_not_discard_good_ones(path):
    file = RecordFile(path)
    write(file, 0, 10)
    file.sync()
    mark = file.num_written
    write(file, 10, 12)
    file.close()
    data = (
        path.read_bytes().replace(b'"number":3', b'"number":9').replace(b'"index":4', b'"index":5')
    )
    path.write_bytes(data)
    file = RecordFile(path)
    file.rewind(mark)
    write(file, 10, 11)
    assert numbers(path) == [0, 1, 2, 9, 4, 5, 6, 7, 8, 9, 10]
    assert read_records(path).num_damaged == 2


def test_file_without_a_record_is_not_truncated(path):
    path.write_text(text := "mine alone\n" * 9)
    with pytest.raises(LogCorrupt, match="has no record of this run"):
        RecordFile(path).rewind(3)
    assert path.read_text() == text


def test_health_distinguishes_running_from_dead_processes(tmp_path, monkeypatch):
    path = tmp_path / "health.json"
    for state in STATES:
        assert write_health(path, state, {"position": 7, "loss": math.nan})
        found = read_health(path)
        assert (found["state"], found["position"], found["loss"]) == (state, 7, None)
        assert found["alive"] == (state not in ("stopped", "done", "failed"))
        assert [p.name for p in tmp_path.iterdir()] == ["health.json"]
    for shift in (-3600, 3600):
        monkeypatch.setattr(files.time, "time", lambda shift=shift: 1e9 + shift)
        write_health(path, "running", {})
        monkeypatch.setattr(files.time, "time", lambda: 1e9)
        assert not read_health(path)["alive"], "it is old, or from the future"
    for text in ("", "[]", '{"state": "running"}'):
        path.write_text(text)
        assert read_health(path) is None
    assert read_health(tmp_path / "nowhere.json") is None


def entries(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    "hostile", ["\x1b[2J\x1b]0;x\x07", "a\r\nb", "\u202eevil", "\x9b31m", "\ud800"]
)
def test_terminal_control_sequences_are_escaped(tmp_path, capsys, hostile):
    notes = RunLog(tmp_path / "run.log")
    notes.warning("bad", f"row is {hostile!s}", raw=hostile)
    notes.close()
    said = capsys.readouterr().err.removesuffix("\n")
    assert said.isprintable()
    assert said == f"tgflow: {printable(f'row is {hostile}')}"
    text = (tmp_path / "run.log").read_bytes()
    assert text.isascii()
    assert text.count(b"\n") == 1
    assert b"\x1b" not in text
    assert entries(tmp_path / "run.log")[0]["raw"] == hostile


def test_run_log_size_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "MAX_BYTES", 1000)
    notes = RunLog(tmp_path / "run.log")
    for number in range(100):
        notes.info("tick", "x" * 50, number=number)
    notes.close()
    assert {p.name for p in tmp_path.iterdir()} == {"run.log", "run.log.1"}
    assert all(path.stat().st_size < 1300 for path in tmp_path.iterdir())
    assert entries(tmp_path / "run.log")[-1]["number"] == 99
