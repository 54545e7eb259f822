"""Crash states of the log, checkpoints and dead letters give the old or the new state."""

import errno
import json
import os
import signal
from pathlib import Path

import pytest
import torch

import tgflow
from helpers import faults
from helpers.crash_states import (
    Quick,
    RecordingFs,
    check_is_whole,
    check_log,
    checkpoint_of,
    crash_states,
    explore,
    of,
    outcome_of,
    write_log,
)
from helpers.effort import cases
from helpers.worlds import results_of, run_apart
from tgflow import models, streams
from tgflow.checkpoint import CheckpointStore
from tgflow.checkpoint.durable.log import DurableLog
from tgflow.streams.ingest.dead_letters import DeadLetterFiles
from tgflow.streams.rows.row_batch import BadRow, Origin


def check(state, directory):
    """Raise unless the log has the acknowledged frames and accepts another."""
    check_log(state.notes, directory)
    write_log(directory, lambda _: None, Quick(), count=1).close()
    check_log([*state.notes, "begun 99"], directory)


@pytest.mark.parametrize("sync_every", [1, 3])
@pytest.mark.parametrize("segment_bytes", [900, 1 << 20])
def test_every_crash_state_of_the_log_is_old_or_new(
    record_property, tmp_path, sync_every, segment_bytes
):
    root = tmp_path / "log"
    root.mkdir()
    fs = RecordingFs(root)
    settings = {"segment_bytes": segment_bytes, "sync_every": sync_every, "drop_after": 7}
    write_log(root, fs.note, fs, count=9, **settings).close()
    fs.note("synced 8")
    num = explore(fs, check, tmp_path / "copy")
    record_property("crash states of the log", num)
    assert num > 50


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("when", [1, 2, 4])
def test_every_crash_state_of_a_log_whose_disk_fails_is_old_or_new(
    record_property, tmp_path, code, when
):
    """A failed sync may lose its data: later frames go to a new segment."""
    root = tmp_path / "log"
    root.mkdir()
    syncs = []

    def fail(text):
        if text.startswith("sync ") and (syncs.append(text) or len(syncs) == when):
            raise OSError(code, os.strerror(code))

    fs = RecordingFs(root, fail)
    write_log(root, fs.note, fs, count=6, segment_bytes=1 << 20, drop_after=9).close()
    num = explore(fs, check, tmp_path / "copy")
    record_property("crash states of the log", num)
    assert num > 60


def test_every_crash_state_of_recovery_is_recovered(tmp_path):
    """The machine crashes again while the log recovers from the first crash."""
    root = tmp_path / "log"
    root.mkdir()
    first = RecordingFs(root)
    write_log(root, first.note, first, count=4, segment_bytes=700, drop_after=9)
    for i, state in enumerate(list(crash_states(first))[::5]):
        again = tmp_path / f"again-{i}"
        state.write_to(again)
        fs = RecordingFs(again)
        for note in state.notes:
            fs.note(note)
        DurableLog(again, fs=fs)
        explore(fs, check, tmp_path / "copy", known=len(state.notes))


def check_store(state, directory):
    """Raise unless the newest checkpoint is valid, and the last acknowledged one or newer."""
    store = CheckpointStore(directory, fs=Quick())
    found, saved, begun = store.newest(), of(state.notes, "saved"), of(state.notes, "begun")
    assert not store.problems
    assert len(store.entries()) <= 4
    if found is None:
        assert not saved
        return
    step, loaded = found
    assert max(saved, default=0) <= step <= max(begun, default=step)
    check_is_whole(loaded, step)


def test_every_crash_state_of_checkpoints_is_old_or_new(record_property, tmp_path):
    root = tmp_path / "checkpoints"
    root.mkdir()
    fs = RecordingFs(root)
    store = CheckpointStore(root, fs=fs, keep=1)
    for step in (1, 4, 5, 5):
        fs.note(f"begun {step}")
        store.save(step, checkpoint_of(step))
        fs.note(f"saved {step}")
    same = checkpoint_of(5)
    same.sections["model"]["b"] = torch.ones(1)  # the same step, but not the same content
    store.save(5, same)
    num = explore(fs, check_store, tmp_path / "copy")
    record_property("crash states of checkpoints", num)
    assert num > 100


