"""Recurrent cell that applies a node's mail to its memory."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from tgflow.base.units import seconds_of
from tgflow.cuda.device import device_of, has_device
from tgflow.nn._native import gru_step
from tgflow.nn.linear import Linear
from tgflow.nn.memory import HAS_MAIL, POSITION, MemoryRows
from tgflow.nn.memory_table import grow_to
from tgflow.nn.tokens import TimeEncoding

Cell = Literal["gru", "rnn"]


class MemoryUpdater(nn.Module):
    """cell([s_i | s_j | x | time(t - last update of i)], s_i): Eqs. 1 and 3 of arXiv:2006.10637.

    The message is never concatenated: the cell reads memory and mail from a `NodeMemory`'s rows,
    and only the time encoding has gradients as an input. As s_i is part of the message, the cell's
    second map of s_i is redundant, except in the candidate of a GRU, where it goes through the
    reset gate: only there is it kept.

    Args:
        memory_dim: Width of the memory.
        mail_dim: Width of the stored mail.
        time: Encodes the time since the last update.
        cell: "gru" or "rnn" (tanh).
    """

    def __init__(self, memory_dim: int, mail_dim: int, time: TimeEncoding, cell: Cell) -> None:
        super().__init__()
        if cell not in get_args(Cell):
            raise ValueError(f'cell must be "gru" or "rnn", got {cell!r}')
        self.time, self.memory_dim = time, memory_dim
        gates = 3 * memory_dim if cell == "gru" else memory_dim
        self.state_proj = Linear(memory_dim + mail_dim, gates)
        self.time_proj = Linear(time.dim, gates, bias=False)
        self.memory_proj = Linear(memory_dim, memory_dim) if cell == "gru" else None
        self._kept: tuple[Tensor, Tensor] | None = None
        """Memory after mail by node, and the version of the row that it was computed from."""
        for layer in (self.state_proj, self.time_proj, self.memory_proj):
            for parameter in () if layer is None else layer.parameters():
                nn.init.uniform_(parameter, -(memory_dim**-0.5), memory_dim**-0.5)

    def keep(self) -> None:
        """Keep what is computed without gradients from current rows on the CPU, for later calls.

        Call it again when parameters have changed.
        """
        self._kept = torch.zeros(0, self.memory_dim), torch.zeros(0, dtype=torch.int64)

    def forward(self, rows: MemoryRows, seconds_per_tick: float) -> Tensor:
        """Return the memory `[U, memory_dim]` after the mail of `rows`; unchanged without mail."""
        if self._kept is None or rows.nodes is None or torch.is_grad_enabled():
            return self._after(rows, seconds_per_tick)
        # a row that was never written is of version 0 and zeros, as is what is kept at first
        size = int(rows.nodes.max()) + 1 if len(rows) else 0
        memory, version = self._kept = grow_to(self._kept[0], size), grow_to(self._kept[1], size)
        out, now = memory.index_select(0, rows.nodes), rows.clock[:, POSITION]
        new = (version.index_select(0, rows.nodes) != now).nonzero().squeeze(1)
        if len(new):
            some = MemoryRows(rows.state[new], rows.clock[new], rows.dim)
            after, nodes = self._after(some, seconds_per_tick), rows.nodes[new]
            out[new] = memory[nodes] = after
            version[nodes] = now[new]
        return out

    def _after(self, rows: MemoryRows, seconds_per_tick: float) -> Tensor:
        # The few nodes without mail take the step too: dropping it costs less than picking rows.
        state, clock, frequency = rows.state, rows.clock, self.time.frequency
        if has_device(state.device) and state.dtype == frequency.dtype == torch.float32:
            from tgflow.cuda.mail import mail_age

            age = mail_age(device_of(state.device).kernels, clock, seconds_per_tick, frequency)
        else:
            dt = seconds_of(rows.mail_t - rows.last_update, seconds_per_tick)
            age = self.time(dt.to(state.dtype))
        given = self.time_proj(age, prior=self.state_proj(state))
        has_mail = clock[:, HAS_MAIL : HAS_MAIL + 1]
        if self.memory_proj is None:
            return torch.where(has_mail != 0, torch.tanh(given), rows.memory)
        return gru_step(given, self.memory_proj(rows.memory), rows.memory, has_mail)
