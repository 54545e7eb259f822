"""A trainer's state as a checkpoint: which parts it has, and how they come back together."""

from __future__ import annotations

from typing import Any

import torch

from tgflow.checkpoint import Checkpoint, CheckpointError, UntrustedCheckpoint
from tgflow.checkpoint.parts import ModelState, Optimizer, Parameters, Part, Schedule
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.choices import Direction
from tgflow.cuda.device import Device
from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel
from tgflow.peers import Shard
from tgflow.tables import FeatureTable
from tgflow.tables.table import Table
from tgflow.train.feature_rows import FeatureRows
from tgflow.train.graph_parts import CacheContents, Events, Scaling
from tgflow.train.step import TrainStep


def save_state(
    writer: Checkpoint, learner: TrainStep, graph: TemporalGraph, position: int, slices: int = 1
) -> None:
    """Save a trainer that has stored `position` events.

    With several `slices`, memory is saved by parts, which ranks can write together.

    What is learned or appended later does not change what was saved: it is copies of all that
    changes, and views of events, which do not. Nothing is drawn, and nothing of the trainer
    changes.
    """
    save_learner(writer, learner, by_part=slices > 1)
    save_graph(writer, graph, position, by_part=slices > 1)


def save_learner(writer: Checkpoint, learner: TrainStep, *, by_part: bool = False) -> None:
    """Save model, its state and the optimizer, as `load_learner` takes them.

    Args:
        writer: Takes it.
        learner: What is saved.
        by_part: As `ModelState`.
    """
    for part in _learner_parts(learner, by_part=by_part):
        part.save(writer)


def save_graph(
    writer: Checkpoint, graph: TemporalGraph, position: int, *, by_part: bool = False
) -> None:
    """Save the first `position` events of a graph and its features, as `graph_of` takes them.

    Args:
        writer: Takes it.
        graph: What is saved.
        position: How much of it.
        by_part: Whether the trainer saves its model's state by parts.
    """
    writer.note("graph", {"direction": graph.direction, "time_unit": graph.time_unit})
    for part in _graph_parts(graph, position, by_part=by_part):
        part.save(writer)


def _learner_parts(learner: TrainStep, *, by_part: bool = False) -> list[Part]:
    optimizer: list[Part] = [] if learner.optimizer is None else [Optimizer(learner.optimizer)]
    schedule = [] if learner.lr_scheduler is None else [Schedule(learner.lr_scheduler)]
    return [*_model_parts(learner.model, by_part=by_part), *optimizer, *schedule]


def _model_parts(model: TemporalModel, *, by_part: bool = False) -> list[Part]:
    return [Parameters(model), ModelState(model.state, by_part=by_part)]


def _graph_parts(graph: TemporalGraph, position: int, *, by_part: bool) -> list[Part]:
    parts: list[Part] = [Events(graph, position), CacheContents(graph)]
    if graph.edge_x is not None:
        edge_x = FeatureRows("edge_x", graph.edge_x, position, follows_log=True, volatile=by_part)
        parts.append(edge_x)
    if graph.node_x is not None:
        size = graph.num_node_rows(position)
        parts.append(FeatureRows("node_x", graph.node_x, size, follows_log=False))
    if graph.feature_scale is not None:
        parts.append(Scaling(graph, position))
    return parts


