"""A trainer's state as a checkpoint: model, optimizer, events, features and caches.

Events are the bulk of a graph and never change, so they are saved in sealed segments, which later
checkpoints need not write again; the section `events` has the rest. The log maps the segments that
a checkpoint has, so that memory holds the latest events and the pages that are read.

A table on disk with a path is durable by itself. A checkpoint syncs it and has a fingerprint: its
number of rows, and the last of them. All other rows are in the checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tgflow.base.choices import Direction, GraphPlacement
from tgflow.base.peers import Peers, Shard
from tgflow.checkpoint import (
    Checkpoint,
    CheckpointError,
    Component,
    RowsLost,
    Tensors,
    UntrustedCheckpoint,
    check_like,
)
from tgflow.checkpoint.sections import (
    Ids,
    ModelState,
    Optimizer,
    Parameters,
    Schedule,
    map_pieces,
    pieces_of,
    put_pieces,
)
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.cuda.device import Device
from tgflow.graph import EventLog, Horizon, TemporalGraph, rebuild
from tgflow.graph.cache import CachedTable, CacheSnapshot
from tgflow.graph.events import COLUMNS, NO_LABEL, EventBatch
from tgflow.graph.feature_scale import FeatureScale, FeatureScaling
from tgflow.graph.log import LATE_COLUMNS, KeptEntries, NodeCount
from tgflow.graph.mutations import from_tensors, to_tensors
from tgflow.graph.tables import DamagedFile, FeatureTable
from tgflow.graph.tables.table import Table
from tgflow.nn.model import TemporalModel
from tgflow.train.caches import caches_of
from tgflow.train.step import TrainStep

DIGEST_ROWS = 256
"""Last rows of a file that its fingerprint covers."""
PIECE_BYTES = 64 << 20
COPY_BYTES = 16 << 20
_TITLES = {"edge_x": "edge features", "node_x": "node features"}
_CACHES = "caches"
_LATE_KEPT = "late_labels_kept"
_DECODER, _APART = "label_decoder.", "labels_"
_SCALES = ("feature_scale", "node_scale")


def save_state(
    writer: Checkpoint, learner: TrainStep, graph: TemporalGraph, position: int, slices: int = 1
) -> None:
    """Save a trainer that has stored `position` events.

    With several `slices`, memory is saved in parts, which ranks can write together. Later training
    does not change the saved state: mutable state is copied, and events, which do not change, are
    views. Draws no random numbers and does not change the trainer.
    """
    save_learner(writer, learner, by_part=slices > 1)
    if learner.model.label_decoder is not None and not _has_known_labels(graph.log, position):
        _set_labels_apart(writer, learner)
    save_graph(writer, graph, position, by_part=slices > 1)


def save_learner(writer: Checkpoint, learner: TrainStep, *, by_part: bool = False) -> None:
    """Save model, its state and the optimizer, as `load_learner` takes them."""
    for each in _learner_components(learner, by_part=by_part):
        each.save(writer)


def _has_known_labels(log: EventLog, position: int) -> bool:
    starts, size = range(log.first, position, log.piece), log.piece
    labels = (log.column("label", slice(at, min(at + size, position))) for at in starts)
    is_known = (label is not None and bool((label != NO_LABEL).any()) for label in labels)
    return log.since(position) > 0 or log.late.num_upto(position) > 0 or any(is_known)


def _set_labels_apart(writer: Checkpoint, learner: TrainStep) -> None:
    """Exclude a label decoder that has learned no label from the digest: the seed made it.

    A stream without known labels then has the digest of the same events without labels.
    """
    decoder, optimizer = learner.model.label_decoder, learner.optimizer
    own = set() if decoder is None else {*map(id, decoder.parameters())}
    groups = [] if optimizer is None else optimizer.param_groups
    owned = [id(parameter) in own for group in groups for parameter in group["params"]]
    for name, is_apart in (
        (Parameters.name, lambda key: key.startswith(_DECODER)),
        (Optimizer.name, lambda key: owned[int(key.partition(".")[0])]),
    ):
        whole = writer.sections.get(writer.prefix + name)
        if whole is None:
            continue
        parts: tuple[dict[str, torch.Tensor], ...] = ({}, {})
        for key, tensor in whole.items():
            parts[is_apart(key)][key] = tensor
        writer.put(name, parts[0])
        writer.put(_APART + name, parts[1], volatile=True)


def _joined(reader: Checkpoint) -> Checkpoint:
    """Return a checkpoint with what `_set_labels_apart` took out in its place."""
    sections, added = dict(reader.sections), reader.prefix + _APART
    for name in [each for each in sections if each.startswith(added)]:
        whole = reader.prefix + name.removeprefix(added)
        sections[whole] = {**sections[whole], **sections.pop(name)}
    return replace(reader, sections=sections)


def save_graph(
    writer: Checkpoint, graph: TemporalGraph, position: int, *, by_part: bool = False
) -> None:
    """Save the first `position` events of a graph and its features, as `graph_of` takes them."""
    horizon = None if graph.horizon is None else asdict(graph.horizon)
    made = {"direction": graph.direction, "time_unit": graph.time_unit, "horizon": horizon}
    writer.note("graph", made)
    _save_events(writer, graph, position)
    kinds = {}
    for name, cache in caches_of(graph).items():
        held = cache.snapshot()
        writer.put(f"cache_{name}", {"ids": held.ids, "keys": held.keys}, volatile=True)
        kinds[name] = {"policy": cache.policy, "capacity": cache.capacity}
    writer.note(_CACHES, kinds)
    num_rows = graph.num_node_rows(position)
    if graph.edge_x is not None:
        first = writer.meta["first"]  # as of the events
        save_rows(writer, "edge_x", graph.edge_x, position, volatile=by_part, first=first)
    if graph.node_x is not None:
        save_rows(writer, "node_x", graph.node_x, num_rows, volatile=True)
    for key, size in zip(_SCALES, (position, num_rows), strict=True):
        scale = getattr(graph, key)
        if scale is not None:
            writer.note(key, {"kind": scale.kind, "freeze_at": scale.freeze_at})
            writer.put(key, scale.state_at(size))


def _learner_components(learner: TrainStep, *, by_part: bool = False) -> list[Component]:
    model, optimizer, schedule = learner.model, learner.optimizer, learner.lr_scheduler
    found: list[Component] = [Parameters(model), ModelState(model.state, by_part=by_part)]
    found += [] if optimizer is None else [Optimizer(optimizer)]
    return [*found, *([] if schedule is None else [Schedule(schedule)])]


def _save_events(writer: Checkpoint, graph: TemporalGraph, position: int) -> None:
    """Save events as views of the log, and the mutations of the graph's past until then."""
    since = graph.since(min(position, graph.log.read_again))
    first = graph.log.start_of_piece(since)
    rows, deleted = to_tensors(
        m for m in graph.mutations if first + bool(first) <= m.position <= position
    )
    writer.note("position", position)
    writer.note("first", first)
    writer.note("num_nodes_before", NodeCount(graph.log).upto(first))
    writer.note("mutations", rows)
    size = graph.log.piece
    writer.note("piece", size)
    writer.note("labels", graph.log.column("label", slice(0)) is not None)
    writer.put("mutations", deleted)

    held = graph.log.hold(first)

    def columns_of(start: int, stop: int) -> Tensors:
        events = held.log.read(start, stop)
        columns = {name: getattr(events, name) for name in COLUMNS}
        if events.label is not None and bool((events.label == NO_LABEL).all()):
            del columns["label"]  # as of events without labels
        return {name: column for name, column in columns.items() if column is not None}

    put_pieces(writer, "events", size, position, columns_of, first=first)
    late = graph.log.late
    if num_late := late.num_upto(position):
        kept = late.kept(since)
        writer.note("late_labels", num_late)
        put_pieces(writer, "late_labels", size, num_late, late.reader(), first=kept.first)
        if since:
            writer.note(_LATE_KEPT, {"first": kept.first, "place": kept.place, "since": since})
            writer.put(_LATE_KEPT, {"never": kept.never}, volatile=True)
    writer.committed.append(lambda path: _map_events(graph.log, size, path, since=first))


