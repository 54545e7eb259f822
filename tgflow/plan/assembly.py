"""From the roots of a batch to the batch, before its features are read: on the roots' device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.events import NO_NODE
from tgflow.plan.pending import PendingBatch, feature_inputs, pending_batch
from tgflow.plan.spec import PlanSpec, Roots
from tgflow.sampling import Frontier
from tgflow.sampling.expand import distinct
from tgflow.sampling.hops import Descent, Hops, HopWalk, descend, hop_by_hop


@dataclass(frozen=True, slots=True, eq=False)
class RootColumns:
    """The columns of `Roots` where a batch is prepared: those themselves, or copies on a GPU."""

    eid: Tensor
    src: Tensor
    dst: Tensor
    t: Tensor
    negative_src: Tensor
    negative_dst: Tensor
    queries: Frontier
    begin: Tensor | int
    """int64 `[1]`, or the number: where the batch starts in the log."""
    counts: Tensor
    """As `Roots.counts`."""
    params: Tensor | None
    """int64 `[H, 3]` on a GPU: what the samplers of each hop read, see `Queries`; or None."""

    @classmethod
    def on_host(cls, roots: Roots) -> RootColumns:
        """Return the columns as they are."""
        host, negatives = roots.host, roots.negatives
        events = host.eid, host.src, host.dst, host.t
        queries = roots.queries
        return cls(
            *events, negatives.src, negatives.dst, queries, host.begin, roots.counts, params=None
        )


def assemble_batch(spec: PlanSpec, roots: Roots, columns: RootColumns) -> PendingBatch:
    """Return the batch of `roots`, sampled where `columns` are. Does not synchronize."""
    frontier, how = _descent(spec, roots, columns)
    hops = descend(spec.graph, frontier, spec.fanouts, sampler=spec.sampler, **how)
    return assemble_hops(spec, roots, columns, hops)


def walk_of(spec: PlanSpec, roots: Roots, columns: RootColumns) -> HopWalk:
    """Return the hops that `assemble_batch` takes, for whoever answers what they ask."""
    frontier, how = _descent(spec, roots, columns)
    graph = spec.graph
    return hop_by_hop(graph.seconds_per_tick, graph.gpu, frontier, spec.fanouts, **how)


def _descent(spec: PlanSpec, roots: Roots, columns: RootColumns) -> tuple[Frontier, Descent]:
    """Return the top frontier of a batch, and how hops lead down from it."""
    if spec.with_nodes:
        frontier, row = distinct(columns.queries, spec.graph.gpu)
    else:
        row = columns.eid.new_empty(0)
        frontier = Frontier(row, row)
    how = Descent(
        rows=row, key=roots.key, as_of=roots.host.end if spec.sees_all_before else None,
        by_time=False, by_position=spec.with_memory, params=columns.params,
    )  # fmt: skip
    return frontier, how


def assemble_hops(spec: PlanSpec, roots: Roots, columns: RootColumns, hops: Hops) -> PendingBatch:
    """Return the batch of `roots` and of the hops that were found. Does not synchronize."""
    graph, host, row = spec.graph, roots.host, hops.roots
    inputs = hops.inputs
    batch = Batch(
        epoch=roots.epoch,
        index=roots.index,
        num_new=roots.num_new,
        seconds_per_tick=graph.seconds_per_tick,
        eid=columns.eid,
        src=columns.src,
        dst=columns.dst,
        t=columns.t,
        host=host,
        x=None,
        negative_src=columns.negative_src,
        negative_dst=columns.negative_dst,
        **roots.rows(row),
        blocks=hops.blocks,
        nodes=inputs.nodes if inputs.num_used is None else inputs.nodes.clamp(min=0),
        position=_positions(inputs, columns.begin, spec.with_memory)
        if spec.with_nodes
        else _starts(roots, columns),
        counts=spec.counts.read(columns.counts, 1 + roots.negatives.dst.shape[1]),
        num_fallbacks=roots.negatives.num_fallbacks,
        slice=roots.slice,
        targets=None,
    )
    node_rows = None if graph.node_x is None else graph.node_rows(inputs.nodes)
    with_edges = graph.edge_x is not None
    num_used = [each.num_used for each in hops.frontiers if each.num_used is not None]
    return pending_batch(
        batch, with_edges=with_edges, node_rows=node_rows, gpu=graph.gpu, num_used=num_used
    )


def _starts(roots: Roots, columns: RootColumns) -> Tensor:
    """Return where the batch of each event started, of a plan without a frontier."""
    assert columns.queries.position is not None
    return columns.queries.position[: len(roots.host.eid)]


def _positions(inputs: Frontier, begin: Tensor | int, with_memory: bool) -> Tensor:
    """Return as of which log position each input row reads memory; padding as of `begin`."""
    if inputs.position is None or not with_memory:
        if isinstance(begin, int):
            return torch.full_like(inputs.nodes, begin)
        return begin.expand_as(inputs.nodes).contiguous()
    if inputs.num_used is None:
        return inputs.position
    return torch.where(inputs.nodes == NO_NODE, begin, inputs.position)


def with_features(spec: PlanSpec, batch: PendingBatch) -> Batch:
    """Return a batch with the rows of all tables, gathered where the batch is."""
    rows = {each.name: each.gather(batch) for each in feature_inputs(spec.graph)}
    return batch.with_features(rows)
