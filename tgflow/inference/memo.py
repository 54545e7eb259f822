"""Rows of layers that were computed before (TGOpt, arXiv:2302.11105, section 4), exactly.

Of a model without state a layer's row of (node, time) is made of the events before that time alone.
Once the log has reached the time, no later event changes it: the row is the same for good, unless
parameters or the past are changed. A row of a time that the log has not reached yet is the same as
long as it is asked for as of the same log position.
"""

from __future__ import annotations

import threading
from functools import cache
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from tgflow.graph import TemporalGraph
from tgflow.graph.mutations import Mutation
from tgflow.inference._native import RowMemo
from tgflow.model import TemporalModel, device_of_model
from tgflow.sampling.expand import Frontier
from tgflow.sampling.settled import find_settled

_SETTLED = -1


class MemoUse(NamedTuple):
    """What a memo was good for so far."""

    num_asked: int
    """Rows that were asked for."""
    num_found: int
    """Of these, rows that were there."""
    num_rows: int
    """Rows that are there now."""
    nbytes: int
    """Bytes that it takes: its budget or a little less, once the first row is there."""


class Stamps:
    """Numbers the states of a model and of a graph's past: rows of one state are good for no other.

    Args:
        model: Whose parameters and buffers are watched: by the versions that torch gives tensors,
            and for steps of optimizers, of which fused ones leave the version as it is. What is
            changed behind its back (`x.data`, a CUDA graph) is not noticed: call `renew`.
        graph: Whose past is watched.
    """

    def __init__(self, model: TemporalModel, graph: TemporalGraph) -> None:
        self._model, self._graph = model, graph
        self._lock = threading.Lock()
        self._number = 0
        self._tensors: list[Tensor] = []
        self._versions: list[int] = []
        self._change: Mutation | None = None
        _watch(self)

    def now(self) -> int:
        """Return the number of the state; a later state has a larger one."""
        tensors = list(chain(self._model.parameters(), self._model.buffers()))
        versions, change = [x._version for x in tensors], self._graph.last_change
        with self._lock:
            same = len(tensors) == len(self._tensors) and versions == self._versions
            same = same and all(x is y for x, y in zip(tensors, self._tensors, strict=True))
            if not (same and change is self._change):
                self._number += 1
                self._tensors, self._versions, self._change = tensors, versions, change
            return self._number

    def renew(self) -> None:
        """Let the state be another one from now on."""
        with self._lock:
            self._number += 1

    def stepped(self, optimizer: Optimizer) -> None:
        """Renew if an optimizer has changed parameters of the model."""
        changed = {id(x) for group in optimizer.param_groups for x in group["params"]}
        if any(id(x) in changed for x in self._model.parameters()):
            self.renew()


_WATCHING: WeakSet[Stamps] = WeakSet()


def _watch(stamps: Stamps) -> None:
    _hook()
    _WATCHING.add(stamps)


@cache
def _hook() -> None:
    """Hear of each optimizer's steps, from the first memo on."""
    register_optimizer_step_post_hook(_note_step)


def _note_step(optimizer: Optimizer, *_: Any) -> None:
    for stamps in list(_WATCHING):
        stamps.stepped(optimizer)


class Memo:
    """Rows of layers by (layer, node, time), as of a log position where they depend on it.

    Args:
        graph: Whose log says which times are settled.
        budget: Bytes that it may take.
    """

    def __init__(self, graph: TemporalGraph, budget: int) -> None:
        self._graph, self._budget = graph, budget
        self._lock = threading.Lock()
        self._rows: RowMemo | None = None
        self._num_asked = self._num_found = 0
        RowMemo(1, budget)  # raises if there is no room at all

    def find(self, stamp: int, layer: int, keys: Frontier) -> tuple[Tensor | None, Tensor]:
        """Return the rows of keys and which of them are missing, int64 `[M]`.

        The rows are None if there are none of any width yet.
        """
        size, rows = len(keys), self._rows
        if rows is None:
            found, missing = None, torch.arange(size)
        else:
            assert keys.position is not None
            found, missing = rows.find(stamp, layer, keys.nodes, keys.t, keys.position)
        with self._lock:
            self._num_asked += size
            self._num_found += size - len(missing)
        return found, missing

    def add(self, stamp: int, layer: int, keys: Frontier, rows: Tensor) -> None:
        """Add rows of keys, `[N, dim]`."""
        assert keys.position is not None
        if self._rows is None:
            with self._lock:
                if self._rows is None:
                    self._rows = RowMemo(rows.shape[1], self._budget)
        self._rows.add(stamp, layer, keys.nodes, keys.t, keys.position, rows)

    def keys(self, targets: Frontier) -> Frontier:
        """Return what rows of targets are kept by: their position only where they depend on it."""
        position = targets.position
        assert position is not None
        if not len(targets):
            return targets
        is_settled = find_settled(self._graph.log, targets.t, position)
        return Frontier(targets.nodes, targets.t, position.masked_fill(is_settled, _SETTLED))

    @property
    def use(self) -> MemoUse:
        """What it was good for so far."""
        rows = self._rows
        size, nbytes = (0, 0) if rows is None else (len(rows), rows.nbytes)
        return MemoUse(self._num_asked, self._num_found, size, nbytes)


def check_memo(model: TemporalModel, strategy: str) -> None:
    """Raise ValueError unless rows of a model's layers can be kept."""
    name = type(model).__name__
    if model.state is not None:
        raise ValueError(
            f"{name} keeps a state that moves on with each event, so that its rows never recur: "
            "leave memo out"
        )
    if not model.embedding_layers():
        raise ValueError(
            f"{name} names no layers whose rows could be kept, see "
            "TemporalModel.embedding_layers: leave memo out"
        )
    if type(model).forward is not TemporalModel.forward:
        raise ValueError(
            f"{name} defines a forward of its own, where rows that are kept are for decoder(z, "
            "batch): leave memo out"
        )
    if strategy != "recent":
        raise ValueError(
            f"a memo is for strategy recent: what {strategy} draws depends on the rest of the "
            "question; leave memo out"
        )
    if device_of_model(model).type != "cpu":
        raise ValueError(
            f"a memo is for models on the CPU, and this {name} is on {device_of_model(model)}: "
            "leave memo out"
        )
