"""What a model remembers of each node, now and as it was at earlier log positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tgflow.nn.history import VersionHistory
from tgflow.nn.memory_table import MemoryTable, TensorTable, with_room
from tgflow.nn.spill import write_spill

LAST_UPDATE, MAIL_T, HAS_MAIL, POSITION = range(4)
CLOCK_WIDTH = 4
_PAGE_BYTES = 4 << 20


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

    Rows start at zero, at position 0, and appear as nodes do. A row that is written over moves
    into a bounded history, from which replayed events read their nodes as they were. It holds
    the last `history` rows over all nodes; a version that has left it reads as the initial state,
    never as a later one: what is forgotten may cost accuracy, but nothing leaks from the future.

    Rows are in a table; the default one is a buffer that follows `Module.to`, as clocks (32 bytes
    a node) and history always do. Another table stays where it is, so that memory may be larger
    than a GPU's; what is read never depends on it. None of it is part of `state_dict`; see `state`.

    Args:
        dim: Width of the memory, at least 1.
        mail_dim: Width of the mail, at least 0.
        history: Overwritten rows to keep; 0 keeps none, and only current positions can be read.
        table: Where rows are: an empty `FeatureTable` or `CachedTable` of `dim + mail_dim` float32
            that is not on disk, to be changed by this memory alone. None: with the module.

    Raises:
        ValueError: If a width or `history` is too small, or the table cannot hold the rows.
    """

    clock: Tensor

    def __init__(
        self, dim: int, mail_dim: int, history: int = 0, table: MemoryTable | None = None
    ) -> None:
        super().__init__()
        if dim < 1 or mail_dim < 0 or history < 0:
            raise ValueError(
                "dim must be at least 1, mail_dim and history at least 0, "
                f"got {dim}, {mail_dim} and {history}"
            )
        self.dim, self.mail_dim = dim, mail_dim
        self.num_nodes = 0
        self.table = TensorTable(dim + mail_dim) if table is None else table
        _check_table(self.table, dim + mail_dim)
        clock = torch.zeros(0, CLOCK_WIDTH, dtype=torch.int64)
        self.register_buffer("clock", clock, persistent=False)
        self.history = VersionHistory(history, dim + mail_dim, CLOCK_WIDTH) if history else None

    def resize(self, num_nodes: int) -> None:
        """Make room for `num_nodes` nodes; never shrinks. Amortised.

        Raises:
            MemoryError: If the table has no room for them.
        """
        if num_nodes > len(self.table):
            self._grow_table(num_nodes)
        if num_nodes > len(self.clock):
            self.clock = with_room(self.clock, num_nodes)
            if self.history is not None:
                self.history.resize(len(self.clock))
        self.num_nodes = max(self.num_nodes, num_nodes)

    def _grow_table(self, size: int) -> None:
        table = self.table
        for page in self._pages(size - len(table)):
            table.append(torch.zeros(page.stop - page.start, table.dim))
        if table.place == "disk":
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
                "set history to the number of overwritten rows to keep"
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

    def state(self) -> dict[str, Tensor]:
        """Return all of it as tensors, for a checkpoint; copies, which `load_state` takes back.

        The rows of a table come as a tensor in a temporary file, so that a large memory is never in
        host memory twice.
        """
        state = {"rows": self._copied_rows(), "clock": self.clock[: self.num_nodes].clone()}
        if self.history is not None:
            state |= {
                f"history.{name}": x for name, x in self.history.state(self.num_nodes).items()
            }
        return state

    def _copied_rows(self) -> Tensor:
        table, size = self.table, self.num_nodes
        if isinstance(table, TensorTable):
            return table.read(0, size).clone()
        pages = (table.read(page.start, page.stop) for page in self._pages(size))
        return write_spill(pages, (size, table.dim), table.dtype)

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Become what `state` returned, also on another device.

        Raises:
            ValueError: If it was saved with other widths, or with another length of history.
                Nothing is changed then.
        """
        num_nodes, width = state["rows"].shape
        if width != self.table.dim:
            raise ValueError(
                f"the saved memory has {width} columns, this one {self.table.dim}; "
                "build the model with the saved configuration"
            )
        prefix = "history."
        history = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        if self.history is not None:
            self.history.check_state(history)
        self.resize(num_nodes)
        self.reset()
        self.num_nodes = num_nodes
        ids = torch.arange(num_nodes)
        for page in self._pages(num_nodes):
            self.table.scatter_(ids[page], state["rows"][page].cpu())
        self.clock[:num_nodes] = state["clock"].to(self.clock.device)
        if self.history is not None:
            self.history.load_state(history)

    def _cover(self, nodes: Tensor) -> None:
        if len(nodes):
            self.resize(int(nodes.max()) + 1)


def _check_table(table: MemoryTable, width: int) -> None:
    if table.place == "disk":
        raise ValueError(
            "memory cannot be in a table on disk, whose rows never change; "
            'use place="uva" or "host", with a cache on the GPU in front if it is to be faster'
        )
    if table.dim != width or table.dtype != torch.float32 or len(table) > 0:
        raise ValueError(
            f"the table of a memory must be empty and of {width} float32 (memory and mail), "
            f"got {len(table)} rows of {table.dim} {str(table.dtype).removeprefix('torch.')}"
        )
