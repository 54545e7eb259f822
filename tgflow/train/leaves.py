"""What slices of a batch add up: gradients, the loss, and whether something was not finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

_NUM_FIGURES = 2


class Figures(NamedTuple):
    """What the leaves of a batch came to, beside its gradient."""

    loss: Tensor
    """Float `[]`."""
    is_lost: Tensor
    """bool `[]`: whether a loss or score of any slice was not finite."""


class Leaves:
    """Turns the gradients of a slice into a *leaf*, float `[size]`, and the sum of leaves back.

    A leaf has the gradients of all parameters, one after the other, zeros where there is none; then
    the marks, 1 where one is set; then the loss, and whether something is not finite.

    Args:
        parameters: Those that are learned.
        marks: bool buffers that training's forward may set, and never clears: each slice sees those
            set before its batch and those that it sets itself.
        device: Where they are.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], marks: Sequence[Tensor], device: torch.device
    ) -> None:
        self._parameters, self._marks, self._device = parameters, marks, device
        self._sizes = [each.numel() for each in (*parameters, *marks)]
        self.size = sum(self._sizes) + _NUM_FIGURES
        self.dtype = parameters[0].dtype if parameters else torch.float64
        self._before = [each.clone() for each in marks]

    def none(self) -> Tensor:
        """Return the leaf of a slice without rows."""
        return torch.zeros(self.size, dtype=self.dtype, device=self._device)

    def rewind(self) -> None:
        """Have no gradients, and the marks that were set before the batch."""
        for parameter in self._parameters:
            parameter.grad = None
        for mark, before in zip(self._marks, self._before, strict=True):
            mark.copy_(before)

    def leaf(self, loss: Tensor, is_lost: Tensor | bool) -> Tensor:
        """Return the leaf of a slice, behind its backward pass.

        Args:
            loss: float `[]`: its part of the batch's loss.
            is_lost: Whether it, or a score, is not finite; bool `[]` on a device.
        """
        out = self.none()
        *places, loss_place, lost_place = torch.split(out, [*self._sizes, 1, 1])
        pairs = zip(places, [*self._parameters, *self._marks], strict=True)
        for place, source in pairs:
            column = source.grad if isinstance(source, nn.Parameter) else source
            if column is not None:
                place.copy_(column.reshape(-1))
        loss_place.copy_(loss.detach())
        lost_place.copy_(torch.as_tensor(is_lost))
        return out

    def spread(self, total: Tensor) -> Figures:
        """Give parameters their gradients, and set marks, as the sum of all leaves has them."""
        *places, loss, lost = torch.split(total, [*self._sizes, 1, 1])
        num = len(self._parameters)
        for place, parameter in zip(places[:num], self._parameters, strict=True):
            parameter.grad = place.view_as(parameter).to(parameter.dtype)
        for place, mark in zip(places[num:], self._marks, strict=True):
            mark.copy_(place.view_as(mark) > 0)
        return Figures(loss.squeeze(0), lost.squeeze(0) > 0)
