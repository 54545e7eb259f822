"""Components of a trainer's state, and entries saved in chunks."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tgflow.base.peers import PARTS
from tgflow.checkpoint.checkpoint import Checkpoint, Component, Tensors, part_section
from tgflow.checkpoint.directory import SUFFIX, opened_section
from tgflow.checkpoint.names import CheckpointError, UntrustedCheckpoint
from tgflow.checkpoint.tensors import check_finite, check_like
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.graph.ids import NodeIds
from tgflow.graph.stream_state import PartedState, StreamState

ID_PIECE, ID_BYTES_PIECE = 1 << 20, 8 << 20
"""Ids of a sealed section, and bytes of ids that are strings."""
_logger = logging.getLogger(__name__)


class Parameters(Component):
    """Parameters and buffers of a module."""

    name = "model"

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def save(self, writer: Checkpoint) -> None:
        """Save copies."""
        writer.put(self.name, _copied(self._module.state_dict()))

    def load(self, reader: Checkpoint) -> None:
        """Load the parameters into the module; RuntimeError if it has other parameters."""
        found = reader.get(self.name)
        buffers = {name for name, _ in self._module.named_buffers()}  # masks may have infinities
        check_finite(self.name, found, limits=buffers)
        self._module.load_state_dict(found)


class Optimizer(Component):
    """An optimizer's state; its settings are in the trainer's configuration."""

    name = "optimizer"

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def save(self, writer: Checkpoint) -> None:
        """Save copies, named "{parameter index}.{name}"."""
        state = self._optimizer.state_dict()["state"]
        named = {
            f"{i}.{name}": x
            for i, entry in state.items()
            for name, x in entry.items()
            if x is not None  # SGD without momentum
        }
        for name, x in named.items():
            if not isinstance(x, torch.Tensor):
                raise ValueError(
                    f"optimizer state {name!r} is {type(x).__name__}; only tensors can be saved"
                )
        writer.put(self.name, _copied(named))

    def load(self, reader: Checkpoint) -> None:
        """Load the state into the optimizer, which keeps its own settings."""
        found = reader.get(self.name)
        state: dict[int, Tensors] = {}
        for name, tensor in found.items():
            index, _, key = name.partition(".")
            state.setdefault(int(index) if index.isdecimal() else -1, {})[key] = tensor
        is_adam, expected = isinstance(self._optimizer, torch.optim.Adam), {}
        groups = self._optimizer.param_groups
        owned = [(each, group) for group in groups for each in group["params"]]
        for i, (parameter, group) in enumerate(owned):
            keys = {*state.get(i, {})}
            if keys and is_adam:
                maximum = {"max_exp_avg_sq"} if group["amsgrad"] else set()
                keys = {"step", "exp_avg", "exp_avg_sq"} | maximum
            for key in keys:
                step = torch.empty((), dtype=torch.float32)
                expected[f"{i}.{key}"] = step if key == "step" else parameter
        check_like(self.name, found, expected)
        check_finite(self.name, found)
        settings = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": settings})


class Schedule(Component):
    """Learning rate schedule, and the optimizer settings that it changes."""

    name = "lr_scheduler"
    _changed = ("lr", "initial_lr", "momentum", "betas")

    def __init__(self, scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
        self._scheduler = scheduler

    def save(self, writer: Checkpoint) -> None:
        """Save its state, validated as JSON before."""
        note = {"state": self._scheduler.state_dict(), "groups": self._groups()}
        writer.note(self.name, json.loads(json.dumps(note)))

    def load(self, reader: Checkpoint) -> None:
        """Restore the schedule."""
        if self.name not in reader.meta:
            raise ValueError("it lacks an lr_scheduler: build the trainer without one")
        saved = read_as(dict[str, Any], reader.meta[self.name], self.name)
        state = read_as(dict[str, Any], saved.get("state"), f"{self.name}.state")
        groups = read_as(list[dict[str, Any]], saved.get("groups"), f"{self.name}.groups")
        own = {"state": self._scheduler.state_dict(), "groups": self._groups()}
        if _shape(own) != _shape({"state": state, "groups": groups}):
            raise ValueError(
                f"its lr_scheduler is no {type(self._scheduler).__name__} of this optimizer: "
                "give the lr_scheduler that the checkpoint was made with"
            )
        self._scheduler.load_state_dict(state)
        for group, found in zip(self._scheduler.optimizer.param_groups, groups, strict=True):
            group.update(found)

    def _groups(self) -> list[dict[str, Any]]:
        return [
            {key: group[key] for key in self._changed if key in group}
            for group in self._scheduler.optimizer.param_groups
        ]


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shape(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shape(each) for each in value]
    return "number" if isinstance(value, int | float) else type(value).__name__


class ModelState(Component):
    """Stream state of a model; empty for a stateless model.

    `by_part` saves node state by id partition, in sections `memory-p00` to `memory-p63`, so that
    several ranks can write it. Both forms can be loaded.
    """

    name = "state"
    parts_name = "memory"

    def __init__(self, state: StreamState | None, *, by_part: bool = False) -> None:
        self._state, self._by_part = state, by_part

    def save(self, writer: Checkpoint) -> None:
        """Save copies made by the state, of a `PartedState` when they are written."""
        state = self._state
        if self._by_part and isinstance(state, PartedState):
            writer.note(self.parts_name, {"parts": PARTS})
            take = state.parted()
            for part in range(PARTS):
                writer.put_part(self.parts_name, part, functools.partial(take, part))
        elif state is not None:
            writer.put(
                self.name, state.frozen() if isinstance(state, PartedState) else state.state_dict()
            )

    def load(self, reader: Checkpoint) -> None:
        """Load the saved state."""
        state = self._state
        if state is None:
            return
        if self.parts_name not in reader.meta:
            found = reader.get(self.name)
            check_finite(self.name, found, limits=() if isinstance(state, PartedState) else found)
            state.load_state_dict(found)
        elif isinstance(state, PartedState):

            def read(part: int) -> Tensors:
                section = part_section(self.parts_name, part)
                found = reader.get(section)
                check_finite(section, found)
                return found

            state.load_parted(read)
        else:
            raise ValueError("the checkpoint has a node memory, but the model has none")


class Ids(Component):
    """Ids of a stream's nodes."""

    name = "ids"

    def __init__(self, ids: NodeIds, num: int | None = None) -> None:
        self._ids, self._num = ids, num

    def save(self, writer: Checkpoint) -> None:
        """Save full chunks of each column sealed, and copies of the rest."""
        ids = self._ids
        num = len(ids) if self._num is None else self._num
        columns = ids.columns(num)
        writer.note(self.name, {"num": num, "bipartite": ids.bipartite, "columns": columns})
        for name, stop in columns.items():

            def read(start: int, stop: int, name: str = name) -> Tensors:
                return {name: ids.items(name, start, stop)}

            put_pieces(writer, f"{self.name}_{name}", self._size(name), stop, read)
        writer.committed.append(lambda path: self._map(ids, columns, path))

    def load(self, reader: Checkpoint) -> None:
        """Replace the ids of the map with the saved ones."""
        noted = read_as(dict[str, Any], reader.meta.get(self.name), self.name)
        stops = read_as(dict[str, int], noted.get("columns"), "ids.columns")
        ids = NodeIds(read_as(bool, noted.get("bipartite"), "ids.bipartite"))
        try:
            columns = {name: self._items(reader, name, stop) for name, stop in stops.items()}
            read = 0  # bytes of strings
            while len(ids) < read_natural(noted, "num"):
                size, start = self._size("keys"), len(ids)
                state = {
                    name: items.take(size) for name, items in columns.items() if name != "bytes"
                }
                if "ends" in state:
                    first = torch.tensor([read])
                    state["offsets"] = torch.cat([first, state.pop("ends")]) - read
                    read += (length := int(state["offsets"][-1]))
                    state["bytes"] = columns["bytes"].take(length)
                ids.extend(state)
                if len(ids) == start:
                    raise ValueError(f"there are {start} ids, not {noted['num']}")
                if reader.path is not None:
                    self._map(ids, ids.columns(), reader.path)
        except (KeyError, ValueError) as error:
            raise UntrustedCheckpoint(f"{self.name}: {error}") from None
        self._ids.replace(ids)

    @classmethod
    def num_saved(cls, reader: Checkpoint) -> int | None:
        """Return the number of saved ids; None without ids, as by a trainer in Python."""
        noted = read_as(dict[str, Any] | None, reader.meta.get(cls.name), cls.name)
        return None if noted is None else read_natural(noted, "num")

    @staticmethod
    def _size(column: str) -> int:
        return ID_BYTES_PIECE if column == "bytes" else ID_PIECE

    @classmethod
    def _map(cls, ids: NodeIds, columns: dict[str, int], path: Path) -> None:
        for name, stop in columns.items():
            map_pieces(
                path,
                f"{cls.name}_{name}",
                cls._size(name),
                stop,
                ids.files.setdefault(name, {}),
                functools.partial(ids.map_file, name),
            )

    @classmethod
    def _items(cls, reader: Checkpoint, name: str, stop: int) -> _Items:
        section = f"{cls.name}_{name}"
        return _Items(piece[name] for piece in pieces_of(reader, section, cls._size(name), stop))