def _map_events(log: EventLog, size: int, path: Path, *, since: int = 0) -> None:
    """Hold the segments of `size` events in the checkpoint `path` in its files, not in memory."""
    map_pieces(path, "events", size, len(log), log.files, log.map_file, since=since)


def _load_events(reader: Checkpoint, graph: TemporalGraph) -> None:
    size, stop = max(1, read_natural(reader.meta, "piece")), read_natural(reader.meta, "position")
    rows = read_as(list[list[Any]], reader.meta.get("mutations"), "mutations")
    num_ids = Ids.num_saved(reader)
    most = 1 << 31 if num_ids is None else num_ids
    before = read_natural(reader.meta, "num_nodes_before", most=most)
    graph.log.before = graph.log.first, before
    has_labels = read_as(bool, reader.meta.get("labels"), "labels")

    def pieces() -> Iterator[EventBatch]:
        for piece in pieces_of(reader, "events", size, stop, first=graph.log.first):
            events = _events(piece, has_labels=has_labels)
            for end, nodes in (("src", events.src), ("dst", events.dst)):
                if num_ids is not None and len(nodes) and (last := int(nodes.max())) >= num_ids:
                    text = f"events.{end} has node {last}, and there are {num_ids} ids"
                    raise UntrustedCheckpoint(text)
            start = len(graph.log)
            yield events
            if reader.path is not None:
                _map_events(graph.log, size, reader.path, since=start // size * size)

    rebuild(graph, pieces(), from_tensors(rows, reader.get("mutations")))
    if len(graph.log) != stop:
        raise ValueError(f"there are {len(graph.log)} events, not {stop}")
    if "late_labels" in reader.meta:
        num, late = read_natural(reader.meta, "late_labels"), graph.log.late
        noted = {"first": 0, "place": 0, "since": 0}
        never = torch.empty(0, dtype=torch.int64)
        if _LATE_KEPT in reader.meta:
            noted = read_as(dict[str, int], reader.meta[_LATE_KEPT], _LATE_KEPT)
            found = reader.get(_LATE_KEPT)
            check_like(_LATE_KEPT, found, {"never": found["never"].long()})
            never = found["never"]
        first, place = (read_natural(noted, name) for name in ("first", "place"))
        since = read_natural(noted, "since", most=stop)

        def pieces_of_labels() -> Iterator[Tensors]:
            for piece in pieces_of(reader, "late_labels", size, num, first=first):
                check_like("late_labels", piece, dict.fromkeys(LATE_COLUMNS, piece["eid"].long()))
                yield piece

        kept = KeptEntries(first, place, never)
        late.load_from(pieces_of_labels(), first // size * size, kept, since)
        if len(late) != num:
            raise ValueError(f"there are {len(late)} late labels, not {num}")


def _events(piece: Tensors, *, has_labels: bool) -> EventBatch:
    names = [name for name, column in COLUMNS.items() if column.is_required or name in piece]
    columns: dict[str, Any] = {name: piece[name] for name in names}
    if has_labels and "label" not in piece:
        columns["label"] = torch.full_like(piece["t"], NO_LABEL)
    return EventBatch(**columns)


def _load_caches(reader: Checkpoint, graph: TemporalGraph) -> None:
    """Restore the contents of caches; one of another policy or capacity starts empty."""
    for name, cache in caches_of(graph).items():
        kinds = read_as(dict[str, Any], reader.meta.get(_CACHES, {}), _CACHES)
        if kinds.get(name) == {"policy": cache.policy, "capacity": cache.capacity}:
            held, slots = reader.get(f"cache_{name}"), torch.zeros(cache.capacity).long()
            check_like(f"cache_{name}", held, {"ids": slots, "keys": slots})
            ids = held["ids"][held["ids"] != -1]
            if bool((ids < 0).any()) or len(ids.unique()) < len(ids):  # type: ignore[no-untyped-call]
                raise ValueError("a cache must hold existing rows, each once")
            if name == "edge_x":  # features of forgotten events are gone
                held["ids"][held["ids"] < graph.log.first] = -1
            cache.restore(CacheSnapshot(held["ids"], held["keys"]))


def _load_scales(reader: Checkpoint, graph: TemporalGraph) -> None:
    for name in _SCALES:
        if name in reader.meta:
            noted = read_as(dict[str, Any], reader.meta[name], name)
            kind: FeatureScaling = read_as(FeatureScaling, noted.get("kind"), f"{name}.kind")
            scale = FeatureScale(kind, max(1, read_natural(noted, "freeze_at")))
            try:
                scale.load(reader.get(name))
            except (KeyError, ValueError) as error:
                raise UntrustedCheckpoint(f"{name}: {error}") from None
            setattr(graph, name, scale)


def graph_of(
    checkpoint: Checkpoint,
    trainer: str | None = None,
    edge_x: Table | None = None,
    node_x: Table | None = None,
    *,
    device: str | torch.device | Device = "cpu",
    device_budget: int | str | None = None,
    shard: Shard | None = None,
    table: GraphPlacement = "host",
    directory: str | PathLike[str] | None = None,
) -> TemporalGraph:
    """Return the graph of a checkpoint's events and mutations; options as in `TemporalGraph`.

    Of the required `trainer` ("continual", "offline" or "compare"), or of any. Edge features are
    loaded into `edge_x`: an empty table, or the one on disk whose rows the checkpoint counts;
    further rows are truncated. Node features into `node_x`: an empty one, or one that has them, and
    possibly more. None: host memory. A cache in front of a table is restored if its policy and
    capacity are the same. Checkpoints have all events, even of sharded graphs.

    Raises:
        CheckpointError: If it is another trainer's, has no events, or has mutations that do not fit
            them; `RowsLost` if the features are in a file whose rows are missing or changed.
        OSError: If the table cannot take the rows.
    """
    found = checkpoint.meta.get("trainer")
    if trainer is not None and found != trainer:
        raise CheckpointError(f"this is a checkpoint of trainer {found!r}, not of {trainer!r}")
    try:
        node_x = _features(checkpoint, "node_x", node_x, follows_log=False)
        edge_x = _features(checkpoint, "edge_x", edge_x, follows_log=True)
        made = read_as(dict[str, Any], checkpoint.meta.get("graph"), "graph")
        graph = TemporalGraph(
            read_as(Direction, made.get("direction"), "graph.direction"),
            time_unit=read_as(str, made.get("time_unit"), "graph.time_unit"),
            node_x=node_x,
            device=device,
            device_budget=device_budget,
            shard=shard,
            horizon=read_as(Horizon | None, made.get("horizon"), "graph.horizon"),
            first=read_natural(checkpoint.meta, "first"),
            table=table,
            directory=directory,
        )
        _load_events(checkpoint, graph)
        _check_rows(graph, edge_x, checkpoint)
        graph.edge_x = edge_x
        _load_caches(checkpoint, graph)
        _load_scales(checkpoint, graph)
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
    load_rows(reader, name, table, follows_log=follows_log)
    return table


def _check_rows(graph: TemporalGraph, edge_x: Table | None, checkpoint: Checkpoint) -> None:
    if edge_x is not None and len(edge_x) != graph.num_events:
        raise ValueError(f"there are {graph.num_events} events, and features of {len(edge_x)}")
    if graph.node_x is None:
        return
    rows, found = int(checkpoint.get("node_x_mark")["rows"]), len(graph.node_x)
    if found > rows and graph.num_nodes > rows:
        raise ValueError(
            f"node_x has {found} rows, but had {rows} when events mentioned {graph.num_nodes} "
            "nodes, of which the last had none; give the original table"
        )


def load_model(model: TemporalModel, checkpoint: Checkpoint) -> None:
    _load([Parameters(model), ModelState(model.state)], checkpoint)


def load_model_before_labels(model: TemporalModel, checkpoint: Checkpoint) -> None:
    """Do the same as `load_model`, but keep a label decoder that the checkpoint does not have."""
    decoder = model.label_decoder
    if not any(name.startswith(_DECODER) for name in _joined(checkpoint).get(Parameters.name)):
        model.label_decoder = None
    try:
        load_model(model, checkpoint)
    finally:
        model.label_decoder = decoder


def load_learner(learner: TrainStep, checkpoint: Checkpoint) -> None:
    if Schedule.name in checkpoint.meta and learner.lr_scheduler is None:
        raise CheckpointError(
            "the checkpoint was made with an lr_scheduler: give the same one "
            "(--set learning.lr_scheduler)"
        )
    _load(_learner_components(learner), checkpoint)


def _load(components: list[Component], checkpoint: Checkpoint) -> None:
    try:
        checkpoint = _joined(checkpoint)
        for each in components:
            each.load(checkpoint)
    except CheckpointError:
        raise
    except (KeyError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            "the checkpoint does not fit this model; build it with the saved configuration: "
            f"{error}"
        ) from None


def save_rows(
    writer: Checkpoint, name: str, table: Table, size: int, *, volatile: bool, first: int = 0
) -> None:
    """Save the rows `[first, size)` and their fingerprint, or refer to their file."""
    file, step = _backing_file(table), max(1, PIECE_BYTES // (4 * table.dim))
    where = None if file is None or file.path is None else str(file.path.absolute())
    writer.note(name, {"dim": table.dim, "piece": step, "file": where})
    mark = {"rows": torch.tensor([size]), "sha256": _digest(table, size, first)}
    writer.put(f"{name}_mark", mark, volatile=volatile)
    if file is not None:
        writer.outside.append(file.sync)
        return

    def read(start: int, stop: int) -> Tensors:
        return {"x": table.read(start, stop)}

    put_pieces(writer, name, step, size, read, first=first, volatile=True)


def load_rows(reader: Checkpoint, name: str, table: Table, *, follows_log: bool) -> None:
    dim = read_natural(read_as(dict[str, Any], reader.meta.get(name), name), "dim")
    if table.dim != dim or table.dtype != torch.float32:
        raise ValueError(
            f"{_TITLES[name]} are float32 of width {dim}, the table's are {table.dtype} "
            f"of width {table.dim}"
        )
    mark, file = reader.get(f"{name}_mark"), file_of(reader.meta, name)
    backing = _backing_file(table)
    check_like(name, mark, {"rows": torch.zeros(1).long(), "sha256": torch.zeros(32).byte()})
    rows, first = int(mark["rows"]), read_natural(reader.meta, "first") if name == "edge_x" else 0
    if rows and not len(table) and not (backing is not None and same_file(backing.path, file)):
        if file is not None:
            _copy_rows(file, mark, table, first)
        else:
            step = max(1, read_natural(reader.meta[name], "piece"))
            table.forget(first // step * step)
            for piece in pieces_of(reader, name, step, rows, first=first):
                table.append(piece["x"])
    elif follows_log and (backing is None or file is None) and len(table):
        raise ValueError(f"the table to fill must be empty, it has {len(table)} rows")
    _check_mark(table if backing is None else backing, mark, first)
    table.forget(first)
    if follows_log and len(table) > rows:
        table.truncate(rows)


def share_rows(reader: Checkpoint, name: str, table: FeatureTable, peers: Peers) -> None:
    """Load the rows `name` of a checkpoint into the file of each rank; collective.

    A rank whose file begins with them keeps it; others receive all of them from rank 0.
    """
    mark, first = reader.get(f"{name}_mark"), read_natural(reader.meta, "first")
    if peers.rank == 0:
        load_rows(reader, name, table, follows_log=True)
    has_rows = True
    try:
        if peers.rank > 0:
            _check_mark(table, mark, first)
            table.read(first, min(first + 1, len(table)))  # freed rows are those before one
    except (RowsLost, DamagedFile):
        has_rows = False
        table.truncate(0)
    table.forget(first)
    found = peers.gather(torch.tensor([has_rows]), [1] * peers.world, kind="words")
    if bool(found.all()):
        return
    rows, step = int(mark["rows"]), max(1, COPY_BYTES // (table.dim * table.dtype.itemsize))
    for start in range(first, rows, step):
        stop = min(start + step, rows)
        x = table.read(start, stop) if peers.rank == 0 else torch.empty(stop - start, table.dim)
        peers.broadcast(x.contiguous(), kind="words")
        if not has_rows:
            table.append(x)


def file_of(meta: Mapping[str, Any], name: str) -> Path | None:
    """Return the file with the rows `name` of a checkpoint; None if the checkpoint has them."""
    noted = read_as(dict[str, Any], meta.get(name, {}), name)
    file: str | None = read_as(str | None, noted.get("file"), f"{name}.file")
    return None if file is None else Path(file)


def same_file(left: Path | None, right: Path | None) -> bool:
    """Return whether two paths, from here, name the same file; None names none."""
    return left is not None and right is not None and left.absolute() == right.absolute()


def _backing_file(table: Table) -> FeatureTable | None:
    """Return the table behind `table` if its rows are in a named file and outlive the process."""
    if isinstance(table, CachedTable) and isinstance(table.table, FeatureTable):
        table = table.table
    if isinstance(table, FeatureTable) and table.placement == "disk" and table.path is not None:
        return table
    return None


def _digest(table: Table, rows: int, first: int) -> Tensor:
    last = table.read(max(first, rows - DIGEST_ROWS), rows)
    digest = hashlib.sha256(last.contiguous().view(torch.uint8).numpy().tobytes()).digest()
    return torch.tensor(list(digest), dtype=torch.uint8)


def _check_mark(table: Table, mark: Tensors, first: int) -> None:
    """Raise RowsLost unless `table` begins with the rows of a fingerprint."""
    rows, where = int(mark["rows"]), getattr(table, "path", None) or "the table"
    if len(table) < rows:
        raise RowsLost(f"{where} holds {len(table)} rows, the checkpoint counts {rows}")
    if not torch.equal(_digest(table, rows, first), mark["sha256"]):
        raise RowsLost(
            f"{where} holds {len(table)} rows, but of the {rows} that the checkpoint counts "
            "the last are others: they are another run's, or have been written to since"
        )


def _copy_rows(file: Path, mark: Tensors, table: Table, first: int) -> None:
    if not file.exists():
        raise RowsLost(
            f"{file} is gone, and features of the checkpoint were in it; if it is elsewhere now, "
            f'give the table: FeatureTable({table.dim}, placement="disk", path=...)'
        )
    try:
        source = FeatureTable(table.dim, table.dtype, placement="disk", path=file)
    except DamagedFile as error:
        raise RowsLost(f"the checkpoint's features cannot be read: {error}") from None
    try:
        _check_mark(source, mark, first)
        table.forget(first)
        rows, step = int(mark["rows"]), max(1, COPY_BYTES // (table.dim * table.dtype.itemsize))
        for start in range(first, rows, step):
            table.append(source.read(start, min(start + step, rows)))
    finally:
        source.close()
