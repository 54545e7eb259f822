"""A trainer's state as tensors: parameters, optimizer, memory, and the events themselves.

Events are the bulk of it and never change, so they are saved in sealed pieces, `events-000000` and
on, which a checkpoint need not write again; the section `events` has the rest. Rows of features are
in these pieces, or in a file of their own (see `tgflow.train.rows`); then the pieces are `columns`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch

from tgflow.checkpoint import Checkpoint, CheckpointError, Tensors
from tgflow.events import EventBatch, concat
from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel
from tgflow.mutations import as_tensors, from_tensors, rebuild
from tgflow.tables import FeatureTable
from tgflow.tables.protocols import Table
from tgflow.train.caches import bring_caches_back, note_caches
from tgflow.train.learner import Learner
from tgflow.train.node_rows import check_no_later_rows, node_rows_of, note_node_rows
from tgflow.train.rows import begin, file_of, kept_in_file, refer_to

PIECE = 1 << 18
"""Events of a sealed piece, at most."""
PIECE_BYTES = 64 << 20
"""And what their columns and rows may take."""
_COLUMN_BYTES = 32


def snapshot(learner: Learner, graph: TemporalGraph, position: int) -> Checkpoint:
    """Return a checkpoint of a trainer that has stored `position` events.

    What is learned or appended later does not change it: it holds copies of all that changes, and
    views of events, which do not. Nothing is drawn, and nothing of the trainer changes.
    """
    dim = 0 if graph.edge_x is None else graph.edge_x.dim
    file = kept_in_file(graph.edge_x)
    with_x = dim > 0 and file is None
    size = _piece_size(dim if with_x else 0)
    sealed_stop = position // size * size
    mutations = [each for each in graph.mutations if each.position <= position]
    rows, deleted = as_tensors(mutations)
    meta = {
        "position": position,
        "graph": {"direction": graph.direction, "edge_x_dim": dim},
        "mutations": rows,
        "piece": size,
    }
    sections = {
        "model": _copied(learner.model.state_dict()),
        "optimizer": _copied(_optimizer_tensors(learner.optimizer)),
        "events": _event_tensors(graph, sealed_stop, position, with_x),
        "mutations": deleted,
    }
    if learner.model.state is not None:
        sections["state"] = learner.model.state.state_dict()
    sealed: dict[str, Callable[[], Tensors]] = {
        _piece_name(start, size, with_x or not dim): functools.partial(
            _event_tensors, graph, start, start + size, with_x
        )
        for start in range(0, sealed_stop, size)
    }
    checkpoint = Checkpoint(sections, meta, sealed)
    if file is not None:
        refer_to(checkpoint, file, position)
    note_caches(checkpoint, graph)
    return checkpoint if graph.node_x is None else note_node_rows(checkpoint, graph.node_x)


def graph_of(
    checkpoint: Checkpoint,
    trainer: str | None = None,
    edge_x: Table | None = None,
    node_x: Table | None = None,
) -> TemporalGraph:
    """Return the graph of a checkpoint's events and changes.

    Args:
        checkpoint: A trainer's.
        trainer: Which trainer's it must be ("continual" or "offline"); None takes either.
        edge_x: The table to have the edge features: an empty one, wherever it is, or the one on
            disk whose rows the checkpoint counts; what that has beyond them is cut off. A cache in
            front of it holds again what it held, if it is one like then. None: host memory.
        node_x: The table to have the node features, if there are any: an empty one, or one that has
            them, and more if need be; a cache in front of it as before. None: host memory.

    Raises:
        CheckpointError: If it is another trainer's, has no events, or changes that cannot be
            made of them; `RowsLost` if the features are in a file, and that has not what it had.
        OSError: If the table cannot take the rows.
    """
    found = checkpoint.meta.get("trainer")
    if trainer is not None and found != trainer:
        raise CheckpointError(f"this is a checkpoint of trainer {found!r}, not of {trainer!r}")
    try:
        made = checkpoint.meta["graph"]
        graph = TemporalGraph(made["direction"], node_x=node_rows_of(checkpoint, node_x))
        table = _table(made["edge_x_dim"], edge_x)
        if table is not None:
            begin(checkpoint, table)
        events = _events(checkpoint, table)
        mutations = from_tensors(checkpoint.meta["mutations"], checkpoint.sections["mutations"])
        rebuild(graph, events, mutations)
        check_no_later_rows(checkpoint, graph)
        graph.edge_x = table
        bring_caches_back(checkpoint, graph)
    except (LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint's events cannot be used: {error!r}") from None
    return graph


def _table(dim: int, given: Table | None) -> Table | None:
    """Return the table for features of width `dim`."""
    if given is None:
        return FeatureTable(dim) if dim else None
    if given.dim != dim or given.dtype != torch.float32:
        raise ValueError(
            f"edge features are float32 of width {dim}, the table's are {given.dtype} of width "
            f"{given.dim}"
        )
    return given


def _events(checkpoint: Checkpoint, table: Table | None) -> EventBatch:
    """Return all events of a checkpoint, pieces and rest; their features go to `table`."""
    batches = []
    for piece in _event_pieces(checkpoint):
        columns = dict(piece)
        x = columns.pop("x", None)
        if x is not None and table is not None:
            table.append(x)
        batches.append(EventBatch(**columns))
    events = concat(batches)
    if table is not None and len(table) != len(events):
        raise ValueError(f"there are {len(events)} events, and features of {len(table)}")
    return events


def _event_pieces(checkpoint: Checkpoint) -> Iterator[Tensors]:
    """Yield the sealed pieces in order, then the rest."""
    meta, rest = checkpoint.meta, checkpoint.sections["events"]
    size = meta.get("piece", PIECE)
    for start in range(0, meta["position"] - len(rest["src"]), size):
        yield checkpoint.sealed[_piece_name(start, size, file_of(checkpoint) is None)]()
    yield rest


def load_model(model: TemporalModel, checkpoint: Checkpoint) -> None:
    """Give `model` the parameters and the memory of `checkpoint`.

    Raises:
        CheckpointError: If they do not fit it.
    """
    try:
        model.load_state_dict(checkpoint.sections["model"])
        if model.state is not None:
            model.state.load_state_dict(checkpoint.sections["state"])
    except (KeyError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            "the checkpoint does not fit this model; build it with the saved configuration: "
            f"{error}"
        ) from None


def load_learner(learner: Learner, checkpoint: Checkpoint) -> None:
    """Give `learner` the model, the memory and the optimizer of `checkpoint`.

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
    """Return the optimizer's state as "{parameter}.{name}"; its settings are in the config."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{name}": x for index, entry in state.items() for name, x in entry.items()}


def _event_tensors(graph: TemporalGraph, start: int, stop: int, with_x: bool) -> Tensors:
    """Return the columns of the events at `[start, stop)`: views, which nothing changes."""
    events = graph.log.read(start, stop)
    columns = {"src": events.src, "dst": events.dst, "t": events.t, "label": events.label}
    if with_x and graph.edge_x is not None:
        columns["x"] = graph.edge_x.read(start, stop)
    return {name: column for name, column in columns.items() if column is not None}


def _copied(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _piece_size(dim: int) -> int:
    """Return how many events with features of width `dim` make a piece: a power of two."""
    fit = max(1, PIECE_BYTES // (_COLUMN_BYTES + 4 * dim))
    return min(PIECE, 1 << (fit.bit_length() - 1))


def _piece_name(start: int, size: int, whole: bool) -> str:
    """Return the section of the piece that begins at `start`; another content, another name."""
    kind = "events" if whole else "columns"
    return f"{kind}-{start // size:06d}" if size == PIECE else f"{kind}-{size}-{start // size:06d}"
