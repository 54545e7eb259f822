"""What a model remembers of each node, now and as it was at earlier log positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tgflow.nn.history import VersionHistory

LAST_UPDATE, MAIL_T, HAS_MAIL, POSITION = range(4)
CLOCK_WIDTH = 4


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

    Tensors follow `Module.to`, but are no part of `state_dict`; see `state`.

    Args:
        dim: Width of the memory, at least 1.
        mail_dim: Width of the mail, at least 0.
        history: Overwritten rows to keep; 0 keeps none, and only current positions can be read.
    """

    rows: Tensor
    clock: Tensor

    def __init__(self, dim: int, mail_dim: int, history: int = 0) -> None:
        super().__init__()
        if dim < 1 or mail_dim < 0 or history < 0:
            raise ValueError(
                "dim must be at least 1, mail_dim and history at least 0, "
                f"got {dim}, {mail_dim} and {history}"
            )
        self.dim, self.mail_dim = dim, mail_dim
        self.num_nodes = 0
        self.register_buffer("rows", torch.zeros(0, dim + mail_dim), persistent=False)
        self.register_buffer(
            "clock", torch.zeros(0, CLOCK_WIDTH, dtype=torch.int64), persistent=False
        )
        self.history = VersionHistory(history, dim + mail_dim, CLOCK_WIDTH) if history else None

    def resize(self, num_nodes: int) -> None:
        """Make room for `num_nodes` nodes; never shrinks. Amortised: capacity at least doubles."""
        self.num_nodes = max(self.num_nodes, num_nodes)
        if num_nodes > len(self.rows):
            capacity = max(num_nodes, 2 * len(self.rows), 64)
            self.rows = _grown(self.rows, capacity)
            self.clock = _grown(self.clock, capacity)
            if self.history is not None:
                self.history.resize(capacity)

    def reset(self) -> None:
        """Forget everything, history included; the nodes stay."""
        self.rows.zero_()
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
        rows = self.rows.index_select(0, nodes)
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
        self.rows[:, : self.dim].index_copy_(0, nodes, memory)
        self.rows[:, self.dim :].index_copy_(0, nodes, mail)
        flags = torch.ones_like(mail_t)
        clock = torch.stack([last_update, mail_t, flags, flags * position], dim=1)
        self.clock.index_copy_(0, nodes, clock)

    def _archive(self, nodes: Tensor, position: int) -> None:
        """Move rows that were written before, and can be read again, into the history."""
        assert self.history is not None
        version = self.clock[:, POSITION].index_select(0, nodes)
        nodes = nodes[(version > 0) & (version < position)]
        self.history.append(
            nodes, self.rows.index_select(0, nodes), self.clock.index_select(0, nodes)
        )

    def state(self) -> dict[str, Tensor]:
        """Return all of it as tensors, for a checkpoint; copies, which `load_state` takes back."""
        state = {
            "rows": self.rows[: self.num_nodes].clone(),
            "clock": self.clock[: self.num_nodes].clone(),
        }
        if self.history is not None:
            state |= {
                f"history.{name}": x for name, x in self.history.state(self.num_nodes).items()
            }
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Become what `state` returned, also on another device.

        Raises:
            ValueError: If it was saved with other widths, or with another length of history.
        """
        num_nodes, width = state["rows"].shape
        if width != self.rows.shape[1]:
            raise ValueError(
                f"the saved memory has {width} columns, this one {self.rows.shape[1]}; "
                "build the model with the saved configuration"
            )
        self.resize(num_nodes)
        self.reset()
        self.num_nodes = num_nodes
        self.rows[:num_nodes] = state["rows"].to(self.rows.device)
        self.clock[:num_nodes] = state["clock"].to(self.clock.device)
        if self.history is not None:
            prefix = "history."
            self.history.load_state(
                {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            )

    def _cover(self, nodes: Tensor) -> None:
        if len(nodes):
            self.resize(int(nodes.max()) + 1)


def _grown(table: Tensor, capacity: int) -> Tensor:
    grown = table.new_zeros((capacity, *table.shape[1:]))
    grown[: len(table)] = table
    return grown
