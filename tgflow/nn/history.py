"""The overwritten versions of a node memory: a ring of rows, linked per node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

import torch
from torch import Tensor, nn

from tgflow.cuda.memory import RingBuffers

PREVIOUS, JUMP, DEPTH = range(3)
LINK_WIDTH = 3
NO_VERSION = -1


class VersionHistory(nn.Module):
    """The last `capacity` rows that were overwritten, over all nodes.

    Rows are numbered as they come; number n lies in slot n mod capacity until n + capacity comes.
    A row links to its node's previous one and, as in Myers' skew-binary lists (1983), to one much
    further back, so that a version is found in a number of steps logarithmic in those of its node.

    On a device kernels read and append (`tgflow.cuda.memory`), by the same links. The count of rows
    is there too, and the ring has all its room at once, so that nothing waits.

    Args:
        capacity: Rows to keep, at least 1.
        width: Columns of a row.
        clock_width: Columns of its clock; the last is the log position from which it held.
    """

    rows: Tensor
    clock: Tensor
    link: Tensor
    head: Tensor
    counter: Tensor
    """int64 `[]`: `next`, of a history on a device."""

    def __init__(self, capacity: int, width: int, clock_width: int) -> None:
        super().__init__()
        self.capacity = capacity
        self._next = 0
        self._on_host = True
        self.register_buffer("rows", torch.zeros(0, width), persistent=False)
        int_table = torch.zeros(0, clock_width, dtype=torch.int64)
        self.register_buffer("clock", int_table, persistent=False)
        self.register_buffer("link", int_table.new_zeros(0, LINK_WIDTH), persistent=False)
        self.register_buffer("head", int_table.new_full((0,), NO_VERSION), persistent=False)
        self.register_buffer("counter", int_table.new_zeros(()), persistent=False)

    @property
    def next(self) -> int:
        """The number of the next row. Synchronizes with a device."""
        return self._next if self._on_host else int(self.counter)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move to another device, the count of rows included."""
        self._set_next(self.next)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._on_host = self.rows.device.type == "cpu"
        if not self._on_host:
            self._reserve(self.capacity)
        return self

    def _set_next(self, number: int) -> None:
        self._next = number
        self.counter.fill_(number)

    def __len__(self) -> int:
        return min(self.next, self.capacity)

    def with_capacity(self, capacity: int) -> VersionHistory:
        """Return a history of the same rows, or of the last `capacity` of them, numbered from 0."""
        other = VersionHistory(capacity, self.rows.shape[1], self.clock.shape[1])
        other.to(self.rows.device)
        size = min(len(self), capacity)
        first = self.next - size
        other._set_next(size)
        other._reserve(size)
        slot = torch.arange(first, self.next, device=self.rows.device) % self.capacity
        for name in ("rows", "clock", "link"):
            getattr(other, name)[:size] = getattr(self, name).index_select(0, slot)
        other.head = self.head.clone()
        for numbers in (other.head, other.link[:size, PREVIOUS], other.link[:size, JUMP]):
            numbers.copy_(torch.where(numbers < first, NO_VERSION, numbers - first))
        return other

    def resize(self, num_nodes: int) -> None:
        """Make room for `num_nodes` nodes; never shrinks."""
        head = self.head.new_full((num_nodes,), NO_VERSION)
        head[: len(self.head)] = self.head
        self.head = head

    def ring_buffers(self) -> RingBuffers:
        """Return the tensors of a history on a device, which kernels read and append to."""
        return RingBuffers(self.rows, self.clock, self.link, self.head, self.counter, self.capacity)

    def reset(self) -> None:
        """Forget all rows."""
        self._set_next(0)
        self.head.fill_(NO_VERSION)

    def append(self, nodes: Tensor, rows: Tensor, clock: Tensor) -> None:
        """Keep a row of each of some distinct nodes; of more than `capacity`, the last ones.

        For a history on the CPU.

        Args:
            nodes: int64 `[R]`.
            rows: float32 `[R, width]`.
            clock: int64 `[R, clock_width]`; positions above those kept of the same node.
        """
        nodes, rows, clock = (
            nodes[-self.capacity :],
            rows[-self.capacity :],
            clock[-self.capacity :],
        )
        if len(nodes) == 0:
            return
        self._reserve(self._next + len(nodes))
        number = torch.arange(self._next, self._next + len(nodes))
        slot = number % self.capacity
        link = self._links(self.head.index_select(0, nodes))  # reads rows that are now written over
        self.rows.index_copy_(0, slot, rows)
        self.clock.index_copy_(0, slot, clock)
        self.link.index_copy_(0, slot, link)
        self.head.index_copy_(0, nodes, number)
        self._next += len(nodes)

    def _links(self, previous: Tensor) -> Tensor:
        """Return the links of rows that come after rows `previous` (numbers, int64 `[R]`)."""
        depth, jump = self._step(previous, DEPTH), self._step(previous, JUMP)
        far_depth, far = self._step(jump, DEPTH), self._step(jump, JUMP)
        balanced = (depth - far_depth == far_depth - self._step(far, DEPTH)) & (far != NO_VERSION)
        return torch.stack([previous, torch.where(balanced, far, previous), depth + 1], dim=1)

    def _step(self, number: Tensor, column: int) -> Tensor:
        """Return a link of rows, `NO_VERSION` (depth 0) for those that are none or have left."""
        kept = self._is_kept(number)
        link = self.link[:, column].index_select(0, torch.where(kept, number % self.capacity, 0))
        return torch.where(kept, link, 0 if column == DEPTH else NO_VERSION)

    def _is_kept(self, number: Tensor) -> Tensor:
        return number >= max(self._next - self.capacity, 0)

    def read(self, nodes: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Return the latest kept version at or before each position, zeros where there is none.

        For a history on the CPU.

        Args:
            nodes: int64 `[Q]`.
            position: int64 `[Q]`, below that of the node's current version.

        Returns:
            Rows, float32 `[Q, width]`, and clocks, int64 `[Q, clock_width]`.
        """
        if len(self.rows) == 0:
            return self.rows.new_zeros(len(nodes), self.rows.shape[1]), self.clock.new_zeros(
                len(nodes), self.clock.shape[1]
            )
        slot = self._walk(nodes, position)
        missing = (slot == NO_VERSION).unsqueeze(1)
        slot = slot.clamp(min=0)
        rows = self.rows.index_select(0, slot).masked_fill_(missing, 0.0)
        return rows, self.clock.index_select(0, slot).masked_fill_(missing, 0)

    def _walk(self, nodes: Tensor, position: Tensor) -> Tensor:
        """Return the slot of each version, -1 where there is none."""
        number = self.head.index_select(0, nodes)
        while bool((late := self._is_later(number, position)).any()):
            jump = self._step(number, JUMP)
            jump = torch.where(self._is_later(jump, position), jump, self._step(number, PREVIOUS))
            number = torch.where(late, jump, number)
        return torch.where(self._is_kept(number), number % self.capacity, NO_VERSION)

    def _is_later(self, number: Tensor, position: Tensor) -> Tensor:
        kept = self._is_kept(number)
        slot = torch.where(kept, number % self.capacity, 0)
        return kept & (self.clock[:, -1].index_select(0, slot) > position)

    def _reserve(self, size: int) -> None:
        """Grow the ring, up to its capacity, so that `size` rows fit; slots do not move."""
        if len(self.rows) >= min(size, self.capacity):
            return
        slots = min(self.capacity, max(size, 2 * len(self.rows), 64))
        for name in ("rows", "clock", "link"):
            old = getattr(self, name)
            new = old.new_zeros(slots, old.shape[1])
            new[: len(old)] = old
            setattr(self, name, new)

    def state_dict(self, num_nodes: int) -> dict[str, Tensor]:  # type: ignore[override]
        """Return copies of the kept rows, in slot order, and of the links of `num_nodes` nodes."""
        size = len(self)
        state = {name: getattr(self, name)[:size].clone() for name in ("rows", "clock", "link")}
        return state | {
            "head": self.head[:num_nodes].clone(),
            "next": torch.tensor([self.next, self.capacity]),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:  # type: ignore[override]
        """Become what `state_dict` returned of a history of the same capacity."""
        self.reset()
        self._reserve(len(state["rows"]))
        for name in ("rows", "clock", "link", "head"):
            table = getattr(self, name)
            table[: len(state[name])] = state[name].to(table.device)
        self._set_next(int(state["next"][0]))
