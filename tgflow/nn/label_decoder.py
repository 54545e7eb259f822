"""Label decoder: the embeddings of an event's two nodes to the logits of its label."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tgflow.graph.batch import Batch
from tgflow.nn._native import gather_rows
from tgflow.nn.layers import init_split
from tgflow.nn.linear import Linear

NUM_PASTS = 4
"""Lists of earlier labels: see `tgflow.graph.batch.Targets.past`."""
COPY_GAIN = 10.0
"""Factor of the weights of copies, which scales their Adam steps relative to others."""
_COPIED = (2.0, 0.5, 1.0, 0.5)
"""Initial weight of the newest label of each list in the logit of its class, halved per earlier
label: an untrained decoder predicts about the pair's last label."""
_FADING = 0.7
"""Decay per earlier label in the sum of their embeddings."""


_LARGEST = 65_504.0
"""The largest float16."""


class LabelDecoder(nn.Module):
    """W2 relu(W_src z_src + W_dst z_dst + W_x x + W_age age + sum of E_past + b1) + b2 + copies.

    The event's own features enter as sign(x) log(1 + |x|), so that amounts may have any size. A
    copy adds a trained weight to the logit of the class of an earlier label: without copies a
    decoder loses to the last-label baseline, even with good embeddings. W2 and b2 start at zero, so
    that an untrained decoder is that baseline.

    Args:
        dim: Width of an embedding.
        num_classes: Classes, at least 2.
        x_dim: Width of the events' own features, 0 if they are not read.
        reads_dst: Whether to read the destination's embedding: not for labels of sources.
        depth: Earlier labels of each list.
    """

    def __init__(
        self, dim: int, num_classes: int, *, x_dim: int = 0, reads_dst: bool = True, depth: int
    ) -> None:
        super().__init__()
        self.keep: Callable[[Tensor, Batch], Tensor] | None = None
        """`inputs`, for scores in evaluation mode to include them; None: they do not."""
        self._widths = [dim, dim if reads_dst else 0, x_dim, NUM_PASTS]
        self.src_proj = Linear(dim, dim)
        self.dst_proj = Linear(dim, dim, bias=False) if reads_dst else None
        self.x_proj = Linear(x_dim, dim, bias=False) if x_dim else None
        init_split(self.src_proj, self.dst_proj, self.x_proj)
        self.age_proj = Linear(NUM_PASTS, dim, bias=False)
        self.past = nn.Embedding(NUM_PASTS * (num_classes + 1), dim)
        nn.init.normal_(self.past.weight, std=0.1)
        self.out = Linear(dim, num_classes)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        fading = 0.5 ** torch.arange(depth)
        self.copy = nn.Parameter(torch.tensor(_COPIED).unsqueeze(1) * fading / COPY_GAIN)
        first = (num_classes + 1) * torch.arange(NUM_PASTS).unsqueeze(1) + 1
        self.register_buffer("_first_row", first, persistent=False)
        fades = (_FADING ** torch.arange(depth)).repeat(NUM_PASTS)
        self.register_buffer("_fades", fades, persistent=False)

    _first_row: Tensor
    _fades: Tensor

    @property
    def width(self) -> int:
        return sum(self._widths)

    def forward(self, z: Tensor, batch: Batch) -> Tensor:
        """Return the logits `[B, num_classes]` of events, without reading their labels.

        `z` are embeddings of the top frontier, float32 `[N, dim]`.
        """
        return self._logits(*self._columns(z, batch), batch.targets.past)  # type: ignore[union-attr]

    def inputs(self, z: Tensor, batch: Batch) -> Tensor:
        """Return what `forward` reads beside the past, float16 `[B, width]`."""
        columns = [x for x in self._columns(z, batch) if x is not None]
        return torch.cat(columns, dim=1).clamp(-_LARGEST, _LARGEST).half()

    def decode(self, values: Tensor, past: Tensor) -> Tensor:
        """Return the logits `[N, num_classes]` of kept `inputs` and classes of earlier labels."""
        src, dst, x, age = torch.split(values.float(), self._widths, dim=1)
        return self._logits(src, dst, x, age, past.long())

    def _columns(
        self, z: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
        """Return embeddings of both nodes, own features and ages, as the layers read them."""
        assert batch.targets is not None
        src, dst, x = gather_rows(z, batch.src_row), None, None
        if self.dst_proj is not None:
            dst = gather_rows(z, batch.dst_row)
        if self.x_proj is not None:
            assert batch.x is not None
            x = batch.x.sign() * batch.x.abs().log1p()
        return src, dst, x, 0.1 * batch.targets.age

    def _logits(
        self, src: Tensor, dst: Tensor | None, x: Tensor | None, age: Tensor, past: Tensor
    ) -> Tensor:
        hidden: Tensor = self.src_proj(src)
        if self.dst_proj is not None:
            hidden = hidden + self.dst_proj(dst)
        if self.x_proj is not None:
            hidden = hidden + self.x_proj(x)
        rows = (past + self._first_row).flatten(1)  # "no earlier label" has an embedding, too
        fades = self._fades.expand_as(rows)
        summed = F.embedding_bag(rows, self.past.weight, per_sample_weights=fades, mode="sum")
        hidden = hidden + self.age_proj(age) + summed
        logits: Tensor = self.out(hidden.relu())
        copies = (COPY_GAIN * self.copy).where(past >= 0, 0.0)
        return logits.scatter_add(1, past.clamp(min=0).flatten(1), copies.flatten(1))
