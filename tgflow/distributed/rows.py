"""A table of which each rank has the rows of its own stripes, and asks for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from tgflow.describe import described
from tgflow.distributed.parcel import exchange_vectors
from tgflow.peers import Peers
from tgflow.tables import FeatureTable
from tgflow.tables.feature_table import check_unique
from tgflow.tables.pending_gather import PendingGather
from tgflow.tables.stripes import Stripes
from tgflow.tables.validation import check_ids, out_for

KIND = "edge rows"
"""What gathering counts as in `Traffic`: counts, ids and rows."""


@described
class ShardedRows:
    """Rows by id over all ranks: a `tgflow.tables.protocols.SpreadTable` that is on the CPU.

    All ranks `append` the same rows, of which each keeps its own: that sends nothing. They gather
    together, one thread each, as many times as another, of any ids: each asks owners once for each
    id, in three exchanges of the group "plan", of 8 bytes to each rank, 8 an id and a row an id.
    Rows never change, so a cache in front, `tgflow.cache.cached`, is coherent by itself.

    Args:
        table: Empty; it becomes this rank's rows. Not on a GPU.
        peers: The ranks.

    Raises:
        ValueError: If the table has rows already, or is on a GPU.

    Example:
        >>> table = tg.tables.FeatureTable(2, placement="host")
        >>> rows = tg.distributed.ShardedRows(table, tg.join())
        >>> graph = tg.TemporalGraph(edge_x=rows)
        >>> rows.append(torch.ones(3, 2))
        0
        >>> rows.gather(torch.tensor([2, -1])).tolist()
        [[1.0, 1.0], [0.0, 0.0]]
    """

    placement = "ranks"
    view = None
    """No kernel reads these rows in place."""

    def __init__(self, table: FeatureTable, peers: Peers) -> None:
        if len(table) > 0:
            raise ValueError(f"the table has {len(table)} rows already; give an empty one")
        if table.placement in ("device", "uva"):
            raise ValueError(
                f'rows are sent by way of host memory, and the table is in "{table.placement}"; '
                'use placement="host"'
            )
        self.here = table
        """This rank's rows, by `Stripes.local`."""
        self.stripes = Stripes(peers.shard)
        """Which rows this rank has."""
        self._peers = peers
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def _facts(self) -> dict[str, object]:
        return {"num_rows": len(self), "here": self.here, "shard": self.stripes.shard}

    @property
    def dim(self) -> int:
        """Width of a row."""
        return self.here.dim

    @property
    def dtype(self) -> torch.dtype:
        """Of the elements."""
        return self.here.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of memory that this rank holds."""
        return self.here.nbytes

    @property
    def base(self) -> ShardedRows:
        """This table."""
        return self

    @property
    def file(self) -> Path | None:
        """None: no file has exactly these rows."""
        return None

    def describe(self) -> dict[str, Any]:
        """Return what this rank's table says of itself, as part of one over ranks."""
        return self.here.describe() | {"placement": self.placement, "rows": self._size}

    def check(self, rows: Tensor) -> None:
        """Raise ValueError unless `rows` could be appended."""
        self.here.check(rows)

    def append(self, rows: Tensor) -> int:
        """Add rows, the same on all ranks, and return the first one's id."""
        self.check(rows)
        first = self._size
        own = self._own(torch.arange(first, first + len(rows)))
        self.here.append(rows.index_select(0, own.to(rows.device)))
        self._size += len(rows)
        return first

    def append_own(self, rows: Tensor, size: int) -> None:
        """Add this rank's rows of those that follow. See `SpreadTable.append_own`.

        Raises:
            ValueError: If there are more or fewer of them.
        """
        num_own = self.stripes.count(size) - len(self.here)
        if size < self._size or len(rows) != num_own:
            raise ValueError(f"of {size} rows {num_own} more are this rank's, got {len(rows)}")
        self.here.append(rows)
        self._size = size

    def truncate(self, size: int) -> None:
        """Rewind to the first `size` rows, on all ranks alike."""
        self.here.truncate(self.stripes.count(size))
        self._size = size

    def scatter_(self, ids: Tensor, rows: Tensor) -> None:
        """Overwrite rows, the same on all ranks, of which each changes its own.

        Raises:
            ValueError: As `FeatureTable.scatter_`.
            IndexError: If an id is not in the table. Nothing is changed then.
        """
        self.check(rows)
        check_unique(ids, self._size)
        own = self._own(ids)
        self.here.scatter_(self.stripes.local(ids[own]), rows.index_select(0, own))

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows of int64 ids `[...]` as `[..., dim]`; -1 gives zeros. Asks all owners.

        Raises:
            IndexError: If an id is not below `len(self)`.
            PeerLost: If another rank is gone.
            ValueError: If `ids` or `out` has another dtype, shape or device.
        """
        check_ids(ids)
        out = out_for(ids, out, self.dim, self.dtype)
        return out.copy_(self.gather_each([ids])[0])

    def start_gather(self, ids: Tensor, out: Tensor | None = None) -> PendingGather:
        """Gather at once: all ranks wait for each other here."""
        return PendingGather(self.gather(ids, out), ids, None)

    def gather_each(self, ids: Sequence[Tensor]) -> list[Tensor]:
        """Gather for several, who ask together. See `SpreadTable.gather_each`.

        It takes three exchanges, of 8 bytes to each rank for each of `ids`, and 8 and a row for
        each of their distinct ids that another rank owns.

        Raises:
            IndexError: If an id is not below `len(self)`.
            PeerLost: If another rank is gone.
            ValueError: If ids are not int64, or on a GPU.
        """
        wanted = [_Wanted.of(each, self.stripes, self._size) for each in ids]
        ranks = range(self._peers.world)
        counts = self._exchange(
            [torch.tensor([len(each.by_owner[rank]) for each in wanted]) for rank in ranks],
            [len(wanted) for _ in ranks],
        )
        asked = self._exchange(
            [torch.cat([each.by_owner[rank] for each in wanted]) for rank in ranks],
            [int(count.sum()) for count in counts],
        )
        sizes = [[len(each.by_owner[rank]) for each in wanted] for rank in ranks]
        rows = self._exchange(
            [self.here.gather(self.stripes.local(each)).flatten() for each in asked],
            [self.dim * sum(each) for each in sizes],
        )
        parts = [
            torch.split(flat.view(-1, self.dim), each)
            for flat, each in zip(rows, sizes, strict=True)
        ]
        return [each.filled([*found]) for each, *found in zip(wanted, *parts, strict=True)]

    def _exchange(self, sends: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        return exchange_vectors(self._peers, sends, sizes, kind=KIND)

    def _own(self, ids: Tensor) -> Tensor:
        """Return which of `ids` are this rank's, by their places."""
        return self.stripes.owns(ids).nonzero().squeeze(1)

    def read(self, start: int, stop: int) -> Tensor:
        """Return the rows `[start, stop)`, on all ranks that read together."""
        return self.gather(torch.arange(start, stop))

    def close(self) -> None:
        """Give back what this rank holds."""
        self.here.close()


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """Distinct ids that are asked for, and where their rows go."""

    by_owner: tuple[Tensor, ...]
    """int64, of each rank."""
    order: Tensor
    """int64: where among the distinct ids those of `by_owner` are, one after the other."""
    num_distinct: int
    """The first of them is -1, where that was asked for."""
    place: Tensor
    """int64 `[...]`: of each id that was asked for, which of the distinct ones it is."""

    @classmethod
    def of(cls, ids: Tensor, stripes: Stripes, size: int) -> Self:
        """Return what `ids` ask for.

        Raises:
            IndexError: If one is not below `size`.
            ValueError: If they are not int64, or on a GPU.
        """
        check_ids(ids)
        if not ids.is_cpu:
            raise ValueError(f"ids must be on the CPU, got {ids.device}")
        distinct, place = torch.unique(ids, return_inverse=True)
        if len(distinct) and int(distinct[-1]) >= size:
            raise IndexError(f"id {int(distinct[-1])} is not in a table of {size} rows")
        num_missing = int((distinct < 0).sum())
        there = distinct[num_missing:]
        owner = stripes.owner(there)
        order = owner.argsort(stable=True)
        sizes = owner.bincount(minlength=stripes.shard.world).tolist()
        return cls(torch.split(there[order], sizes), order + num_missing, len(distinct), place)

    def filled(self, found: Sequence[Tensor]) -> Tensor:
        """Return the rows that were asked for, `[..., dim]`, given those of each rank."""
        rows = torch.cat([*found])
        table = rows.new_zeros(self.num_distinct, rows.shape[1]).index_copy_(0, self.order, rows)
        return table.index_select(0, self.place.flatten()).view(*self.place.shape, table.shape[1])
