"""The best of many candidates, found block by block."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tgflow.describe import described


@described
class Ranking(NamedTuple):
    """The candidates with the highest scores, best first.

    Example:
        >>> best = tg.Inference(tg.TGAT(), graph).rank(torch.tensor([0]), t=50, k=2)
        >>> sorted(best.nodes[0].tolist()), bool(best.scores[0, 0] >= best.scores[0, 1])
        ([2, 3], True)
    """

    nodes: Tensor
    """int64 `[B, k]`."""
    scores: Tensor
    """Float `[B, k]`, on the model's device; of equal scores, the earlier candidate comes first."""

    def merged(self, nodes: Tensor, scores: Tensor, k: int) -> Ranking:
        """Return the best `k` of these and of later candidates, `[B, n]` each."""
        nodes = torch.cat([self.nodes, nodes.to(self.nodes.device)], dim=1)
        ranked = torch.cat([self.scores, scores], dim=1).sort(dim=1, descending=True, stable=True)
        return Ranking(nodes.gather(1, ranked.indices[:, :k]), ranked.values[:, :k])
