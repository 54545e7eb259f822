"""What a node's next property is like without a model: its last one, or their moving average."""

from __future__ import annotations

import torch
from torch import Tensor

WINDOW = 7
"""Of the moving average m <- ((w - 1) m + y) / w, as in TGB."""


class Forecasters:
    """The properties of nodes so far, followed in time.

    Args:
        num_nodes: Nodes, by numbers of their own.
        num_items: Width of a property.
    """

    def __init__(self, num_nodes: int, num_items: int) -> None:
        self._last = torch.zeros(num_nodes, num_items)
        self._average = torch.zeros(num_nodes, num_items)
        self._is_known = torch.zeros(num_nodes, dtype=torch.bool)

    def last(self, nodes: Tensor) -> Tensor:
        """Return the last property of each node, float `[N, num_items]`; zeros without any."""
        return self._last[nodes]

    def average(self, nodes: Tensor) -> Tensor:
        """Return the moving average of each node's properties, which begins with the first."""
        return self._average[nodes]

    def add(self, nodes: Tensor, y: Tensor) -> None:
        """Take in the properties of different nodes, float `[N, num_items]`, of one time."""
        average = ((WINDOW - 1) * self._average[nodes] + y) / WINDOW
        self._average[nodes] = average.where(self._is_known[nodes].unsqueeze(1), y)
        self._last[nodes] = y
        self._is_known[nodes] = True
