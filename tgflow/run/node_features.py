"""Features and types of nodes from a file, indexed by the ids of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from tgflow.base.describe import described
from tgflow.graph import TemporalGraph
from tgflow.graph.event_stream import EventStream
from tgflow.graph.events import EventBatch, LateLabels, NewNodes
from tgflow.graph.id_columns import MADE_FLOATS, Kind, first_missing, read_ids
from tgflow.graph.ids import NodeIds
from tgflow.streams.errors import SourceMismatch, StreamError
from tgflow.streams.files.formats import read_table
from tgflow.streams.rows.schema import listed
from tgflow.streams.rows.validate import BadRows, feature_columns, is_text
from tgflow.streams.source import as_source


def _plain(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


NUM_TYPES = 65_536
"""Most types of nodes, with that of nodes without a row; as `PairIndex` has."""
_NAMED = 3


@described
class NodeFeatures:
    """A table of node features with one row per node, keyed by the stream's node ids.

    Ids are numbers or texts, as in the stream. A node's row is looked up when the node appears, so
    the table may be in any order, and may have rows of nodes that never appear.

    Args:
        table: A path (CSV, TSV or JSON lines, also `.gz`; Parquet, Arrow), a pyarrow
            table, a data frame, a dict of columns or an iterable of dicts. Or features alone, a
            numeric tensor or array `[N, dim]`: row `i` then belongs to the node whose id is the
            number `i`.
        id: Column of the ids.
        columns: Columns of the features, numbers or lists of numbers: each one a name or a prefix
            such as "f*"; None: all others.
        side: Column with "src" or "dst" for each row, for streams in which sources and
            destinations have ids of their own; None without one.
        fill_missing: Value of missing features, also of nodes without a row. None: they are an
            error.

    Raises:
        FileNotFoundError: If the file does not exist.
        StreamError: If a column is missing or not numeric, an id is repeated, or a feature is
            missing or not finite.
        TypeError: If it is not a table.

    Example:
        >>> nodes = tg.NodeFeatures({"id": ["a", "b"], "age": [31, 47]}, id="id")
        >>> stream = tg.open_stream((["b"], ["a"], [1]))
        >>> graph = tg.TemporalGraph(node_x=tg.tables.FeatureTable(nodes.dim))
        >>> for events in nodes.along(stream):
        ...     _ = graph.append(events)
        >>> graph.node_x.read(0, 2).tolist()
        [[47.0], [31.0]]
    """

    def __init__(
        self,
        table: Any,
        *,
        id: str = "id",
        columns: Sequence[str] | None = None,
        side: str | None = None,
        fill_missing: float | None = None,
    ) -> None:
        self._by_number = isinstance(table, Tensor | np.ndarray) and table.ndim == 2
        if self._by_number:
            x = torch.as_tensor(table).detach().cpu()
            table = {id: np.arange(len(x)), "x": x.numpy()}
        roles = {"id": id} if side is None else {"id": id, "side": side}
        self.name, found = read_table(table, [*roles.values()])
        for role, column in roles.items():
            self._require(found, column, role)
        self.fill_missing = fill_missing
        """Value of missing features."""
        self.columns = self._chosen(found, columns, {*roles.values()})
        """The feature columns."""
        self._column = _plain(found[id])
        self._is_dst = None if side is None else self._destinations(_plain(found[side]))
        kind = self._column.type
        if (row := first_missing([self._column])) is not None:
            what = MADE_FLOATS if pa.types.is_floating(kind) else "is missing"
            raise StreamError(f"{self.name}, row {row}", "null", f"the id {what}")
        if not (is_text(kind) or pa.types.is_integer(kind)):
            raise self._error("type", f"ids are numbers without decimals or texts, got {kind}")
        self._build(self._column, "strings" if is_text(kind) else "integers")
        self._x = self._features(found, found[id])

    def __len__(self) -> int:
        return len(self._x)

    def _facts(self) -> dict[str, object]:
        return {"name": self.name, "num_rows": len(self), "columns": self.columns, "x": self._x}

    @property
    def dim(self) -> int:
        """Width of the features."""
        return self._x.shape[1]

    def rows(self, ids: NodeIds) -> Tensor:
        """Return the features of all nodes that have ids, float32 `[len(ids), dim]`, by dense id.

        Raises:
            StreamError: If there are nodes without a row and `fill_missing` is None; or as
                `check_sides`.
        """
        return self._first(ids, len(ids))

    def of(self, names: Sequence[Any], is_dst: Tensor | None) -> Tensor:
        """Return the features of nodes by the stream's ids, float32 `[N, dim]`.

        Args:
            names: Ids.
            is_dst: Whether each is a destination, bool `[N]`; None where both ends share ids.

        Raises:
            StreamError: As `rows`.
        """
        found = self._rows_of(names, is_dst)
        if self.fill_missing is None and (found < 0).any():
            lost, gone = NodeIds(), [n for n, row in zip(names, found, strict=True) if row < 0]
            self._refuse(lost, torch.unique(lost.encode(gone, gone)[0]))
        return self._at(found)

    def along(
        self, stream: Any, graph: TemporalGraph | None = None, *, ids: NodeIds | None = None
    ) -> FeaturedStream:
        """Return a stream whose batches carry the features of the nodes that appear in them.

        Create the graph with an empty table: `TemporalGraph(node_x=FeatureTable(nodes.dim))`. With
        `TemporalGraph(feature_scale=...)`, features are scaled as nodes appear.

        Args:
            stream: A stream of `open_stream`, or other batches in dense ids.
            graph: A graph that already has the features of its nodes, such as a restored one; only
                those of further nodes are added.
            ids: Ids of the stream's nodes; None: `stream.ids`.

        Raises:
            StreamError: As `rows`, for nodes in the graph.
            SourceMismatch: If a node's row differs from the graph's.
            ValueError: If the stream has no ids, or the graph no features of this width.
        """
        stream = as_source(stream)
        ids = stream.ids if ids is None else ids
        if ids is None:
            raise ValueError("the stream has no node ids: pass them, along(stream, ids=...)")
        known = 0 if graph is None else self._check_graph(graph, ids)
        return FeaturedStream(self, stream, ids, known)

    def line(self, ids: NodeIds, num_nodes: int) -> str:
        """Return a sentence on how many of the first `num_nodes` nodes have rows."""
        found = self._find(ids, torch.arange(num_nodes), _sides(ids, num_nodes))
        used, num = len(torch.unique(found[found >= 0])), len(self)
        missing = num_nodes - int((found >= 0).sum())
        stands = "" if self.fill_missing is None else f", which get {self.fill_missing:g}"
        none = f"; nodes without a row: {missing:,}{stands}" if missing else ""
        return (
            f"node features: {num_nodes - missing:,} nodes have a row; rows of {self.name} whose "
            f"nodes never appear: {num - used:,}{none}"
        )

    def check_sides(self, *, bipartite: bool) -> None:
        """Raise StreamError unless the table has sides exactly where sources and destinations have
        ids of their own.
        """
        if bipartite and self._is_dst is None:
            text = "sources and destinations of the stream have ids of their own, so a row needs a "
            raise self._error("schema", text + 'side: name a column of "src" and "dst", side=...')
        if self._is_dst is not None and not bipartite:
            text = "sides are given, but the stream's sources and destinations have one kind of ids"
            raise self._error("schema", f"{text}: leave out side=...")

    def _error(self, code: str, text: str) -> StreamError:
        return StreamError(self.name, code, text)

    def _find(self, ids: NodeIds, nodes: Tensor, is_dst: Tensor | None) -> Tensor:
        """Return the row of each node, int64 `[N]`; -1 without one.

        `is_dst` marks the destinations among them; None where both ends share one id space.
        """
        return self._rows_of(ids.decode(nodes) if len(nodes) else [], is_dst)

    def _rows_of(self, names: Any, is_dst: Tensor | None) -> Tensor:
        self.check_sides(bipartite=is_dst is not None)
        if not len(names):
            return torch.arange(0)
        self.use("strings" if isinstance(names[0], str) else "integers")
        found = []
        for own, rows in self._maps:
            place = own.find(names)
            found.append(rows[place.clamp(min=0)].where(place >= 0, -1) if len(rows) else place)
        return found[0] if is_dst is None else torch.where(is_dst, found[1], found[0])

    def use(self, kind: Kind) -> None:
        """Read the ids as integers or strings, as the stream's are; StreamError if one is not."""
        if kind == self._kind:
            return
        if self._by_number:
            text = "the stream's ids are texts, and row i of an array is of the node whose id is "
            text += 'the number i; give ids, too: NodeFeatures({"id": ids, "x": x})'
            raise self._error("type", text)
        try:
            column = read_ids(self._column, kind)
        except ValueError as error:
            raise self._error("type", str(error)) from None
        self._build(column, kind)

    def _build(self, column: pa.Array, kind: Kind) -> None:
        """Map ids to rows, separately for sources and destinations if there are sides."""
        rows, is_dst = torch.arange(len(column)), self._is_dst
        self._kind = kind
        self._maps: list[tuple[NodeIds, Tensor]] = []
        for part in [rows] if is_dst is None else [rows[~is_dst], rows[is_dst]]:
            ids, own = NodeIds(), column.take(pa.array(part.numpy()))
            dense, _ = ids.encode(own, own)
            twice = (dense != torch.arange(len(dense))).nonzero()
            if len(twice):
                again = int(twice[0])
                first, second = int(part[int(dense[again])]), int(part[again])
                text = f"id {own[again].as_py()!r} has two rows, {first} and {second}; leave one"
                raise self._error("schema", text)
            self._maps.append((ids, part))

    def _destinations(self, side: pa.Array) -> Tensor:
        side = side.cast(pa.string())
        known = pc.is_in(side, pa.array(("src", "dst")))
        if not pc.all(known).as_py():
            row = known.index(False).as_py()
            text = f'a side is "src" or "dst", got {side[row].as_py()!r}'
            raise StreamError(f"{self.name}, row {row}", "type", text)
        return torch.from_numpy(pc.equal(side, "dst").to_numpy(zero_copy_only=False).copy())

    def _at(self, found: Tensor) -> Tensor:
        """Return the features of these rows, float32 `[N, dim]`; the fill value for -1."""
        x = self._x[found.clamp(min=0)]
        x[found < 0] = self.fill_missing or 0.0
        return x

    def _lost(self, ids: NodeIds, nodes: Tensor, found: Tensor) -> Tensor:
        """Return the nodes that must have a row, and have none; erased ones need none."""
        return ids.without_erased(nodes[found < 0] if self.fill_missing is None else nodes[:0])

    def _refuse(self, ids: NodeIds, nodes: Tensor) -> NoReturn:
        shown = ", ".join(map(repr, ids.decode(nodes[:_NAMED])))
        more = f" and {len(nodes) - _NAMED:,} more" if len(nodes) > _NAMED else ""
        what = "node" if len(nodes) == 1 else "nodes"
        text = f"there is no row for {what} {shown}{more} of the stream; add what is missing, or "
        raise self._error("null", f"{text}name a number that replaces it: fill_missing=0")

    def _first(self, ids: NodeIds, num: int) -> Tensor:
        nodes = torch.arange(num)
        found = self._find(ids, nodes, _sides(ids, num))
        if len(lost := self._lost(ids, nodes, found)):
            self._refuse(ids, lost)
        return self._at(found)

    def _check_graph(self, graph: TemporalGraph, ids: NodeIds) -> int:
        """Return how many nodes of a graph have features, after checking that they equal these."""
        if graph.node_x is None or graph.node_x.dim != self.dim:
            there = "none" if graph.node_x is None else f"some of width {graph.node_x.dim}"
            text = f"{self.name} has node features of width {self.dim}, the graph {there}; create "
            raise ValueError(f"{text}it with TemporalGraph(node_x=FeatureTable({self.dim}))")
        size = len(graph.node_x)
        if not graph.num_nodes <= size <= len(ids):
            text = f"the graph has {graph.num_nodes} nodes and {size} rows of node features, and "
            text += f"the stream has {len(ids)} ids: their nodes are unknown; begin with an empty "
            raise ValueError(f"{text}table, or with the ids that the rows were made by")
        x = self._first(ids, size)
        if ids.has_erased:  # whose rows would change the scales
            return size
        if graph.node_scale is not None and size:
            x, _ = graph.node_scale.unfitted().scaled(x)
        differs = (x != graph.node_x.read(0, size)).any(dim=1).nonzero()
        if len(differs):
            text = f"the row of {ids.decode(differs[0])[0]!r} has changed since that node appeared;"
            text += " bring the table back as it was (rows of nodes to come may be added)"
            raise SourceMismatch(self.name, "schema", text)
        return size

    def _require(self, table: pa.Table, column: str, role: str) -> None:
        if table.column_names.count(column) != 1:
            names = listed(table.column_names)
            text = f"there is no column {column!r}; the columns are {names}: choose with {role}=..."
            raise self._error("schema", text)

    def _chosen(self, table: pa.Table, columns: Sequence[str] | None, used: set[str]) -> list[str]:
        others = [
            each
            for each in table.column_names
            if each not in used and not each.startswith("__index_level_")
        ]
        chosen: list[str] = []
        for each in ["*"] if columns is None else columns:
            is_prefix = each.endswith("*")
            chosen += [n for n in others if n.startswith(each[:-1])] if is_prefix else [each]
        for each in chosen:
            self._require(table, each, "columns")
        wrong = [each for each in chosen if not _holds_numbers(table.schema.field(each).type)]
        if wrong or not chosen:
            what = f"column {wrong[0]!r} holds no numbers" if wrong else "there are no features"
            text = f"{what}; the columns are {listed(others)}: choose numbers with columns=..."
            raise self._error("schema", text)
        return chosen

    def _features(self, table: pa.Table, ids: pa.ChunkedArray) -> Tensor:
        batch = table.select(self.columns).combine_chunks().to_batches()[0]
        first = [column[0].as_py() for column in batch.columns]
        are_lists = [pa.types.is_nested(kind) for kind in batch.schema.types]
        widths = [len(x or ()) if y else 1 for x, y in zip(first, are_lists, strict=True)]
        try:
            x = feature_columns(batch, self.columns, widths, None, self.fill_missing)
        except BadRows as error:
            row = int(error.rows.argmax())
            text = error.fault(row)[1].partition(";")[0]
            way_out = "fix it, or name a number for missing values: fill_missing=0"
            where = f"{self.name}, row of {ids[row].as_py()!r}"
            raise StreamError(where, error.fault(row)[0], f"{text}; {way_out}") from None
        return torch.from_numpy(x)


