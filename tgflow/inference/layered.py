"""Embeddings layer by layer, of which only rows that were not computed before are computed."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tgflow.batch import Batch
from tgflow.inference.batches import QueryBatches
from tgflow.inference.memo import Memo
from tgflow.inference.parts import in_parts
from tgflow.inference.queries import Fanout
from tgflow.inference.whole import MAX_SLOTS
from tgflow.model import TemporalModel
from tgflow.plan.assembly import RootColumns, assemble_hops
from tgflow.plan.layer_inputs import node_features, with_event_features
from tgflow.plan.preparer import with_features
from tgflow.plan.spec import PlanSpec, Roots
from tgflow.sampling import Hops
from tgflow.sampling.expand import Frontier, distinct, expand
from tgflow.sampling.hops import HopQueries

_WHOLE_AT_ONCE = 256
"""Rows whose whole neighborhoods are looked up together: as wide as the longest of them."""


class LayeredEncoder:
    """Embeds by the layers of a model, on the CPU, with a memo of each layer's rows.

    Args:
        spec: As `QueryBatches` takes it.
        model: Names its `embedding_layers`.
        fanouts: Neighbors per hop.
        memo: Rows that were computed.
    """

    def __init__(
        self, spec: PlanSpec, model: TemporalModel, fanouts: Sequence[Fanout], memo: Memo
    ) -> None:
        self._spec, self._graph = spec, spec.graph
        self._layers = tuple(model.embedding_layers())
        self._fanouts, self._memo = tuple(fanouts), memo
        self._batches = QueryBatches(spec, fanouts)

    def encode(self, roots: Roots, stamp: int) -> tuple[Batch, Tensor]:
        """Return the batch of what is asked, which has no blocks, and its rows' embeddings.

        Args:
            roots: What is asked.
            stamp: Of the parameters and the past, see `Stamps`.
        """
        targets, row = distinct(roots.queries, None)
        columns = RootColumns.on_host(roots)
        pending = assemble_hops(self._spec, roots, columns, Hops(row, (targets,), ()))
        return with_features(self._spec, pending), self._rows(0, targets, stamp)

    def _rows(self, layer: int, targets: Frontier, stamp: int) -> Tensor:
        """Return a layer's rows of its targets, float32 `[N, dim]`."""
        keys = self._memo.keys(targets)
        found, missing = self._memo.find(stamp, layer, keys)
        if found is not None and not len(missing):
            return found

        def made(rows: slice) -> Tensor:
            at = missing[rows]
            computed = self._computed(layer, targets.some(at), stamp)
            self._memo.add(stamp, layer, keys.some(at), computed)
            return computed

        fanout = self._fanouts[layer]
        at_once = _WHOLE_AT_ONCE if fanout == "all" else max(1, MAX_SLOTS // (1 + fanout))
        computed = in_parts(len(missing), at_once, made)
        return computed if found is None else found.index_copy_(0, missing, computed)

    def _computed(self, layer: int, targets: Frontier, stamp: int) -> Tensor:
        fanout, is_lowest = self._fanouts[layer], layer + 1 == len(self._layers)
        asked = HopQueries(
            targets.nodes, targets.t, 0, key=0, as_of=targets.position, out=None, params=None
        )
        neighbors = self._batches.neighbors(asked, fanout)
        block, below = expand(
            targets, neighbors, self._graph.seconds_per_tick, None,
            by_time=not is_lowest, by_position=not is_lowest,
        )  # fmt: skip
        if is_lowest:
            h = node_features(self._graph, below.nodes)
        else:
            h = self._rows(layer + 1, below, stamp)
        computed: Tensor = self._layers[layer](h, with_event_features(self._graph, block))
        return computed