def test_every_crash_state_of_replacing_and_setting_aside_is_old_or_new(record_property, tmp_path):
    root = tmp_path / "checkpoints"
    store = CheckpointStore(root, keep=2)
    for step in (3, 4):
        path = store.save(step, checkpoint_of(step))
    (path / "model.safetensors").write_bytes(b"damaged")
    fs = RecordingFs(root)
    fs.note("begun 4")
    fs.note("saved 3")
    store = CheckpointStore(root, fs=fs, keep=2)
    assert store.newest()[0] == 3
    store.save(4, checkpoint_of(4))
    fs.note("saved 4")

    def check_store(state, directory):
        store = CheckpointStore(directory, fs=Quick())
        step, loaded = store.newest()
        assert max(of(state.notes, "saved")) <= step
        assert loaded.sections["model"]["w"].tolist() == [step] * 5

    num = explore(fs, check_store, tmp_path / "copy", known=2)
    record_property("crash states of checkpoints", num)
    assert num > 40


def test_crash_states_reveal_a_writer_that_does_not_sync(tmp_path):
    class Hasty(RecordingFs):
        def sync(self, fd):
            pass

        def sync_directory(self, path):
            pass

    root = tmp_path / "log"
    root.mkdir()
    fs = Hasty(root)
    write_log(root, fs.note, fs, count=3, segment_bytes=1 << 20, sync_every=1, drop_after=9)
    with pytest.raises(AssertionError):
        explore(fs, check, tmp_path / "copy")
    (tmp_path / "b").mkdir()
    fs = Hasty(tmp_path / "b")
    CheckpointStore(fs.root, fs=fs).save(2, checkpoint_of(2))
    fs.note("begun 2")
    fs.note("saved 2")
    with pytest.raises(Exception, match=r"is not|is no|assert"):
        explore(fs, check_store, tmp_path / "copy")


# Dead letters


def letter(i):
    return BadRow(i, "nan", f"row {i}", Origin({"file": "a.csv", "byte": i}, b"x" * (i % 7)))


def check_letters(state, directory):
    """Rewind to the last acknowledged length; the letters written by then are kept."""
    if not state.notes:
        return
    promised = json.loads(state.notes[-1])
    letters = DeadLetterFiles(directory, fs=Quick())
    letters.rewind(promised["length"])
    files = sorted(directory.iterdir())
    found = [json.loads(line) for file in files for line in file.read_bytes().splitlines()]
    assert [entry["message"] for entry in found] == [f"row {i}" for i in range(promised["count"])]
    letters.write("edges", [letter(promised["count"])])
    letters.close()


def write_letters(fs, polls, segment_bytes):
    letters, count = DeadLetterFiles(fs.root, fs=fs, segment_bytes=segment_bytes), 0
    for size in polls:
        letters.write("edges", [letter(i) for i in range(count, count + size)])
        letters.sync()
        count += size
        fs.note(json.dumps({"length": letters.length, "count": count}))
    return letters


def test_every_crash_state_of_dead_letters_has_the_acknowledged_ones(tmp_path):
    root = tmp_path / "letters"
    root.mkdir()
    fs = RecordingFs(root)
    write_letters(fs, [2, 1, 0, 3, 2], segment_bytes=500).close()
    assert explore(fs, check_letters, tmp_path / "copy") > 30


FIRST = {
    # faults required before such a point is reached
    "log.before_rewrite": "log.before_sync:2:eio,"
}
COUNTS = range(1, 9) if os.environ.get("TGFLOW_KILLS") else (1,)
"""Hit of the fault point at which it fires; a campaign tries all."""
KINDS = ("kill", "enospc", "eio", "raise")


@pytest.mark.parametrize("kind", cases(KINDS, ["kill"]))
@pytest.mark.parametrize("point", faults.DURABLE)
def test_fault_at_any_point_leaves_the_old_or_the_new_state(record_property, tmp_path, point, kind):
    record_property("faults", len(COUNTS))
    for count in COUNTS:
        spec = f"{FIRST.get(point, '')}{point}:{count}:{kind}"
        directory = tmp_path / str(count)
        directory.mkdir()
        [(code, again)] = results_of(run_apart(1, outcome_of, point, spec, directory))
        assert again == 0
        if count > 1:
            assert code in {0, 1, -signal.SIGKILL}
        elif kind == "kill":
            assert code == -signal.SIGKILL, "the point was never met"
        elif kind == "raise":
            assert code == 1, "the point was never met"
        else:
            assert code == 0


def test_environment_variables_cannot_inject_faults():
    room = Path(tgflow.__file__).parent
    rooms = (room, *(Path(module.__file__).parent for module in (models, streams)))
    text = "".join(path.read_text() for room in rooms for path in room.rglob("*.py"))
    assert "TGFLOW_FAULT" not in text
    killers = {
        path.name for room in rooms for path in room.rglob("*.py") if "SIGKILL" in path.read_text()
    }
    assert killers == {"supervise.py"}  # the supervisor ends its own children
