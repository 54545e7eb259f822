"""Parts of a checkpoint, with save and load."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import nn

from tgflow.checkpoint.checkpoint import Checkpoint, Tensors, part_section
from tgflow.checkpoint.names import UntrustedCheckpoint
from tgflow.checkpoint.tensors import check_like
from tgflow.checkpoint.typed import read_as
from tgflow.ids import NodeIds
from tgflow.peers import PARTS
from tgflow.state import PartedState, StreamState


class Part(Protocol):
    """Component that is stored in checkpoints."""

    @property
    def name(self) -> str:
        """Its unique section name, or prefix of section names."""

    def save(self, writer: Checkpoint) -> None:
        """Save the current state; later changes do not alter the saved copy."""

    def load(self, reader: Checkpoint) -> None:
        """Restore the saved state; external files are truncated to it.

        Raises:
            KeyError: If a section is missing.
            ValueError: If the saved state is invalid, or of another kind.
        """


class Parameters:
    """Parameters and buffers of a module."""

    name = "model"

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def save(self, writer: Checkpoint) -> None:
        """Save copies."""
        writer.put(self.name, _copied(self._module.state_dict()))

    def load(self, reader: Checkpoint) -> None:
        """Load the parameters into the module; RuntimeError if it has other parameters."""
        self._module.load_state_dict(reader.get(self.name))


class Optimizer:
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
                    f"optimizer state {name!r} is a {type(x).__name__}; only tensors can be saved"
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
        settings = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": settings})


class Schedule:
    """Learning rate schedule, and the optimizer settings that it changes."""

    name = "lr_scheduler"
    _changed = ("lr", "initial_lr", "momentum", "betas")

    def __init__(self, scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
        self._scheduler = scheduler

    def save(self, writer: Checkpoint) -> None:
        """Save its state, which `check_schedule` has validated as JSON."""
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
                f"its lr_scheduler is not a {type(self._scheduler).__name__} of this optimizer: "
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


def check_schedule(scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
    """Raise ValueError unless the state of a schedule survives a JSON round trip."""
    state = scheduler.state_dict()
    try:
        survives = json.loads(json.dumps(state)) == state
    except (TypeError, ValueError):
        survives = False
    if not survives:
        raise ValueError(
            f"the state of {type(scheduler).__name__} cannot be saved as JSON, so that a run could "
            "not resume: use a schedule whose state has only numbers and lists, such as StepLR"
        )


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shape(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shape(each) for each in value]
    return "number" if isinstance(value, int | float) else type(value).__name__


class ModelState:
    """Stream state of a model; empty for a stateless model.

    Args:
        state: The state.
        by_part: Save node state by id partition, in sections `memory-p00` to `memory-p63`, so that
            several ranks can write it. Both forms can be loaded.
    """

    name = "state"
    parts_name = "memory"

    def __init__(self, state: StreamState | None, *, by_part: bool = False) -> None:
        self._state, self._by_part = state, by_part

    def save(self, writer: Checkpoint) -> None:
        """Save copies made by the state."""
        state = self._state
        if self._by_part and isinstance(state, PartedState):
            writer.note(self.parts_name, {"parts": PARTS})
            take = state.parted()
            for part in range(PARTS):
                writer.put_part(self.parts_name, part, functools.partial(take, part))
        elif state is not None:
            writer.put(self.name, state.state_dict())

    def load(self, reader: Checkpoint) -> None:
        """Load the saved state."""
        state = self._state
        if state is None:
            return
        if self.parts_name not in reader.meta:
            state.load_state_dict(reader.get(self.name))
        elif isinstance(state, PartedState):
            state.load_parted(lambda part: reader.get(part_section(self.parts_name, part)))
        else:
            raise ValueError("the checkpoint has a node memory, but the model has none")


class Ids:
    """Ids of a stream's nodes."""

    name = "ids"

    def __init__(self, ids: NodeIds, num: int | None = None) -> None:
        self._ids, self._num = ids, num

    def save(self, writer: Checkpoint) -> None:
        """Save copies."""
        writer.put(self.name, self._ids.state_dict(self._num))

    def load(self, reader: Checkpoint) -> None:
        """Replace the ids of the map with the saved ones."""
        try:
            self._ids.load_state_dict(reader.get(self.name))
        except ValueError as error:
            raise UntrustedCheckpoint(f"{self.name}: {error}") from None

    @classmethod
    def num_saved(cls, reader: Checkpoint) -> int | None:
        """Return the number of saved ids; None without ids, as by a trainer in Python."""
        try:
            state = reader.get(cls.name)
        except KeyError:
            return None
        return len(state["keys"]) if "keys" in state else max(len(state.get("offsets", ())) - 1, 0)


def put_pieces(
    writer: Checkpoint,
    name: str,
    size: int,
    stop: int,
    read: Callable[[int, int], Tensors],
    *,
    volatile: bool = False,
) -> None:
    """Save append-only entries `[0, stop)`: full chunks sealed, the rest in a section `name`.

    Args:
        writer: Target checkpoint.
        name: Section name of the rest; chunks append their size and number to it.
        size: Entries per chunk.
        stop: Number of entries.
        read: Returns the entries `[start, stop)` as views or copies.
        volatile: As `Checkpoint.put`.
    """
    sealed_stop = stop // size * size
    for start in range(0, sealed_stop, size):
        writer.put_sealed(
            f"{name}-{size}-{start // size:06d}",
            lambda start=start: read(start, start + size),  # type: ignore[misc]
            turn=start // size,
            volatile=volatile,
        )
    writer.put(name, read(sealed_stop, stop), volatile=volatile)


def pieces_of(reader: Checkpoint, name: str, size: int, stop: int) -> Iterator[Tensors]:
    """Yield the entries saved by `put_pieces` in order, one chunk in memory at a time."""
    for start in range(0, stop // size * size, size):
        yield reader.get(f"{name}-{size}-{start // size:06d}")
    yield reader.get(name)


def _copied(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
