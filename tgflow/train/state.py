"""A trainer's state as tensors: parameters, optimiser, memory, and the events themselves.

Events are the bulk of it and never change, so they are saved in sealed pieces of `PIECE` events,
`events-000000` and on, which a checkpoint need not write again; the section `events` has the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch

from tgflow.changes import as_tensors, from_tensors, make_again
from tgflow.checkpoint import Checkpoint, CheckpointError, Tensors
from tgflow.events import EventBatch, concat
from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel
from tgflow.train.learner import Learner

PIECE = 1 << 18
"""Events of a sealed piece."""


def snapshot(learner: Learner, graph: TemporalGraph, position: int) -> Checkpoint:
    """Return a checkpoint of a trainer that has stored `position` events.

    What is learnt or appended later does not change it: it holds copies of all that changes, and
    views of events, which do not. Nothing is drawn, and nothing of the trainer changes.
    """
    sealed_stop = position // PIECE * PIECE
    sections = {
        "model": _copied(learner.model.state_dict()),
        "optimizer": _copied(_optimizer_tensors(learner.optimizer)),
        "events": _event_tensors(graph, sealed_stop, position),
    }
    if learner.model.memory is not None:
        sections["memory"] = learner.model.memory.state()
    changes = [change for change in graph.changes if change.position <= position]
    rows, sections["changes"] = as_tensors(changes)
    dim = 0 if graph.edge_x is None else graph.edge_x.dim
    made = {"direction": graph.direction, "edge_x_dim": dim}
    meta = {"position": position, "graph": made, "changes": rows}
    sealed: dict[str, Callable[[], Tensors]] = {
        _piece_name(start): functools.partial(_event_tensors, graph, start, start + PIECE)
        for start in range(0, sealed_stop, PIECE)
    }
    return Checkpoint(sections, meta, sealed)


def graph_of(checkpoint: Checkpoint, trainer: str | None = None) -> TemporalGraph:
    """Return the graph of a checkpoint's events and changes.

    Args:
        checkpoint: A trainer's.
        trainer: Which trainer's it must be ("continual" or "offline"); None takes either.

    Raises:
        CheckpointError: If it is another trainer's, has no events, or changes that cannot be
            made of them.
    """
    found = checkpoint.meta.get("trainer")
    if trainer is not None and found != trainer:
        raise CheckpointError(f"this is a checkpoint of trainer {found!r}, not of {trainer!r}")
    try:
        graph = TemporalGraph(**checkpoint.meta["graph"])
        changes = from_tensors(checkpoint.meta["changes"], checkpoint.sections["changes"])
        make_again(graph, events_of(checkpoint), changes)
    except (LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint's events cannot be used: {error!r}") from None
    return graph


def events_of(checkpoint: Checkpoint) -> EventBatch:
    """Return all events of a trainer's checkpoint, pieces and rest."""
    return concat([EventBatch(**piece) for piece in _event_pieces(checkpoint)])


def _event_pieces(checkpoint: Checkpoint) -> Iterator[Tensors]:
    """Yield the sealed pieces in order, then the rest."""
    sections, sealed = checkpoint.sections, checkpoint.sealed
    rest = sections["events"]
    for start in range(0, checkpoint.meta["position"] - len(rest["src"]), PIECE):
        name = _piece_name(start)
        yield sections[name] if name in sections else sealed[name]()
    yield rest


def load_model(model: TemporalModel, checkpoint: Checkpoint) -> None:
    """Give `model` the parameters and the memory of `checkpoint`.

    Raises:
        CheckpointError: If they do not fit it.
    """
    try:
        model.load_state_dict(checkpoint.sections["model"])
        if model.memory is not None:
            model.memory.load_state(checkpoint.sections["memory"])
    except (KeyError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            "the checkpoint does not fit this model; build it with the saved configuration: "
            f"{error}"
        ) from None


def load_learner(learner: Learner, checkpoint: Checkpoint) -> None:
    """Give `learner` the model, the memory and the optimiser of `checkpoint`.

    Raises:
        CheckpointError: If they do not fit it.
    """
    load_model(learner.model, checkpoint)
    state: dict[int, Tensors] = {}
    for name, tensor in checkpoint.sections["optimizer"].items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    groups = learner.optimizer.state_dict()["param_groups"]
    learner.optimizer.load_state_dict({"state": state, "param_groups": groups})


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> Tensors:
    """Return the optimiser's state as "{parameter}.{name}"; its settings are in the config."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{name}": x for index, entry in state.items() for name, x in entry.items()}


def _event_tensors(graph: TemporalGraph, start: int, stop: int) -> Tensors:
    """Return the columns of the events at `[start, stop)`: views, which nothing changes."""
    events = graph.log.read(start, stop)
    columns = {"src": events.src, "dst": events.dst, "t": events.t, "label": events.label}
    if graph.edge_x is not None:
        columns["x"] = graph.edge_x.read(start, stop)
    return {name: column for name, column in columns.items() if column is not None}


def _copied(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _piece_name(start: int) -> str:
    return f"events-{start // PIECE:06d}"
