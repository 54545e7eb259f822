"""What a trainer knows of a model: it scores batches, and it keeps what it has seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from tgflow.plan.batch import Batch
from tgflow.sampling import Strategy

if TYPE_CHECKING:
    from tgflow.nn.memory import NodeMemory


class Scores(NamedTuple):
    """Logits: the higher, the likelier the event."""

    positive: Tensor
    """float32 `[B]`: the batch's events."""
    negative: Tensor
    """float32 `[B, m]`: the events that did not happen."""


def node_features(batch: Batch, dim: int) -> Tensor | None:
    """Return the features of `batch.nodes`, float32 `[U, dim]`; None where a model has none.

    Raises:
        ValueError: If those of the batch have another width than the model's `dim`.
    """
    found = 0 if batch.node_x is None else batch.node_x.shape[1]
    if found != dim:
        raise ValueError(
            f"the model reads node features of width {dim}, the graph has {found}: make them agree "
            "with TemporalGraph(node_x=...) and the model's node_x_dim"
        )
    return batch.node_x


class TemporalModel(nn.Module):
    """A model that scores the events of a batch, and then may take them in.

    A trainer calls `forward`, learns from the scores or not, then calls `commit` on the same batch:
    predict, then learn, then store.
    """

    fanouts: tuple[int, ...]
    """Neighbors per hop the plan must sample, the roots' hop first; one block each."""
    strategy: Strategy
    """How the paper samples them; see `tgflow.sampling.Sampler`."""
    memory: NodeMemory | None
    """Per-node state, or None for a model that only reads the graph."""

    def forward(self, batch: Batch) -> Scores:
        """Return the logits of the batch's events and of their negatives; changes no state."""
        raise NotImplementedError

    def commit(self, batch: Batch) -> None:
        """Write what the batch's first `num_new` events change into `memory`, without gradients."""
