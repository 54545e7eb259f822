"""The rows that a node memory gives: the state of some nodes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

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
