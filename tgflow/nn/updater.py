"""The recurrent cell that turns a node's mail into its next memory."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from tgflow.nn.memory import MemoryRows
from tgflow.nn.time_encoding import TimeEncoding

Cell = Literal["gru", "rnn"]
CELL_GATES = {"gru": 3, "rnn": 1}


class MemoryUpdater(nn.Module):
    """cell([s_i | s_j | x | time(t - last update of i)], s_i): Eqs. 1 and 3 of arXiv:2006.10637.

    The message is never put together: memory and mail lie side by side in a `NodeMemory`'s rows,
    where the cell reads them; no input has gradients.

    Args:
        memory_dim: Width of the memory.
        mail_dim: Width of the stored mail.
        time: Encodes the time since the last update.
        cell: "gru" or "rnn" (tanh).
        seconds_per_tick: The stream's unit.
    """

    def __init__(
        self,
        memory_dim: int,
        mail_dim: int,
        time: TimeEncoding,
        cell: Cell,
        seconds_per_tick: float,
    ) -> None:
        super().__init__()
        if cell not in CELL_GATES:
            raise ValueError(f"cell must be one of {sorted(CELL_GATES)}, got {cell!r}")
        self.cell, self.time, self.seconds_per_tick = cell, time, seconds_per_tick
        gates = CELL_GATES[cell] * memory_dim
        self.of_state = nn.Linear(memory_dim + mail_dim, gates)
        self.of_time = nn.Linear(time.dim, gates, bias=False)
        self.of_memory = nn.Linear(memory_dim, gates)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(memory_dim**-0.5), memory_dim**-0.5)

    def forward(self, rows: MemoryRows) -> Tensor:
        """Return the memory `[U, memory_dim]` after the mail of `rows`; without mail, as it was."""
        received = rows.has_mail.nonzero().squeeze(1)
        if len(received) == len(rows):
            return self._step(rows)
        updated = self._step(rows.select(received))
        return rows.memory.index_copy(0, received, updated)

    def _step(self, rows: MemoryRows) -> Tensor:
        dt = (rows.mail_t - rows.last_update).to(rows.state.dtype) * self.seconds_per_tick
        given = self.of_state(rows.state) + self.of_time(self.time(dt))
        own = self.of_memory(rows.memory)
        if self.cell == "rnn":
            return torch.tanh(given + own)
        reset_given, keep_given, new_given = given.chunk(3, dim=1)
        reset_own, keep_own, new_own = own.chunk(3, dim=1)
        reset = torch.sigmoid(reset_given + reset_own)
        keep = torch.sigmoid(keep_given + keep_own)
        new = torch.tanh(new_given + reset * new_own)
        return torch.lerp(new, rows.memory, keep)
