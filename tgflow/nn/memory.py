"""What a model remembers of each node, now and as it was at earlier log positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tgflow.nn.history import VersionHistory
from tgflow.nn.memory_table import MemoryTable, TensorTable, grow_to
from tgflow.nn.spill import write_spill

LAST_UPDATE, MAIL_T, HAS_MAIL, POSITION = range(4)
CLOCK_WIDTH = 4
ROWS_PER_EVENT = 2
"""Rows that an event overwrites at most: those of its two nodes."""
_PAGE_BYTES = 4 << 20
_HISTORY = "history."


@dataclass(frozen=True, slots=True, eq=False)
class MemoryRows:
    """The state of some nodes: copies, without gradients."""

    state: Tensor
    """float32 `[U, dim + mail_dim]`: memory and mail side by side, zeros where there is none."""
    clock: Tensor
    """int64 `[U, 4]`: `last_update`, `mail_t`, `has_mail`, and the version's position."""
    dim: int
    """Width of the memory."""

    def __len__(self) -> int:
        return len(self.clock)

    @property
    def memory(self) -> Tensor:
        """float32 `[U, dim]`, a view."""
        return self.state[:, : self.dim]

    @property
    def mail(self) -> Tensor:
        """float32 `[U, mail_dim]`, a view."""
        return self.state[:, self.dim :]

    @property
    def last_update(self) -> Tensor:
        """int64 `[U]`: the tick of the last event in `memory`; of the mail, if there was none."""
        return self.clock[:, LAST_UPDATE]

    @property
    def mail_t(self) -> Tensor:
        """int64 `[U]`: the tick of the mail's last event."""
        return self.clock[:, MAIL_T]

    @property
    def has_mail(self) -> Tensor:
        """Bool `[U]`: whether mail waits to be taken into the memory."""
        return self.clock[:, HAS_MAIL] != 0

    def select(self, rows: Tensor) -> MemoryRows:
        """Return the given rows (int64 `[R]`)."""
        return MemoryRows(
            self.state.index_select(0, rows), self.clock.index_select(0, rows), self.dim
        )


