"""All that a crash of the machine may leave of a directory: for tests of whoever writes files.

A `RecordingFs` does what it is asked, and notes it. `crash_states` then yields what may be found
after a power failure at any moment: of the names not yet synced any beginning, and any without one
of them; of the data not yet synced all, none, half, zeros, or the later half without the earlier.
The writer is right if its reader finds the old or the new state in each of them.

    fs = RecordingFs(tmp_path / "original")
    writer = Writer(tmp_path / "original", fs=fs)
    writer.write(1)
    fs.note("written 1")  # promised from here on
    for state in crash_states(fs):
        state.write_to(tmp_path / "copy")
        assert read(tmp_path / "copy") >= len(state.notes), state.describe()
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tgflow.durable.fs import RealFs

Tree = dict[str, bytes | None]
"""Content by path relative to the root; None for a directory."""

DATA_MODES: dict[str, Callable[[bytes], bytes]] = {
    "kept": lambda tail: tail,
    "lost": lambda tail: b"",
    "half": lambda tail: tail[: len(tail) // 2],
    "zeroed": lambda tail: bytes(len(tail)),
    "holed": lambda tail: bytes(len(tail) // 2) + tail[len(tail) // 2 :],
}
"""What may become of the data at a file's end that was written but not synced."""


@dataclass(slots=True)
class _Inode:
    """A file, or a directory with its names as they are on the disk."""

    data: bytes = b""
    synced: int = 0
    names: dict[str, _Inode] | None = None


@dataclass(slots=True)
class _Change:
    """What one operation does to names, on the disk all at once: (directory, name, inode)."""

    parts: list[tuple[_Inode, str, _Inode | None]]


@dataclass(frozen=True, slots=True)
class CrashState:
    """What a crash left."""

    tree: Tree
    notes: tuple[str, ...]
    """What was noted before the crash."""
    operations: tuple[str, ...]
    data_mode: str
    names_kept: tuple[int, ...]

    def write_to(self, directory: Path) -> None:
        """Make `directory` what the crash left; what was there before is removed."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for name in sorted(self.tree):
            content = self.tree[name]
            if content is None:
                (directory / name).mkdir()
            else:
                (directory / name).write_bytes(content)

    def describe(self) -> str:
        """Return how it came to this, for a failing test."""
        last = "\n  ".join(self.operations[-12:])
        return (
            f"after {len(self.operations)} operations, the last of them\n  {last}\n"
            f"unsynced data {self.data_mode}, unsynced names kept {self.names_kept}"
        )


class RecordingFs(RealFs):
    """Does what it is asked within `root`, and notes it.

    Args:
        root: A directory; what it holds now counts as synced.
        fail: Called with each operation's text before it is done; may raise `OSError`.
    """

    def __init__(self, root: Path, fail: Callable[[str], None] = lambda _: None) -> None:
        self.root = root
        self.before = _tree_of(root)
        self.operations: list[tuple[Any, ...]] = []
        self._paths: dict[int, str] = {}
        self._fail = fail

    def note(self, text: str) -> None:
        """Note what the writer has promised by now."""
        self.operations.append(("note", text))

    def create(self, path: Path) -> int:
        """Make a file."""
        self._record("create", path)
        fd = super().create(path)
        self._paths[fd] = self._name(path)
        return fd

    def append_to(self, path: Path) -> int:
        """Open a file."""
        self._record("open", path)
        fd = super().append_to(path)
        self._paths[fd] = self._name(path)
        return fd

    def write(self, fd: int, data: bytes | memoryview) -> None:
        """Write in two steps, since a crash may come in between."""
        half = memoryview(data).cast("B")[: len(data) // 2]
        for part in (half, memoryview(data).cast("B")[len(half) :]):
            self._record("write", self._paths[fd], bytes(part))
            super().write(fd, part)

    def sync(self, fd: int) -> None:
        """Sync a file."""
        self._record("sync", self._paths[fd])

    def close(self, fd: int) -> None:
        """Close a file."""
        del self._paths[fd]
        super().close(fd)

    def truncate(self, path: Path, size: int) -> None:
        """Cut a file."""
        self._record("truncate", path, size)
        os.truncate(path, size)

    def make_directory(self, path: Path) -> None:
        """Make a directory."""
        self._record("mkdir", path)
        super().make_directory(path)

    def link(self, source: Path, target: Path) -> None:
        """Link a file."""
        self._record("link", source, self._name(target))
        super().link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or directory."""
        self._record("rename", source, self._name(target))
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        self._record("unlink", path)
        super().unlink(path)

    def remove_directory(self, path: Path) -> None:
        """Remove a directory file by file."""
        for entry in sorted(path.iterdir()):
            self.unlink(entry)
        self._record("unlink", path)
        path.rmdir()

    def sync_directory(self, path: Path) -> None:
        """Sync a directory's names."""
        self._record("sync_directory", path)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _record(self, kind: str, path: Path | str, *more: Any) -> None:
        name = path if isinstance(path, str) else self._name(path)
        self._fail(f"{kind} {name}")
        self.operations.append((kind, name, *more))


