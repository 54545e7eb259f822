"""Gradients, marks and loss of a part of an update as one vector, to be added to other parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Leaves:
    """Turns the gradients of a backward pass into a *leaf*, float `[size]`, and a sum back.

    A leaf has the gradients of all parameters, concatenated, zeros where there is none; then the
    marks, 1 where one is set; then the loss, and whether a value is not finite. Marks are bool
    buffers that the forward pass in training may set but never clears: each slice sees those set
    before its batch and its own.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], marks: Sequence[Tensor], device: torch.device
    ) -> None:
        self._parameters, self._marks, self._device = parameters, marks, device
        self._sizes = [*(each.numel() for each in (*parameters, *marks)), 1, 1]
        self._dtype = parameters[0].dtype if parameters else torch.float64
        self._before = [each.clone() for each in marks]

    def none(self) -> Tensor:
        return torch.zeros(sum(self._sizes), dtype=self._dtype, device=self._device)

    def rewind(self) -> None:
        """Clear gradients, and reset marks to those before the batch."""
        for parameter in self._parameters:
            parameter.grad = None
        for mark, before in zip(self._marks, self._before, strict=True):
            mark.copy_(before)

    def leaf(self, loss: Tensor, is_lost: Tensor | bool) -> Tensor:
        """Return the leaf after a backward pass, with its part of the loss."""
        out = self.none()
        *places, loss_place, lost_place = torch.split(out, self._sizes)
        for place, source in zip(places, [*self._parameters, *self._marks], strict=True):
            column = source.grad if isinstance(source, nn.Parameter) else source
            if column is not None:
                place.copy_(column.reshape(-1))
        loss_place.copy_(loss.detach())
        lost_place.copy_(torch.as_tensor(is_lost))
        return out

    def spread(self, total: Tensor) -> tuple[Tensor, Tensor]:
        """Set gradients and marks from the sum of leaves; return loss and is_lost."""
        *places, loss, lost = torch.split(total, self._sizes)
        num = len(self._parameters)
        for place, parameter in zip(places[:num], self._parameters, strict=True):
            parameter.grad = place.view_as(parameter).to(parameter.dtype)
        for place, mark in zip(places[num:], self._marks, strict=True):
            mark.copy_(place.view_as(mark) > 0)
        return loss.squeeze(0), lost.squeeze(0) > 0
