"""Writers of a log and checkpoints that note acknowledgments, and checks of crash states."""

import os
import traceback

import pyarrow as pa

from helpers import faults
from helpers.crash_states import Quick, of
from helpers.pieces import check_is_whole, checkpoint_of
from tgflow.checkpoint import CheckpointDurabilityUnknown, CheckpointStore
from tgflow.checkpoint.durable.fs import RealFs
from tgflow.checkpoint.durable.log import DurableLog

TRIES = 3


def frame(i):
    return pa.record_batch({"seq": pa.array(range(i * 5, i * 5 + 5 + i % 2))}), {"n": i}


def retry(act):
    """Retry after an error, as when space is available again."""
    for left in reversed(range(TRIES)):
        try:
            return act()
        except CheckpointDurabilityUnknown:
            raise
        except OSError:
            if not left:
                raise
    raise AssertionError


def write_log(directory, note, fs=None, *, count=8, segment_bytes=1000, sync_every=2, drop_after=6):
    """Append frames, with occasional syncs and drops."""
    fs = fs or RealFs()
    log = retry(lambda: DurableLog(directory, fs=fs, segment_bytes=segment_bytes, sync_ms=1e9))
    first = max([footer["n"] for _, footer, _ in log.read()], default=-1) + 1
    for i in range(first, first + count):
        note(f"begun {i}")
        place = retry(lambda i=i: log.append(*frame(i)))
        note(f"appended {i}")
        if i % sync_every == sync_every - 1:
            retry(log.sync)
            note(f"synced {i}")
        if i == first + drop_after:
            note(f"may_drop {i}")
            retry(lambda place=place: log.drop_before(place))
    return log


def check_log(notes, directory, promised="synced"):
    """Raise unless the log is readable and has exactly the acknowledged frames."""
    with DurableLog(directory, fs=Quick()) as log:
        found = [(rows, footer["n"]) for rows, footer, _ in log.read()]
    numbers = [n for _, n in found]
    assert all(rows.equals(frame(n)[0]) for rows, n in found)
    first = numbers[0] if numbers else 0
    last = numbers[-1] if numbers else -1
    assert numbers == list(range(first, last + 1))
    assert first <= max(of(notes, "may_drop"), default=0)
    assert max(of(notes, promised), default=-1) <= last <= max(of(notes, "begun"), default=2)


def write_checkpoints(directory, note):
    store = retry(lambda: CheckpointStore(directory, keep=1, keep_every=3))
    newest, _ = retry(store.newest)
    for step in range(newest + 1, newest + 6):
        note(f"begun {step}")
        try:
            retry(lambda step=step: store.save(step, checkpoint_of(step)))
        except CheckpointDurabilityUnknown:
            note(f"unknown {step}")
        note(f"saved {step}")


def check_checkpoints(notes, directory, _promised):
    store = CheckpointStore(directory)
    step, loaded = store.newest()
    assert all("000000000004 was set aside" in problem for problem in store.problems)
    assert max(of(notes, "saved"), default=3) <= step <= max(of(notes, "begun"), default=3)
    check_is_whole(loaded, step)
    names = os.listdir(directory)
    assert not [name for name in names if name.startswith(".tmp-")], names
    assert len(names) <= 5, names


def make_log(directory):
    """Leave a log of three frames that ends in half a frame."""
    write_log(directory, lambda _: None, count=3).close()
    with (directory / "0000000000.log").open("ab") as file:
        file.write(b"half a frame")


def make_checkpoints(directory):
    """Leave two checkpoints and a third one that is damaged."""
    store = CheckpointStore(directory)
    for step in (2, 3, 4):
        path = store.save(step, checkpoint_of(step))
    (path / "model.safetensors").write_bytes(b"damaged")


CASES = {
    "log": (make_log, lambda *args: write_log(*args).close(), check_log),
    "checkpoint": (make_checkpoints, write_checkpoints, check_checkpoints),
}


def forked(act):
    """Run `act` in a fork; returns the signal that ended it, or its exit code."""
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def outcome_of(_, point, spec, directory):
    """In a separate process: create, write with a fault, check, write without, check again.

    Returns:
        Exit status of each of the two writing forks.
    """
    what = point.split(".")[0]
    make, write, check = CASES[what]
    target, path = directory / what, directory / "notes"
    make(target)
    # writes survive a killed process; an error may lose unsynced data
    is_killed = {"kill"} == {each.split(":")[2] for each in spec.split(",")}

    def write_noting(spec):
        faults.arm(spec)
        with path.open("a", buffering=1) as notes:  # they outlive the process
            write(target, lambda text: notes.write(f"{text}\n"))

    codes = []
    for armed in (spec, ""):
        codes.append(forked(lambda armed=armed: write_noting(armed)))
        check(path.read_text().splitlines(), target, "appended" if is_killed else "synced")
    return tuple(codes)