class NodeTypes:
    """A table of node types with the columns `id` and `type`, as `NodeFeatures` takes one.

    Nodes without a row have a type of their own, the same for all of them. Where sources and
    destinations have ids of their own, rows are of destinations.
    """

    def __init__(self, table: Any) -> None:
        self.name, found = read_table(table, ("id", "type"))
        for column in ("id", "type"):
            if found.column_names.count(column) != 1:
                names = ", ".join(found.column_names)
                text = f"there is no column {column!r}; the columns are {names}"
                raise StreamError(self.name, "schema", text)
        column = pa.chunked_array(found["type"]).combine_chunks().cast(pa.string())
        empty = pc.fill_null(pc.equal(column, ""), True)
        if pc.any(empty).as_py():
            row = empty.index(True).as_py()
            text = "the type is missing; a node without a type has no row"
            raise StreamError(f"{self.name}, row {row}", "null", text)
        types = column.dictionary_encode()
        if (num := len(types.dictionary)) >= NUM_TYPES:
            text = f"there are {num:,} types; at most {NUM_TYPES - 1:,} are allowed"
            raise StreamError(self.name, "range", text)
        numbers = pc.add(types.indices, 1)
        self._rows = NodeFeatures({"id": found["id"], "type": numbers}, fill_missing=0.0)
        self._rows.name = self.name
        ids = found["id"].cast(pa.string()).to_pylist()
        rows = sorted(zip(ids, column.to_pylist(), strict=True))
        self.digest = blake2b(repr(rows).encode(), digest_size=16).hexdigest()
        """Digest of the ids and types, in any order."""

    def use(self, kind: Kind) -> None:
        """Read the ids as integers or strings; see `NodeFeatures.use`."""
        self._rows.use(kind)

    def of(self, ids: NodeIds, nodes: Tensor) -> Tensor:
        """Return the types of nodes, int64 `[N]` of dense ids `[N]`; 0 for nodes without a row."""
        distinct, place = torch.unique(nodes, return_inverse=True)
        rows = self._rows
        return rows._at(rows._find(ids, distinct, None))[:, 0].long()[place]


class FeaturedStream(EventStream):
    """A stream whose batches carry node features; see `NodeFeatures.along`."""

    def __init__(
        self, features: NodeFeatures, stream: EventStream, ids: NodeIds, known: int
    ) -> None:
        super().__init__(stream)
        self._features, self._ids, self._known = features, ids, known

    @property
    def node_features(self) -> NodeFeatures:
        """The features of its nodes."""
        return self._features

    @property
    def ids(self) -> NodeIds:
        """Ids of its nodes."""
        return self._ids

    def __iter__(self) -> Iterator[EventBatch]:
        """Yield the stream's batches; events before a missing row are yielded before its error."""
        known, features = self._known, self._features
        for events in self.source:
            if isinstance(events, LateLabels):
                yield events
                continue
            ends = torch.maximum(events.src, events.dst)
            last = int(ends.max()) if len(events) else -1
            if last < known:
                yield events
                continue
            nodes = torch.arange(known, last + 1)
            found = features._find(self.ids, nodes, _sides_in(self.ids, nodes, events))
            lost = features._lost(self.ids, nodes, found)
            good = events
            if len(lost):
                # Rows follow the order of nodes. Where late events are reordered, a node may appear
                # before others that were read first: until these have rows, it gets none.
                good = events[: int((ends >= lost[0]).nonzero()[0])]
                found = found[: int(lost[0]) - known]
            yield replace(good, new_nodes=NewNodes(known, features._at(found)))
            if len(lost):
                features._refuse(self.ids, lost)
            known = last + 1


def _sides_in(ids: NodeIds, nodes: Tensor, events: EventBatch) -> Tensor | None:
    """Return the sides of nodes from the events, if these contain all of them, else `_sides`."""
    if not ids.bipartite:
        return None
    is_dst = torch.isin(nodes, events.dst)
    if bool((is_dst | torch.isin(nodes, events.src)).all()):
        return is_dst
    return ids.state_dict(int(nodes[-1]) + 1)["sides"].bool()[nodes]


def _sides(ids: NodeIds, num: int) -> Tensor | None:
    """Return which of the first nodes are destinations, bool `[N]`; None with a single id space."""
    return ids.state_dict(num)["sides"].bool() if ids.bipartite else None


def _holds_numbers(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    return bool(types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind))
