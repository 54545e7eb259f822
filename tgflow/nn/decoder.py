"""Link decoder: the embeddings of two nodes to the logit of an event between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tgflow.base.choices import Loss, PairGroup
from tgflow.graph.batch import Batch
from tgflow.graph.counts import Number
from tgflow.nn._native import gather_rows
from tgflow.nn.groups import recency_weights
from tgflow.nn.layers import init_split
from tgflow.nn.linear import Linear, product
from tgflow.nn.model import Scores
from tgflow.nn.pairs import PairFeatures, Pairs

if TYPE_CHECKING:
    from tgflow.cuda.row_lists import RowLists

PAIR_GAIN, SKIP_GAIN = 4.0, 60.0
"""Factors of W_pair and w_skip, which scale their Adam steps relative to those of embeddings: a
stream is learned once, and the history of pairs is known from its first events on. A linear map of
the features alone has an AP of 0.950, 0.955 and 0.957 over CollegeMsg under factors of 1, 10 and
30; with the hidden layer, 0.959 under 60, and 0.961 where it starts by recency."""


class LinkDecoder(nn.Module):
    """w2 relu(W1 [z_src | z_dst] + b1) + b2, split as W_src z_src + W_dst z_dst.

    The two products are made once per row of the frontier or once per pair, whichever are fewer: a
    hundred negatives an event cost a hundred additions, not a hundred products. On the CPU, where
    the check does not synchronize, negatives that have their event's source share its product.

    With features of pairs a third product, 4 W_pair f(src, dst), is added to these, and 60 (w_skip
    f(src, dst) + b_skip) to the logit. The latter starts as `recency_weights`: an untrained
    decoder ranks pairs about as a recency heuristic. See `PAIR_GAIN` and `SKIP_GAIN`.

    Args:
        dim: Width of an embedding.
        hidden_dim: Width between the two maps; `dim` if None.
        pair_features: Groups of the exact history of each pair to read, see `PairFeatures`.
        num_relations: Size of a table of embeddings of relations, added before the relu; relation
            r has row r modulo this. 0: none.
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int | None = None,
        pair_features: Sequence[PairGroup] = (),
        num_relations: int = 0,
    ) -> None:
        super().__init__()
        self.dim = dim
        hidden_dim = dim if hidden_dim is None else hidden_dim
        self.src_proj = Linear(dim, hidden_dim)
        self.dst_proj = Linear(dim, hidden_dim, bias=False)
        self.out = Linear(hidden_dim, 1)
        init_split(self.src_proj, self.dst_proj)
        nn.init.xavier_normal_(self.out.weight)
        self.pair_features = PairFeatures(pair_features) if pair_features else None
        self.pair_proj = self.pair_skip = None
        if self.pair_features:
            self.pair_proj = Linear(self.pair_features.dim, hidden_dim, bias=False)
            self.pair_skip = Linear(self.pair_features.dim, 1)  # ranks pairs by recency at first
            with torch.no_grad():
                weights = torch.tensor(recency_weights(pair_features))
                self.pair_skip.weight.copy_(weights / SKIP_GAIN)
            nn.init.zeros_(self.pair_skip.bias)
        self.relations = nn.Embedding(num_relations, hidden_dim) if num_relations else None

    @property
    def counts(self) -> tuple[Number, ...]:
        """Counts required from the plan: a model lists them first in its own `counts`."""
        return () if self.pair_features is None else self.pair_features.counts

    @property
    def loss(self) -> Loss:
        """Loss to train with: with features of pairs one that ranks too, for the same negatives."""
        return "bce" if self.pair_features is None else "softmax+bce"

    def forward(self, z: Tensor, batch: Batch) -> Scores:
        """Return the logits of a batch's events and negatives.

        Args:
            z: Embeddings of the top frontier, float32 `[N, dim]`.
            batch: The events; an empty batch gives empty scores.

        Raises:
            ValueError: If features of pairs are read and the batch has no counts for them, or
                relations and it has none.
        """
        pairs = Pairs.of(batch)
        own, of_negatives = batch.src_row, batch.negative_src_row
        # not on a GPU, where the check would synchronize
        if own.is_cpu and torch.equal(own.unsqueeze(1).expand_as(of_negatives), of_negatives):
            event = torch.arange(len(own)).unsqueeze(1).expand(-1, 1 + of_negatives.shape[1])
            of_src = _mapped(self.src_proj, gather_rows(z, own), pairs.column(event))
        else:
            of_src = _mapped(self.src_proj, z, pairs.src_row, batch.src_lists)
        of_dst = _mapped(self.dst_proj, z, pairs.dst_row, batch.dst_lists)
        pair_x = None
        if self.pair_features and self.pair_proj:
            pair_x = self.pair_features(batch, pairs).to(z.dtype)
            pair_weight = PAIR_GAIN * self.pair_proj.weight.t()
        of_relation = None
        if self.relations is not None:
            if batch.relation is None:
                raise ValueError(
                    "the decoder embeds relations, and the events have none: name their column, or "
                    "give the relation of each pair, relation=... (--relation); or use "
                    "num_relations=0"
                )
            row = (batch.relation % self.relations.num_embeddings).unsqueeze(1)
            row = pairs.column(row.expand(-1, 1 + of_negatives.shape[1]))
            of_relation = _mapped(lambda rows: rows, self.relations.weight, row)
        logits, at_once = [], _AT_ONCE if own.is_cpu else max(pairs.num_pairs, 1)
        for start in range(0, max(pairs.num_pairs, 1), at_once):
            part = slice(start, start + at_once)
            hidden = of_src(part).add_(of_dst(part))
            if of_relation is not None:
                hidden = hidden.add_(of_relation(part))
            if pair_x is not None:
                hidden = product(pair_x[part], pair_weight, hidden)
            logits.append(self.out(hidden.relu_()).squeeze(-1))
            if pair_x is not None and self.pair_skip:
                logits[-1].add_(self.pair_skip(pair_x[part]).squeeze(-1), alpha=SKIP_GAIN)
        return pairs.scores(torch.cat(logits) if len(logits) > 1 else logits[0], batch)


_AT_ONCE = 16_384
"""Pairs whose rows stay in a CPU's cache from one operation to the next."""


def _mapped(
    linear: Callable[[Tensor], Tensor], z: Tensor, row: Tensor, lists: RowLists | None = None
) -> Callable[[slice], Tensor]:
    """Return a function of the products of some of the given rows of `z`: all if with `lists`."""
    if len(row) < len(z):
        return lambda part: linear(gather_rows(z, row[part], lists))
    mapped = linear(z)
    return lambda part: gather_rows(mapped, row[part], lists)