class NodeMemory(nn.Module):
    """A row of memory and mail per node, in versions: each holds from a log position on.

    Rows start at zero, at position 0, and appear as nodes do. After `keep_past` a row that is
    written over moves into a bounded history, from which replayed events read their nodes as they
    were. A version that has left it reads as the initial state, never as a later one: what is
    forgotten may cost accuracy, but nothing leaks from the future.

    Rows are in a table; the default one is a buffer that follows `Module.to`, as clocks (32 bytes
    a node) and history always do. Another table stays where it is, so that memory may be larger
    than a GPU's; what is read never depends on it.

    Args:
        dim: Width of the memory, at least 1.
        mail_dim: Width of the mail, at least 0.
        table: Where rows are: an empty `FeatureTable` or `CachedTable` of `dim + mail_dim` float32
            that is not on disk, to be changed by this memory alone. None: with the module.

    Raises:
        ValueError: If a width is too small, or the table cannot hold the rows.
    """

    clock: Tensor
    history: VersionHistory | None
    """Overwritten rows, of which there are none before `keep_past`."""

    def __init__(self, dim: int, mail_dim: int, table: MemoryTable | None = None) -> None:
        super().__init__()
        if dim < 1 or mail_dim < 0:
            raise ValueError(
                f"dim must be at least 1 and mail_dim at least 0, got {dim} and {mail_dim}"
            )
        self.dim, self.mail_dim = dim, mail_dim
        self.num_nodes = 0
        self.table = TensorTable(dim + mail_dim) if table is None else table
        _check_table(self.table, dim + mail_dim)
        clock = torch.zeros(0, CLOCK_WIDTH, dtype=torch.int64)
        self.register_buffer("clock", clock, persistent=False)
        self.history = None

    @property
    def num_rows(self) -> int:
        """Rows that are held: one for each node, and the overwritten ones."""
        return self.num_nodes + (0 if self.history is None else len(self.history))

    def keep_past(self, num_events: int) -> None:
        """Keep the rows that the last `num_events` events have overwritten: two for each, at most.

        Only current positions can be read before. See `keep_rows`.
        """
        self.keep_rows(ROWS_PER_EVENT * num_events)

    def keep_rows(self, num_rows: int) -> None:
        """Keep the last `num_rows` overwritten rows, over all nodes; 0 keeps none.

        Rows that are kept already stay, the latest ones where they are more.

        Raises:
            ValueError: If `num_rows` is below 0.
        """
        if num_rows < 0:
            raise ValueError(f"rows to keep must be at least 0, got {num_rows}")
        if num_rows == 0:
            self.history = None
        elif self.history is None:
            self.history = self._new_history(num_rows)
        elif self.history.capacity != num_rows:
            self.history = self.history.with_capacity(num_rows)

    def _new_history(self, capacity: int) -> VersionHistory:
        history = VersionHistory(capacity, self.table.dim, CLOCK_WIDTH).to(self.clock.device)
        history.resize(len(self.clock))
        return history

    def resize(self, num_nodes: int) -> None:
        """Make room for `num_nodes` nodes; never shrinks. Amortised.

        Raises:
            MemoryError: If the table has no room for them.
        """
        if num_nodes > len(self.table):
            self._grow_table(num_nodes)
        if num_nodes > len(self.clock):
            self.clock = grow_to(self.clock, num_nodes)
            if self.history is not None:
                self.history.resize(len(self.clock))
        self.num_nodes = max(self.num_nodes, num_nodes)

    def _grow_table(self, size: int) -> None:
        table = self.table
        for page in self._pages(size - len(table)):
            table.append(torch.zeros(page.stop - page.start, table.dim))
        if table.placement == "disk":
            raise MemoryError(
                f"the memory of {size} nodes has outgrown its table, which went on to disk, where "
                "rows never change; give it a larger budget"
            )

    def _pages(self, size: int) -> Iterator[slice]:
        """Cut `size` rows into pieces to be copied one after the other."""
        step = max(_PAGE_BYTES // (4 * self.table.dim), 1)
        return (slice(start, min(start + step, size)) for start in range(0, size, step))

    def reset(self) -> None:
        """Forget everything, history included; the nodes stay."""
        written = (self.clock[:, HAS_MAIL] != 0).nonzero().squeeze(1)
        for page in self._pages(len(written)):
            ids = written[page]
            self.table.scatter_(ids, torch.zeros(len(ids), self.table.dim))
        self.clock.zero_()
        if self.history is not None:
            self.history.reset()

    def read(self, nodes: Tensor, position: Tensor) -> MemoryRows:
        """Return each node's latest version whose position is at most the one asked for.

        Args:
            nodes: int64 `[U]`; those never written, or never seen, have the initial state.
            position: Log positions, int64 `[U]`. Where all are current, the history is not touched.

        Raises:
            ValueError: If an older version is asked for and no history is kept.
        """
        self._cover(nodes)
        rows = self.table.gather(nodes)
        clock = self.clock.index_select(0, nodes)
        stale = clock[:, POSITION] > position
        if bool(stale.any()):
            self._read_old(nodes, position, stale.nonzero().squeeze(1), rows, clock)
        return MemoryRows(rows, clock, self.dim)

    def _read_old(
        self, nodes: Tensor, position: Tensor, stale: Tensor, rows: Tensor, clock: Tensor
    ) -> None:
        if self.history is None:
            row = int(stale[0])
            raise ValueError(
                f"node {int(nodes[row])} is asked for as of position {int(position[row])}, but was "
                f"written at {int(clock[row, POSITION])} and no history is kept; "
                "call keep_past(num_events) first, for as many events as are looked back on"
            )
        old_rows, old_clock = self.history.read(
            nodes.index_select(0, stale), position.index_select(0, stale)
        )
        rows.index_copy_(0, stale, old_rows)
        clock.index_copy_(0, stale, old_clock)

    def write(
        self,
        nodes: Tensor,
        memory: Tensor,
        last_update: Tensor,
        mail: Tensor,
        mail_t: Tensor,
        position: int,
    ) -> None:
        """Make a new version of the nodes' rows, with mail, that holds from `position` on.

        Args:
            nodes: Distinct nodes, int64 `[R]`.
            memory: float32 `[R, dim]`, without gradients.
            last_update: Ticks, int64 `[R]`.
            mail: float32 `[R, mail_dim]`, without gradients.
            mail_t: Ticks, int64 `[R]`.
            position: The log position of the first event that may read it, at least that of
                earlier writes.
        """
        self._cover(nodes)
        if self.history is not None:
            self._archive(nodes, position)
        self.table.scatter_(nodes, torch.cat([memory, mail], dim=1))
        flags = torch.ones_like(mail_t)
        clock = torch.stack([last_update, mail_t, flags, flags * position], dim=1)
        self.clock.index_copy_(0, nodes, clock)

    def _archive(self, nodes: Tensor, position: int) -> None:
        """Move rows that were written before, and can be read again, into the history."""
        assert self.history is not None
        version = self.clock[:, POSITION].index_select(0, nodes)
        nodes = nodes[(version > 0) & (version < position)]
        self.history.append(nodes, self.table.gather(nodes), self.clock.index_select(0, nodes))

    def state_dict(  # type: ignore[override]
        self, *, destination: dict[str, Any] | None = None, **_: Any
    ) -> dict[str, Tensor]:
        """Return all of it as tensors: copies, which `load_state_dict` takes back.

        The rows of a table come as a tensor in a temporary file, so that a large memory is never in
        host memory twice. To the `state_dict` of a model around it, which has the parameters and
        calls this with `destination`, it adds nothing.
        """
        if destination is not None:
            return destination
        state = {"rows": self._copied_rows(), "clock": self.clock[: self.num_nodes].clone()}
        if self.history is not None:
            kept = self.history.state_dict(self.num_nodes)
            state |= {_HISTORY + name: x for name, x in kept.items()}
        return state

    def _copied_rows(self) -> Tensor:
        table, size = self.table, self.num_nodes
        if isinstance(table, TensorTable):
            return table.read(0, size).clone()
        pages = (table.read(page.start, page.stop) for page in self._pages(size))
        return write_spill(pages, (size, table.dim), table.dtype)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:  # type: ignore[override]
        """Become what `state_dict` returned, also on another device; the past is kept as it was.

        Raises:
            KeyError: If a tensor is missing. Nothing is changed then.
            ValueError: If it was saved with other widths. Nothing is changed then.
        """
        rows, clock = state["rows"], state["clock"]
        num_nodes, width = rows.shape
        if width != self.table.dim:
            raise ValueError(
                f"the saved memory has {width} columns, this one {self.table.dim}; "
                "build the model with the saved configuration"
            )
        history = {k.removeprefix(_HISTORY): v for k, v in state.items() if k.startswith(_HISTORY)}
        capacity = int(history["next"][1]) if history else 0
        if history and capacity < 1:
            raise ValueError(f"the saved memory keeps a history of {capacity} rows")
        self.resize(num_nodes)
        self.reset()
        self.keep_rows(capacity)
        self.num_nodes = num_nodes
        ids = torch.arange(num_nodes)
        for page in self._pages(num_nodes):
            self.table.scatter_(ids[page], rows[page].cpu())
        self.clock[:num_nodes] = clock.to(self.clock.device)
        if self.history is not None:
            self.history.load_state_dict(history)

    def _cover(self, nodes: Tensor) -> None:
        if len(nodes):
            self.resize(int(nodes.max()) + 1)


def _check_table(table: MemoryTable, width: int) -> None:
    if table.placement == "disk":
        raise ValueError(
            "memory cannot be in a table on disk, whose rows never change; "
            'use placement="uva" or "host", with a cache on the GPU in front if it is to be faster'
        )
    if table.dim != width or table.dtype != torch.float32 or len(table) > 0:
        raise ValueError(
            f"the table of a memory must be empty and of {width} float32 (memory and mail), "
            f"got {len(table)} rows of {table.dim} {str(table.dtype).removeprefix('torch.')}"
        )