def graph_of(
    checkpoint: Checkpoint,
    trainer: str | None = None,
    edge_x: Table | None = None,
    node_x: Table | None = None,
    *,
    device: str | torch.device | Device = "cpu",
    device_budget: int | str | None = None,
    shard: Shard | None = None,
) -> TemporalGraph:
    """Return the graph of a checkpoint's events and mutations.

    Args:
        checkpoint: A trainer's.
        trainer: Which trainer's it must be ("continual", "offline" or "compare"); None takes any.
        edge_x: The table to have the edge features: an empty one, wherever it is, or the one on
            disk whose rows the checkpoint counts; what that has beyond them is cut off. A cache in
            front of it holds again what it held, if it is one like then. None: host memory.
        node_x: The table to have the node features, if there are any: an empty one, or one that has
            them, and more if need be; a cache in front of it as before. None: host memory.
        device: Where its neighborhoods are to be, as `TemporalGraph` takes it.
        device_budget: As `TemporalGraph` takes it.
        shard: As `TemporalGraph` takes it. Checkpoints have all events, whatever was sharded.

    Raises:
        CheckpointError: If it is another trainer's, has no events, or mutations that cannot be
            made of them; `RowsLost` if the features are in a file, and that has not what it had.
        OSError: If the table cannot take the rows.
    """
    found = checkpoint.meta.get("trainer")
    if trainer is not None and found != trainer:
        raise CheckpointError(f"this is a checkpoint of trainer {found!r}, not of {trainer!r}")
    try:
        node_x = _features(checkpoint, "node_x", node_x, follows_log=False)
        edge_x = _features(checkpoint, "edge_x", edge_x, follows_log=True)
        made = read_as(dict[str, str], checkpoint.meta.get("graph"), "graph")
        graph = TemporalGraph(
            read_as(Direction, made.get("direction"), "graph.direction"),
            time_unit=read_as(str, made.get("time_unit"), "graph.time_unit"),
            node_x=node_x,
            device=device,
            device_budget=device_budget,
            shard=shard,
        )
        Events(graph).load(checkpoint)
        _check_rows(graph, edge_x, checkpoint)
        graph.edge_x = edge_x
        CacheContents(graph).load(checkpoint)
        Scaling(graph).load(checkpoint)
    except (LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint's events cannot be used: {error!r}") from None
    return graph


def _features(
    reader: Checkpoint, name: str, given: Table | None, *, follows_log: bool
) -> Table | None:
    """Return the table with a checkpoint's rows `name`; None if its graph has none."""
    if name not in reader.meta:
        if given is not None:
            kind = "node" if name == "node_x" else "edge"
            raise ValueError(f"the checkpoint's graph has no {kind} features, and {name} was given")
        return None
    noted = read_as(dict[str, Any], reader.meta[name], name)
    table = FeatureTable(read_natural(noted, "dim")) if given is None else given
    FeatureRows(name, table, follows_log=follows_log).load(reader)
    return table


def _check_rows(graph: TemporalGraph, edge_x: Table | None, checkpoint: Checkpoint) -> None:
    """Raise ValueError if events and tables do not go together."""
    if edge_x is not None and len(edge_x) != graph.num_events:
        raise ValueError(f"there are {graph.num_events} events, and features of {len(edge_x)}")
    if graph.node_x is None:
        return
    rows, found = int(checkpoint.get("node_x_mark")["rows"]), len(graph.node_x)
    if found > rows and graph.num_nodes > rows:
        raise ValueError(
            f"node_x has {found} rows, but had {rows} when events mentioned {graph.num_nodes} "
            "nodes, of which the last had none; give the table that it was"
        )


def load_model(model: TemporalModel, checkpoint: Checkpoint) -> None:
    """Give `model` the parameters and the state of `checkpoint`.

    Raises:
        CheckpointError: If they do not fit it.
    """
    _load(_model_parts(model), checkpoint)


def load_model_before_labels(model: TemporalModel, checkpoint: Checkpoint) -> None:
    """Do as `load_model`; a decoder of labels that the checkpoint does not have stays as it is.

    Raises:
        CheckpointError: If the rest does not fit it.
    """
    decoder = model.label_decoder
    if not any(name.startswith("label_decoder.") for name in checkpoint.get("model")):
        model.label_decoder = None
    try:
        load_model(model, checkpoint)
    finally:
        model.label_decoder = decoder


def load_learner(learner: TrainStep, checkpoint: Checkpoint) -> None:
    """Give `learner` the model, its state and the optimizer of `checkpoint`.

    Raises:
        CheckpointError: If they do not fit it.
    """
    if Schedule.name in checkpoint.meta and learner.lr_scheduler is None:
        raise CheckpointError(
            "the checkpoint was made with an lr_scheduler: give the same one (--lr-scheduler)"
        )
    _load(_learner_parts(learner), checkpoint)


def _load(parts: list[Part], checkpoint: Checkpoint) -> None:
    try:
        for part in parts:
            part.load(checkpoint)
    except UntrustedCheckpoint:
        raise
    except (KeyError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            "the checkpoint does not fit this model; build it with the saved configuration: "
            f"{error}"
        ) from None
