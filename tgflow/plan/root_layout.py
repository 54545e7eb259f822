"""The roots of a batch as one piece of memory: filled on the host, copied, and read in place."""

from __future__ import annotations

import torch
from torch import Tensor

from tgflow.keys import KeyDomain, derive_key
from tgflow.plan.assembly import RootColumns
from tgflow.plan.spec import PlanSpec, Roots, for_each_negative
from tgflow.sampling import Frontier
from tgflow.units import INT64_MAX

_PARAMS = 3
"""Of a hop: the cut-off of all queries, the key of its draws and how many queries are in use."""
_TWO_TO_63 = 1 << 63


class RootLayout:
    """Where the columns of roots are in int64 of `num_bytes`, for plans like one and sizes alike.

    What changes from batch to batch is all in it, so that work on it can be captured and replayed.

    Args:
        spec: The plan.
        roots: As many events and negatives as all that are packed.
    """

    def __init__(self, spec: PlanSpec, roots: Roots) -> None:
        self._spec = spec
        num, num_queries = len(roots.host.eid), len(roots.queries)
        num_params = _PARAMS * len(spec.fanouts)
        self._sizes = [num, num, *[num_queries] * 3, len(roots.counts), 1, num_params]
        self.num_bytes = 8 * sum(self._sizes)

    def pack(self, roots: Roots, room: Tensor) -> None:
        """Write the columns of roots to host memory, int64."""
        host, queries = roots.host, roots.queries
        assert queries.position is not None
        words = torch.tensor([host.begin, *self._params(roots)])
        columns = [host.eid, host.t, queries.nodes, queries.t, queries.position]
        torch.cat([*columns, roots.counts, words], out=room)

    def _params(self, roots: Roots) -> list[int]:
        """Return what the samplers of all hops read, one after the other."""
        limit = roots.host.end if self._spec.sees_all_before else INT64_MAX
        keys = [derive_key(roots.key, KeyDomain.HOP + h) for h in range(len(self._spec.fanouts))]
        signed = [key - 2 * _TWO_TO_63 if key >= _TWO_TO_63 else key for key in keys]
        return [word for key in signed for word in (limit, key, INT64_MAX)]

    def columns(self, roots: Roots, room: Tensor) -> RootColumns:
        """Return the columns in a piece of memory, as views of it.

        Args:
            roots: For their sizes alone.
            room: int64: packed, or a copy of what was.
        """
        eid, t, nodes, query_t, position, counts, begin, params = torch.split(room, self._sizes)
        src, dst, rest = roots.split(nodes)
        own = for_each_negative(src, rest.shape[2])
        return RootColumns(
            eid=eid,
            src=src,
            dst=dst,
            t=t,
            negative_src=own if roots.negatives.own_sources else rest[1],
            negative_dst=rest[0],
            queries=Frontier(nodes, query_t, position),
            begin=begin,
            counts=counts,
            params=params.view(-1, _PARAMS),
        )