class _Items:
    """A column in chunks, read in parts."""

    def __init__(self, chunks: Iterator[Tensor]) -> None:
        self._chunks, self._rest = chunks, next(chunks)

    def take(self, num: int) -> Tensor:
        """Return the next `num` items, fewer at the end."""
        parts = [self._rest[:num]]
        self._rest = self._rest[num:]
        while (num := num - len(parts[-1])) > 0 and (chunk := next(self._chunks, None)) is not None:
            parts.append(chunk[:num])
            self._rest = chunk[num:]
        return torch.cat(parts)


def piece_section(name: str, size: int, start: int) -> str:
    """Return the section of the chunk of `size` entries that begins at entry `start`."""
    return f"{name}-{size}-{start // size:06d}"


def put_pieces(
    writer: Checkpoint,
    name: str,
    size: int,
    stop: int,
    read: Callable[[int, int], Tensors],
    *,
    first: int = 0,
    volatile: bool = False,
) -> None:
    """Save append-only entries `[first, stop)`: full chunks sealed, the rest in section `name`.

    `read` returns entries `[start, stop)` as views or copies, on any thread. Entries before the
    chunk of `first` are no longer kept; their files go with the last checkpoint that has them.
    """
    sealed_stop = stop // size * size
    for start in range(first // size * size, sealed_stop, size):
        writer.put_sealed(
            piece_section(name, size, start),
            lambda start=start: read(start, start + size),  # type: ignore[misc]
            turn=start // size,
            volatile=volatile,
        )
    writer.put(name, lambda: read(sealed_stop, stop), volatile=volatile)


def pieces_of(
    reader: Checkpoint, name: str, size: int, stop: int, *, first: int = 0
) -> Iterator[Tensors]:
    """Yield the entries saved by `put_pieces` in order, one chunk in memory at a time."""
    for start in range(first // size * size, stop // size * size, size):
        yield reader.get(piece_section(name, size, start))
    yield reader.get(name)


def map_pieces(
    path: Path,
    name: str,
    size: int,
    stop: int,
    files: dict[int, tuple[int, int]],
    map_file: Callable[[int, int, int, Mapping[str, int]], bool],
    *,
    since: int = 0,
) -> None:
    """Hold the entries that the checkpoint `path` has in full chunks in its files, not in memory.

    The chunks are those of `put_pieces`, of `size` entries, from `since`, a multiple of it, to
    `stop`. `files` has device and inode of the file of each chunk that is mapped, by its first
    entry. `map_file` maps entries `[start, stop)` from an open file with tensors at these bytes,
    and returns whether it did. One thread at a time. The files may be deleted afterwards.
    """
    for start in range(since, stop - size + 1, size):
        section = piece_section(name, size, start)
        try:
            file = (path / (section + SUFFIX)).stat()
            place = file.st_dev, file.st_ino
            if files.get(start) == place:
                continue
            with opened_section(path, section) as (descriptor, offsets):
                is_mapped = map_file(start, start + size, descriptor, offsets)
        except (CheckpointError, OSError):  # the next checkpoint has it
            return
        if not is_mapped:
            if not files:
                _logger.warning("%s stay in memory: the files of %s cannot be mapped", name, path)
            return
        files[start] = place


def _copied(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
