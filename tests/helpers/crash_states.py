"""Enumerates the directory states that a machine crash can leave.

A `RecordingFs` applies and records operations. `crash_states` then yields the possible states
after a power failure at any moment: of the unsynced names any prefix, and any without one of
them; of the unsynced data all, none, half, zeros, or the later half without the earlier.
The writer is correct if its reader finds the old or the new state in each of them.

    fs = RecordingFs(tmp_path / "original")
    writer = Writer(tmp_path / "original", fs=fs)
    writer.write(1)
    fs.note("written 1")  # acknowledged from here on
    for state in crash_states(fs):
        state.write_to(tmp_path / "copy")
        assert read(tmp_path / "copy") >= len(state.notes), state.describe()
"""

from __future__ import annotations

import os
import shutil
import traceback
from dataclasses import dataclass
from operator import attrgetter

import pyarrow as pa
import torch

from helpers import faults
from helpers.effort import IS_QUICK
from tgflow.checkpoint import Checkpoint, CheckpointDurabilityUnknown, CheckpointStore
from tgflow.checkpoint.durable.fs import RealFs
from tgflow.checkpoint.durable.log import DurableLog

Tree = dict[str, bytes | None]
"""Content by path relative to the root; None for a directory."""

DATA_MODES = {
    "kept": lambda tail: tail,
    "lost": lambda tail: b"",
    "half": lambda tail: tail[: len(tail) // 2],
    "zeroed": lambda tail: bytes(len(tail)),
    "holed": lambda tail: bytes(len(tail) // 2) + tail[len(tail) // 2 :],
}
"""Possible states of the unsynced data at a file's end."""


@dataclass(frozen=True, slots=True)
class CrashState:
    """A crash state; `notes` are those made before it."""

    tree: Tree
    notes: tuple[str, ...]
    operations: tuple[str, ...]
    data_mode: str
    names_kept: tuple[int, ...]

    def write_to(self, directory):
        """Replace the contents of `directory` by the crash state."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for name in sorted(self.tree):
            content = self.tree[name]
            if content is None:
                (directory / name).mkdir()
            else:
                (directory / name).write_bytes(content)

    def describe(self):
        """Return the operations that led here, for a failing test."""
        last = "\n  ".join(self.operations[-12:])
        return (
            f"after {len(self.operations)} operations, the last of them\n  {last}\n"
            f"unsynced data {self.data_mode}, unsynced names kept {self.names_kept}"
        )


class RecordingFs(RealFs):
    """A file system that records operations within `root`; what it holds now counts as synced.

    `fail` is called with each operation's text before it is done, and may raise `OSError`.
    """

    def __init__(self, root, fail=lambda _: None):
        self.root = root
        self.before = {
            self._name(path): path.read_bytes() if path.is_file() else None
            for path in root.rglob("*")
        }
        self.operations = []
        self._paths = {}
        self._fail = fail

    def note(self, text):
        """Record what the writer has acknowledged."""
        self.operations.append(("note", text))

    def create(self, path):
        self._record("create", path)
        fd = super().create(path)
        self._paths[fd] = self._name(path)
        return fd

    def append_to(self, path):
        self._record("open", path)
        fd = super().append_to(path)
        self._paths[fd] = self._name(path)
        return fd

    def write(self, fd, data):
        """Write in two steps, since a crash may happen in between."""
        half = memoryview(data).cast("B")[: len(data) // 2]
        for part in (half, memoryview(data).cast("B")[len(half) :]):
            self._record("write", self._paths[fd], bytes(part))
            super().write(fd, part)

    def sync(self, fd):
        self._record("sync", self._paths[fd])

    def close(self, fd):
        del self._paths[fd]
        super().close(fd)

    def truncate(self, path, size):
        self._record("truncate", path, size)
        os.truncate(path, size)

    def make_directory(self, path):
        self._record("mkdir", path)
        super().make_directory(path)

    def link(self, source, target):
        self._record("link", source, self._name(target))
        super().link(source, target)

    def rename(self, source, target):
        self._record("rename", source, self._name(target))
        super().rename(source, target)

    def unlink(self, path):
        self._record("unlink", path)
        super().unlink(path)

    def remove_directory(self, path):
        for entry in sorted(path.iterdir()):
            self.unlink(entry)
        self._record("unlink", path)
        path.rmdir()

    def sync_directory(self, path):
        self._record("sync_directory", path)

    def _name(self, path):
        return path.relative_to(self.root).as_posix()

    def _record(self, kind, path, *more):
        name = path if isinstance(path, str) else self._name(path)
        self._fail(f"{kind} {name}")
        self.operations.append((kind, name, *more))


@dataclass(slots=True, eq=False)
class _Inode:
    """A file, or a directory with its durable names."""

    data: bytes = b""
    synced: int = 0
    names: dict[str, _Inode] | None = None


_Change = list[tuple[_Inode, str, _Inode | None]]
"""Atomic change of one operation to directory entries: (directory, name, inode)."""


class _Disk:
    """The file system as programs see it, and its durable part."""

    def __init__(self, tree):
        self.root = _Inode(names={})
        self.pending = []
        self.seen = {".": self.root}
        """All paths, as programs see them."""
        for name in sorted(tree):
            content = tree[name]
            inode = _Inode(names={}) if content is None else _Inode(content, len(content))
            self._change((name, inode))
        self._sync_names(lambda change: True)

    def do(self, kind, name, *more):
        """Apply one recorded operation."""
        seen = self.seen
        match kind, more:
            case "create", _:
                self._change((name, _Inode()))
            case "mkdir", _:
                self._change((name, _Inode(names={})))
            case "open", _:
                assert name in seen
            case "write", (data,):
                seen[name].data += data
            case "sync", _:
                seen[name].synced = len(seen[name].data)
            case "truncate", (size,):
                seen[name].data = seen[name].data[:size]
                seen[name].synced = len(seen[name].data)
            case "link", (target,):
                self._change((target, seen[name]))
            case "unlink", _:
                self._change((name, None))
            case "rename", (target,):
                below = [path for path in seen if path.startswith(f"{name}/")]
                self._change((name, None), (target, seen[name]))
                for path in below:
                    seen[target + path[len(name) :]] = seen.pop(path)
            case "sync_directory", _:
                directory = seen[name]
                self._sync_names(lambda change: any(part[0] is directory for part in change))

    def _sync_names(self, is_synced):
        for change in filter(is_synced, self.pending):
            _apply(change, attrgetter("names"))
        self.pending = [change for change in self.pending if not is_synced(change)]

    def _change(self, *names):
        """Point names at other inodes, or remove them."""
        change = []
        for name, inode in names:
            parent, _, last = name.rpartition("/")
            change.append((self.seen[parent or "."], last, inode))
            if inode is None:
                del self.seen[name]
            else:
                self.seen[name] = inode
        self.pending.append(change)

    def after(self, kept, mode):
        """Return the state with some pending changes, and unsynced data by `mode`."""
        changed = {}

        def names_of(inode):
            return changed.setdefault(id(inode), dict(inode.names))

        for i in kept:
            _apply(self.pending[i], names_of)
        tree = {}

        def walk(directory, prefix):
            for name, inode in names_of(directory).items():
                if inode.names is None:
                    tail = DATA_MODES[mode](inode.data[inode.synced :])
                    tree[prefix + name] = inode.data[: inode.synced] + tail
                else:
                    tree[prefix + name] = None
                    walk(inode, f"{prefix}{name}/")

        walk(self.root, "")
        return tree


def _apply(change, names_of):
    for directory, name, inode in change:
        names = names_of(directory)
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def crash_states(fs):
    """Yield each distinct crash state of the operations of `fs`."""
    disk, notes, texts, seen = _Disk(fs.before), [], [], set()
    for kind, name, *more in [("note", None), *fs.operations]:
        if kind == "note":
            notes += [name] if name else []
        else:
            disk.do(kind, name, *more)
            shown = [x if not isinstance(x, bytes) else f"{len(x)} bytes" for x in more]
            texts.append(" ".join(map(str, (kind, name, *shown))))
        for mode in DATA_MODES:
            for kept in _subsets(len(disk.pending)):
                tree = disk.after(kept, mode)
                key = (tuple(sorted(tree.items())), tuple(notes))
                if key not in seen:
                    seen.add(key)
                    yield CrashState(tree, tuple(notes), tuple(texts), mode, kept)


def _subsets(count):
    """Return subsets of `count` changes that may be durable: a prefix, all but one, or only one."""
    everything = tuple(range(count))
    found = [everything[:stop] for stop in range(count + 1)]
    found += [tuple(i for i in everything if i != left) for left in everything]
    found += [(i,) for i in everything]
    return list(dict.fromkeys(found))


class Quick(RealFs):
    """Reads need nothing durable."""

    def sync(self, fd):
        pass

    def sync_directory(self, path):
        pass

    def truncate(self, path, size):
        os.truncate(path, size)


def of(notes, kind):
    """Return the numbers noted as `kind`, as in "synced 3"."""
    return [int(note.split()[1]) for note in notes if note.startswith(kind)]


def explore(fs, check, directory, known=0):
    """Check every state with more than `known` notes; return their number.

    A quick run checks every fourth.
    """
    count = 0
    for state in crash_states(fs):
        if len(state.notes) < known:
            continue
        count += 1
        if IS_QUICK and count % 4 != 1:
            continue
        state.write_to(directory)
        try:
            check(state, directory)
        except Exception as error:
            error.add_note(state.describe())
            raise
    return count


PIECE = 2


def checkpoint_of(step):
    """Return a checkpoint in which every second step seals a section."""
    events, pieces = torch.arange(step), step // PIECE
    return Checkpoint(
        {"model": {"w": torch.full((5,), float(step))}, "tail": {"t": events[pieces * PIECE :]}},
        {"step": step},
        {
            f"events-{i}": lambda i=i: {"t": events[i * PIECE : (i + 1) * PIECE].clone()}
            for i in range(pieces)
        },
    )


def check_is_whole(loaded, step):
    """Raise unless `loaded` is all that `checkpoint_of(step)` holds."""
    assert loaded.meta == {"step": step}
    assert loaded.sections["model"]["w"].tolist() == [step] * 5
    pieces = [loaded.sealed[f"events-{i}"]()["t"] for i in range(step // PIECE)]
    assert torch.cat([*pieces, loaded.sections["tail"]["t"]]).tolist() == list(range(step))


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
    store = retry(lambda: CheckpointStore(directory, keep=1))
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
    """Create, write with a fault, check, write without, check again; return both exit statuses."""
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
