"""Writes a log or checkpoints until it is killed or done, and reads what is left."""

import os
import traceback

import pyarrow as pa

from helpers import faults
from helpers.pieces import check_is_whole, checkpoint_of
from tgflow.checkpoint import CheckpointDurabilityUnknown, CheckpointStore
from tgflow.durable.log import DurableLog

TRIES = 3


class Notes:
    """Facts that outlive the process that notes them."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, kind, number):
        os.write(self.fd, f"{kind} {number}\n".encode())


def numbers(path, kind):
    lines = path.read_text().splitlines() if path.exists() else []
    return [int(line.split()[1]) for line in lines if line.startswith(kind)]


def frame(i):
    return pa.record_batch({"seq": pa.array(range(i * 5, i * 5 + 5))}), {"n": i}


def write_log(directory, notes):
    log = retry(lambda: DurableLog(directory, segment_bytes=1000, sync_ms=1e9), notes, -1)
    *_, at = [None, *(at for *_, at in log.read())]
    first = 0 if at is None else next(reversed([f["n"] for _, f, _ in log.read()])) + 1
    for i in range(first, first + 8):
        notes.add("begun", i)
        at = retry(lambda i=i: log.append(*frame(i)), notes, i)
        notes.add("appended", i)
        if i % 2:
            retry(log.sync, notes, i)
            notes.add("synced", i)
        if i == first + 6:
            notes.add("may_drop", i)
            retry(lambda at=at: log.drop_before(at), notes, i)
    log.close()


def check_log(directory, notes, promised):
    with DurableLog(directory) as log:
        found = [(rows, footer["n"]) for rows, footer, _ in log.read()]
    seen = [n for _, n in found]
    assert all(rows.equals(frame(n)[0]) for rows, n in found)
    assert seen == list(range(seen[0], seen[0] + len(seen))), seen
    assert seen[0] <= max(numbers(notes, "may_drop"), default=0)
    assert max(numbers(notes, promised), default=2) <= seen[-1], seen
    assert seen[-1] <= max(numbers(notes, "begun"), default=2), seen
    assert directory.joinpath("0000000000.log").exists() or len(numbers(notes, "may_drop"))


def make_log(directory):
    """Leave a log of three frames that ends in half a frame."""
    with DurableLog(directory) as log:
        for i in range(3):
            log.append(*frame(i))
    with (directory / "0000000000.log").open("ab") as file:
        file.write(b"half a frame")


def write_checkpoints(directory, notes):
    store = retry(lambda: CheckpointStore(directory, keep=1, keep_every=3), notes, -1)
    newest, _ = retry(store.newest, notes, -1)
    for step in range(newest + 1, newest + 6):
        notes.add("begun", step)
        try:
            retry(lambda step=step: store.save(step, checkpoint_of(step)), notes, step)
        except CheckpointDurabilityUnknown:
            notes.add("unknown", step)
        notes.add("saved", step)


def check_checkpoints(directory, notes, _promised):
    store = CheckpointStore(directory)
    step, loaded = store.newest()
    assert all("000000000004 was set aside" in problem for problem in store.problems)
    assert max(numbers(notes, "saved"), default=3) <= step
    assert step <= max(numbers(notes, "begun"), default=3)
    check_is_whole(loaded, step)
    names = os.listdir(directory)
    assert not [name for name in names if name.startswith(".tmp-")], names
    assert len(names) <= 5, names


def make_checkpoints(directory):
    """Leave two checkpoints and a third one that is damaged."""
    store = CheckpointStore(directory)
    for step in (2, 3, 4):
        path = store.save(step, checkpoint_of(step))
    (path / "model.safetensors").write_bytes(b"damaged")


def retry(act, notes, number):
    """Do it again after an error, as one does when there is room again."""
    for left in reversed(range(TRIES)):
        try:
            return act()
        except CheckpointDurabilityUnknown:
            raise
        except OSError as error:
            notes.add(f"error-{error.errno}", number)
            if not left:
                raise
    raise AssertionError


MAKE = {"log": make_log, "checkpoint": make_checkpoints}
WRITE = {"log": write_log, "checkpoint": write_checkpoints}
CHECK = {"log": check_log, "checkpoint": check_checkpoints}


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
    """Make, write with a fault, check, write on without, check again; in a process of its own.

    Returns:
        How each of the two forks that wrote has ended.
    """
    what = point.split(".")[0]
    target, notes = directory / what, directory / "notes"
    MAKE[what](target)
    # a killed process leaves to the system what it wrote; an error may take what was not synced
    promised = (
        "appended" if {"kill"} == {each.split(":")[2] for each in spec.split(",")} else "synced"
    )

    def write():
        faults.arm(spec)
        WRITE[what](target, Notes(notes))

    code = forked(write)
    CHECK[what](target, notes, promised)
    again = forked(lambda: WRITE[what](target, Notes(notes)))
    CHECK[what](target, notes, promised)
    return code, again