@dataclass(slots=True)
class _Disk:
    """The file system as programs see it, and what of it is on the disk."""

    root: _Inode = field(default_factory=lambda: _Inode(names={}))
    pending: list[_Change] = field(default_factory=list)
    seen: dict[str, _Inode] = field(default_factory=dict)
    """As programs see it: every path."""

    @classmethod
    def of(cls, tree: Tree) -> _Disk:
        """Return one on which all of `tree` is synced."""
        disk = cls()
        disk.seen["."] = disk.root
        for name in sorted(tree):
            content = tree[name]
            inode = _Inode(names={}) if content is None else _Inode(content, len(content))
            disk._enter(name, inode)
        disk._sync(disk.pending)
        return disk

    def do(self, kind: str, name: str, *more: Any) -> None:
        """Do one recorded operation."""
        getattr(self, f"_{kind}")(name, *more)

    def _create(self, name: str) -> None:
        self._enter(name, _Inode())

    def _mkdir(self, name: str) -> None:
        self._enter(name, _Inode(names={}))

    def _open(self, name: str) -> None:
        assert name in self.seen

    def _write(self, name: str, data: bytes) -> None:
        self.seen[name].data += data

    def _sync_file(self, name: str) -> None:
        self.seen[name].synced = len(self.seen[name].data)

    def _truncate(self, name: str, size: int) -> None:
        inode = self.seen[name]
        inode.data = inode.data[:size]
        inode.synced = len(inode.data)

    def _link(self, source: str, target: str) -> None:
        self._enter(target, self.seen[source])

    def _unlink(self, name: str) -> None:
        self.pending.append(_Change([(*self._place(name), None)]))
        del self.seen[name]

    def _rename(self, source: str, target: str) -> None:
        inode = self.seen[source]
        self.pending.append(_Change([(*self._place(source), None), (*self._place(target), inode)]))
        moved = [name for name in self.seen if name == source or name.startswith(f"{source}/")]
        for name in moved:
            self.seen[target + name[len(source) :]] = self.seen.pop(name)

    def _sync_directory(self, name: str) -> None:
        directory = self.seen[name]
        touched = [c for c in self.pending if any(part[0] is directory for part in c.parts)]
        self._sync(touched)

    def _sync(self, changes: Sequence[_Change]) -> None:
        """Put name changes on the disk."""
        chosen = [c for c in self.pending if any(c is change for change in changes)]
        for change in chosen:
            _apply(change, _on_disk)
        self.pending = [c for c in self.pending if not any(c is change for change in chosen)]

    def _enter(self, name: str, inode: _Inode) -> None:
        self.pending.append(_Change([(*self._place(name), inode)]))
        self.seen[name] = inode

    def _place(self, name: str) -> tuple[_Inode, str]:
        parent, _, last = name.rpartition("/")
        return self.seen[parent or "."], last


def crash_states(fs: RecordingFs) -> Iterator[CrashState]:
    """Yield each different state that a crash may leave of what `fs` has done."""
    disk, notes, texts, seen = _Disk.of(fs.before), [], [], set()
    for operation in [("note", None), *fs.operations]:
        kind, name, *more = operation
        if kind == "note":
            notes += [name] if name else []
        else:
            disk.do("sync_file" if kind == "sync" else kind, name, *more)
            shown = [x if not isinstance(x, bytes) else f"{len(x)} bytes" for x in more]
            texts.append(" ".join(map(str, (kind, name, *shown))))
        for mode in DATA_MODES:
            for kept in _subsets(len(disk.pending)):
                tree = _tree_after(disk, [disk.pending[i] for i in kept], mode)
                key = (tuple(sorted(tree.items(), key=lambda item: item[0])), tuple(notes))
                if key not in seen:
                    seen.add(key)
                    yield CrashState(tree, tuple(notes), tuple(texts), mode, kept)


def _subsets(count: int) -> list[tuple[int, ...]]:
    """Return which of `count` changes may be on the disk: a beginning, all but one, or only one."""
    everything = tuple(range(count))
    found = [everything[:stop] for stop in range(count + 1)]
    found += [tuple(i for i in everything if i != left) for left in everything]
    found += [(i,) for i in everything]
    return list(dict.fromkeys(found))


def _apply(change: _Change, names_of: Callable[[_Inode], dict[str, _Inode]]) -> None:
    for directory, name, inode in change.parts:
        names = names_of(directory)
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def _on_disk(inode: _Inode) -> dict[str, _Inode]:
    assert inode.names is not None
    return inode.names


def _tree_after(disk: _Disk, kept: Sequence[_Change], mode: str) -> Tree:
    """Return what is on the disk with some pending changes, and unsynced data as `mode` says."""
    changed: dict[int, dict[str, _Inode]] = {}

    def names_of(inode: _Inode) -> dict[str, _Inode]:
        return changed.setdefault(id(inode), dict(_on_disk(inode)))

    for change in kept:
        _apply(change, names_of)
    tree: Tree = {}

    def walk(directory: _Inode, prefix: str) -> None:
        for name, inode in names_of(directory).items():
            if inode.names is None:
                tail = DATA_MODES[mode](inode.data[inode.synced :])
                tree[prefix + name] = inode.data[: inode.synced] + tail
            else:
                tree[prefix + name] = None
                walk(inode, f"{prefix}{name}/")

    walk(disk.root, "")
    return tree


def _tree_of(root: Path) -> Tree:
    return {
        path.relative_to(root).as_posix(): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }
