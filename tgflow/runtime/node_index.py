"""Which row of a table is of which node: by the ids of a stream, and by side where they need it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from tgflow.ids import NodeIds
from tgflow.streams.errors import StreamError
from tgflow.streams.rows.columns import is_text

SIDES = ("src", "dst")


class NodeIndex:
    """Finds rows by ids.

    Args:
        name: What messages call the table.
        column: The ids of its rows, numbers or texts.
        side: "src" or "dst" of each row, where sources and destinations have ids of their own.
        by_number: Whether nobody has given ids, and they are the numbers of the rows.

    Raises:
        StreamError: If an id or a side is missing or none, or an id comes twice.
    """

    def __init__(
        self,
        name: str,
        column: pa.ChunkedArray,
        side: pa.ChunkedArray | None = None,
        *,
        by_number: bool = False,
    ) -> None:
        self._name, self._column, self._by_number = name, _plain(column), by_number
        self._is_dst = None if side is None else self._destinations(_plain(side))
        if self._column.null_count:
            row = self._column.is_null().index(True).as_py()
            raise StreamError(f"{name}, row {row}", "null", "the id is missing")
        kind = self._column.type
        self._kind: type = str if is_text(kind) else int
        if self._kind is int and not pa.types.is_integer(kind):
            raise StreamError(
                name, "type", f"ids are numbers without decimals or texts, got {kind}"
            )
        self._maps = self._made(self._column)

    def find(self, ids: NodeIds, nodes: Tensor, is_dst: Tensor | None) -> Tensor:
        """Return the row of each node, int64 `[N]`; -1 for one that has none.

        Args:
            ids: Of the stream.
            nodes: Dense ids, int64 `[N]`.
            is_dst: Which of them are destinations, bool `[N]`; None where both ends have one kind
                of ids.

        Raises:
            StreamError: If ids are of another kind, or sides are known here and not there, or the
                other way round.
        """
        self.check_sides(bipartite=is_dst is not None)
        if not len(nodes):
            return nodes
        names: Any = ids.decode(nodes)
        self._use(type(names[0]), names[0])
        if is_dst is None:
            return _found(self._maps[0], names)
        pair = torch.stack([_found(each, names) for each in self._maps])
        return torch.where(is_dst, pair[1], pair[0])

    def check_sides(self, *, bipartite: bool) -> None:
        """Raise StreamError unless sides are known just where both ends have ids of their own."""
        if bipartite == (self._is_dst is not None):
            return
        if bipartite:
            text = (
                "sources and destinations of the stream have ids of their own, so a row must say "
                'whose it is: name a column of "src" and "dst", side=...'
            )
        else:
            text = (
                "sides are given, and the stream's sources and destinations have one kind of ids: "
                "leave out side=..."
            )
        raise StreamError(self._name, "schema", text)

    def _use(self, kind: type, example: object) -> None:
        """Compare ids as the stream has them, as numbers or texts."""
        if kind is self._kind:
            return
        if self._by_number:
            text = (
                f"the stream's ids are texts such as {example!r}, and row i of an array is of the "
                'node whose id is the number i; give ids, too: NodeFeatures({"id": ids, "x": x})'
            )
            raise StreamError(self._name, "type", text)
        wanted = pa.string() if kind is str else pa.int64()
        try:
            column = self._column.cast(wanted)
        except pa.ArrowInvalid as error:
            text = f"the stream's ids are numbers such as {example}, and here one is none: {error}"
            raise StreamError(self._name, "type", text) from None
        self._kind, self._maps = kind, self._made(column)

    def _made(self, column: pa.Array) -> list[tuple[NodeIds, Tensor]]:
        """Return maps of ids, of sources and of destinations if they differ, with their rows."""
        rows = torch.arange(len(column))
        if self._is_dst is None:
            return [self._map(column, rows)]
        parts = (rows[~self._is_dst], rows[self._is_dst])
        return [self._map(column.take(pa.array(part.numpy())), part) for part in parts]

    def _map(self, column: pa.Array, rows: Tensor) -> tuple[NodeIds, Tensor]:
        ids = NodeIds()
        dense, _ = ids.encode(column, column)
        twice = (dense != torch.arange(len(dense))).nonzero()
        if len(twice):
            again = int(twice[0])
            first, second = int(rows[int(dense[again])]), int(rows[again])
            text = f"id {column[again].as_py()!r} has two rows, {first} and {second}; leave one"
            raise StreamError(self._name, "schema", text)
        return ids, rows

    def _destinations(self, side: pa.Array) -> Tensor:
        side = side.cast(pa.string())
        known = pc.is_in(side, pa.array(SIDES))
        if not pc.all(known).as_py():
            row = known.index(False).as_py()
            text = f'a side is "src" or "dst", got {side[row].as_py()!r}'
            raise StreamError(f"{self._name}, row {row}", "type", text)
        return torch.from_numpy(pc.equal(side, "dst").to_numpy(zero_copy_only=False).copy())


def _found(found: tuple[NodeIds, Tensor], names: list[Any]) -> Tensor:
    ids, rows = found
    place = ids.find(names)
    if not len(rows):
        return place
    return rows[place.clamp(min=0)].where(place >= 0, -1)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
