"""A table of which each rank has the rows of its own stripes, and asks for the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tgflow.distributed.vectors import exchange_vectors
from tgflow.peers import Peers
from tgflow.tables import FeatureTable
from tgflow.tables.validation import check_ids, out_for

STRIPE = 64
"""Rows next to each other that have one owner: those of stripe `id // STRIPE`, a part by itself."""
KIND = "edge rows"
"""What gathering counts as in `Traffic`: counts, ids and rows."""


class ShardedRows:
    """Rows by id over all ranks: a `tgflow.tables.protocols.Table` that is on the CPU.

    All ranks `append` the same rows, of which each keeps its own: that sends nothing. They `gather`
    together, one thread each, as many times as another, of any ids: each asks owners once for each
    id, in three exchanges of the group "plan", of 8 bytes a rank, 8 an id and a row an id. Those of
    a turn (`tgflow.plan.turns`) are gathered in one call.

    Args:
        table: Empty; it becomes this rank's rows. Not on a GPU.
        peers: The ranks.

    Raises:
        ValueError: If the table has rows already, or is on a GPU.
    """

    placement = "ranks"

    def __init__(self, table: FeatureTable, peers: Peers) -> None:
        if len(table) > 0:
            raise ValueError(f"the table has {len(table)} rows already; give an empty one")
        if table.placement in ("device", "uva"):
            raise ValueError(
                f'rows are sent by way of host memory, and the table is in "{table.placement}"; '
                'use placement="host"'
            )
        self._table, self._peers, self._shard = table, peers, peers.shard
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def dim(self) -> int:
        """Width of a row."""
        return self._table.dim

    @property
    def dtype(self) -> torch.dtype:
        """Of the elements."""
        return self._table.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of memory that this rank holds."""
        return self._table.nbytes

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
        return self._table.describe() | {"placement": self.placement, "rows": self._size}

    def check(self, rows: Tensor) -> None:
        """Raise ValueError unless `rows` could be appended."""
        self._table.check(rows)

    def append(self, rows: Tensor) -> int:
        """Add rows, the same on all ranks, and return the first one's id."""
        self.check(rows)
        first = self._size
        ids = torch.arange(first, first + len(rows))
        own = self._shard.owns(ids // STRIPE).nonzero().squeeze(1)
        self._table.append(rows.index_select(0, own.to(rows.device)))
        self._size += len(rows)
        return first

    def truncate(self, size: int) -> None:
        """Rewind to the first `size` rows, on all ranks alike."""
        stripes, rest = divmod(size, STRIPE)
        last = rest if self._shard.owner(stripes) == self._shard.rank else 0
        self._table.truncate(self._shard.count(stripes) * STRIPE + last)
        self._size = size

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows of int64 ids `[...]` as `[..., dim]`; -1 gives zeros. Asks all owners.

        Raises:
            IndexError: If an id is not below `len(self)`.
            PeerLost: If another rank is gone.
            ValueError: If `ids` or `out` has another dtype, shape or device.
        """
        check_ids(ids)
        out = out_for(ids, out, self.dim, self.dtype)
        if ids.numel() and int(ids.max()) >= self._size:
            raise IndexError(f"id {int(ids.max())} is not in a table of {self._size} rows")
        distinct, place = torch.unique(ids.reshape(-1), return_inverse=True)
        num_missing = int((distinct < 0).sum())
        wanted = distinct[num_missing:]
        owner = self._shard.owner(wanted // STRIPE)
        order = owner.argsort(stable=True)
        found = self._asked(wanted[order], owner.bincount(minlength=self._shard.world).tolist())
        rows = found.new_zeros(len(distinct), self.dim)
        rows.index_copy_(0, order + num_missing, found)
        return out.copy_(rows.index_select(0, place).view_as(out))

    def _asked(self, ids: Tensor, sizes: list[int]) -> Tensor:
        """Return the rows of distinct ids, `[U, dim]`, in the order of owners, who have `sizes`."""
        peers, parts = self._peers, torch.split(ids, sizes)
        num_asked = exchange_vectors(
            peers,
            [torch.tensor([size]) for size in sizes],
            [1 for _ in sizes],
            kind=KIND,
        )
        asked = exchange_vectors(peers, parts, [int(num) for num in num_asked], kind=KIND)
        answers = [self._table.gather(self._local(each)).flatten() for each in asked]
        rows = exchange_vectors(peers, answers, [self.dim * size for size in sizes], kind=KIND)
        return torch.cat(rows).view(-1, self.dim)

    def _local(self, ids: Tensor) -> Tensor:
        """Return where this rank's table has the rows of its own ids."""
        return self._shard.local(ids // STRIPE) * STRIPE + ids % STRIPE

    def read(self, start: int, stop: int) -> Tensor:
        """Return the rows `[start, stop)`, on all ranks that read together."""
        return self.gather(torch.arange(start, stop))

    def close(self) -> None:
        """Give back what this rank holds."""
        self._table.close()
