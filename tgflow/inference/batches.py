"""Batches of whatever is asked: the neighborhoods of any pairs, as a plan would make them."""

from __future__ import annotations

from collections.abc import Sequence

from tgflow.batch import Batch
from tgflow.graph import Neighbors
from tgflow.inference.queries import Fanout
from tgflow.inference.whole import all_neighbors
from tgflow.plan.assembly import assemble_hops, walk_of
from tgflow.plan.preparer import preparer_of, with_features
from tgflow.plan.spec import PlanSpec, Roots
from tgflow.sampling.hops import HopQueries, answer_walk
from tgflow.sampling.rows import sample_neighbors


class QueryBatches:
    """Makes batches of questions, where the graph is.

    Args:
        spec: What a plan would be; of its fan-outs only the number is read where some are "all".
        fanouts: Neighbors per hop.
    """

    def __init__(self, spec: PlanSpec, fanouts: Sequence[Fanout]) -> None:
        self._spec, self._fanouts = spec, tuple(fanouts)
        self._preparer = preparer_of(spec)

    def of_roots(self, roots: Roots) -> Batch:
        """Return the batch of what is asked.

        Raises:
            TooManyNeighbors: If the whole neighborhoods of these roots are too large.
        """
        if "all" not in self._fanouts:
            return self._preparer.of_roots(roots)
        columns, fanouts = self._preparer.columns(roots), iter(self._fanouts)
        hops = answer_walk(
            walk_of(self._spec, roots, columns), lambda asked: self.neighbors(asked, next(fanouts))
        )
        return with_features(self._spec, assemble_hops(self._spec, roots, columns, hops))

    def neighbors(self, asked: HopQueries, fanout: Fanout) -> Neighbors:
        """Return the neighbors of a hop's queries.

        Raises:
            TooManyNeighbors: If all are asked for, and they are too many.
        """
        spec = self._spec
        if fanout == "all":
            return all_neighbors(spec.graph, spec.sampler, asked)
        return sample_neighbors(
            spec.graph, spec.sampler, asked.nodes, asked.t, fanout,
            key=asked.key, as_of=asked.as_of, params=asked.params,
        )  # fmt: skip
