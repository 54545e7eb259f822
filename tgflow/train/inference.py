"""Inference: embeddings, scores and rankings of any nodes and pairs, at any time and position."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tgflow.base.choices import Strategy
from tgflow.base.describe import described
from tgflow.base.units import INT64_MAX, INT64_MIN
from tgflow.graph import Neighbors, TemporalGraph
from tgflow.graph.batch import Batch, joined
from tgflow.graph.events import NO_EVENT, NO_NODE, NUM_RELATIONS
from tgflow.graph.sampling import Frontier
from tgflow.graph.sampling.expand import distinct
from tgflow.graph.sampling.hops import HopQueries, Hops, answer_walk
from tgflow.graph.strategies import Sampler, SamplerFunction
from tgflow.graph.stream_state import DeviceState, SpreadState
from tgflow.nn.attention import each_target_alone
from tgflow.nn.decoder import LinkDecoder
from tgflow.nn.model import Scores, TemporalModel, device_of_model
from tgflow.plan.assemble import assemble, walk_of
from tgflow.plan.draws import Roots
from tgflow.plan.negatives import NegativeSampler
from tgflow.plan.plan import Plan
from tgflow.train.tasks.labels import EventLabels


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


class _Asked(NamedTuple):
    """Pairs at times, as of log positions."""

    src: Tensor
    """int64 `[B]`; so are times and positions."""
    dst: Tensor
    """int64 `[B, n]`."""
    t: Tensor
    as_of: Tensor
    relation: Tensor | None = None

    def part(self, rows: slice, columns: slice = slice(None)) -> _Asked:
        some = None if self.relation is None else self.relation[rows]
        return _Asked(self.src[rows], self.dst[rows, columns], self.t[rows], self.as_of[rows], some)


@described
class Inference:
    """Computes embeddings, scores of pairs and rankings of destinations with a model and its graph.

    Results are as of a log position, by default the end of the log: neighbors, counts of past
    events and node memory come from the events before it. A query also reads only events strictly
    before its time. On the CPU the bits of a result do not depend on the other queries of a call.
    The two numbers after the graph's nodes, `num_nodes` and the next, are nodes without events.
    With the model's own fan-outs and deterministic sampling a result is that of a trainer's
    `predict`, but for rounding where `predict` projects neighbors once for many targets: as of a
    batch's start with `visibility="batch"`; of its end, or of each event itself, with "event".

    Thread-safe, also while another thread appends to the graph or trains the model: a query waits
    for the end of a trainer's micro-batch, and the next one for the query. Models without state
    serve threads concurrently, models with state one after the other.

    Queries put the model in evaluation mode and change nothing else: a run with queries ends with
    the bits of a run without.

    Args:
        model: Any model; a model without `embed` only scores pairs.
        graph: The training graph, or another one with features of the same widths.
        fanouts: Neighbors per hop, from the queries down, or "all" for a hop or for all of them:
            whole neighborhoods. None: the model's own; many models take no others.
        strategy: Sampling strategy; None: the model's.
        span: Ticks: the width of strategy `window`, the half-life of `decayed`.
        seed: Seed of random strategies; equal calls at one position draw the same neighbors.
        max_pairs: Pairs to score, or nodes to embed, at once: larger calls are split.

    Raises:
        TypeError: If a fan-out is neither a whole number nor "all".
        ValueError: If the model does not take such fan-outs, or an argument is out of range.

    Example:
        >>> engine = tg.Inference(tg.TGAT(), graph)
        >>> engine.score(torch.tensor([0]), torch.tensor([2]), t=50).shape
        torch.Size([1])
        >>> best = engine.rank(torch.tensor([0]), t=50, k=2)
        >>> best.nodes.shape, best.scores.shape
        (torch.Size([1, 2]), torch.Size([1, 2]))
    """

    def __init__(
        self,
        model: TemporalModel,
        graph: TemporalGraph,
        fanouts: Sequence[Fanout] | Literal["all"] | None = None,
        *,
        strategy: Strategy | SamplerFunction | None = None,
        span: int | None = None,
        seed: int = 0,
        max_pairs: int = 20_000,
    ) -> None:
        if max_pairs < 1:
            raise ValueError(f"max_pairs must be at least 1, got {max_pairs}")
        if isinstance(model.state, SpreadState):
            raise ValueError(
                "the model's memory is sharded over ranks; use a model with all of it, such as one "
                "loaded from the run's checkpoint"
            )
        self.model, self.graph = model, graph
        self.fanouts = checked_fanouts(model, fanouts)
        self.max_pairs = max_pairs
        self._plan = Plan(
            graph,
            seed=seed,
            batch_size=1,
            fanouts=[1 if k == "all" else k for k in self.fanouts],
            strategy=strategy or model.strategy,
            span=span,
            visibility="batch",
            negatives=NegativeSampler(random=1),
            with_memory=model.state is not None,
            counts=model.counts,
            counts_dtype=model.counts_dtype,
        )
        state = model.state
        self._covered = state if isinstance(state, DeviceState) else None
        self._new = threading.local()

    def _facts(self) -> dict[str, object]:
        return {
            "model": type(self.model).__name__,
            "graph": self.graph,
            "fanouts": self.fanouts,
            "max_pairs": self.max_pairs,
        }

    def embed(self, nodes: Tensor, t: Tensor | int, *, as_of: Tensor | int | None = None) -> Tensor:
        """Return the embeddings of nodes at times; does not synchronize.

        Args:
            nodes: int64 `[B]`.
            t: Ticks, one for all or int64 `[B]`: only earlier events are visible.
            as_of: Log positions, one for all or int64 `[B]`: only events before are visible. None:
                all events in the graph.

        Returns:
            Float `[B, dim]`, on the model's device.

        Raises:
            IndexError: If the graph has no such node.
            TypeError: If an argument is not a tensor.
            ValueError: If the model defines no `embed`, an argument has another dtype or shape, the
                log has fewer events, or the model's memory does not reach back so far.
        """
        name = type(self.model).__name__
        if type(self.model).embed is TemporalModel.embed:
            raise ValueError(f"{name} defines no embed; use score or rank")
        nodes = checked_nodes("nodes", nodes, self.graph, 1)
        with self._asking():
            asked = self._asked(nodes, nodes.unsqueeze(1), t, as_of)
            return self._rows_of(Frontier(nodes, asked.t, asked.as_of))

    def score(
        self,
        src: Tensor,
        dst: Tensor,
        t: Tensor | int,
        *,
        as_of: Tensor | int | None = None,
        relation: Tensor | int | None = None,
    ) -> Tensor:
        """Return the logits of events; higher is likelier. Does not synchronize.

        Args:
            src: int64 `[B]`.
            dst: int64 `[B]`, or `[B, n]` for several destinations each.
            t: As in `embed`.
            as_of: As in `embed`.
            relation: Relations of the events, one for all or int64 `[B]`; None without.

        Returns:
            Float of the shape of `dst`, on the model's device.

        Raises:
            IndexError: As `embed`.
            TypeError: As `embed`.
            ValueError: As `embed`; or events have been deleted, and the model counts them; or it
                counts relations, and none are given.
        """
        src = checked_nodes("src", src, self.graph, 1)
        dst = checked_nodes("dst", dst, self.graph, 1, 2)
        if len(dst) != len(src):
            raise ValueError(
                f"dst must have the destinations of each of {len(src)} sources, "
                f"got {list(dst.shape)}"
            )
        with self._asking():
            pairs = dst if dst.dim() == 2 else dst.unsqueeze(1)
            asked = self._asked(src, pairs, t, as_of, relation)
            if not dst.numel():
                return torch.empty(dst.shape, device=device_of_model(self.model))
            return self._scored(asked).view(dst.shape)

    def score_events(
        self,
        src: Tensor,
        dst: Tensor,
        t: Tensor | int,
        x: Tensor | None,
        labels: EventLabels,
        *,
        as_of: Tensor | int | None = None,
        relation: Tensor | int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the logits of events that are not stored, and the logits of their labels.

        Args:
            src: int64 `[B]`.
            dst: int64 `[B]`.
            t: As in `embed`.
            x: The events' own features, scaled, float32 `[B, x_dim]`; None: the model's label
                decoder reads none.
            labels: Labels of the graph's events.
            as_of: As in `embed`.
            relation: As in `score`.

        Returns:
            Float `[B]` and `[B, num_classes]`, on the model's device.

        Raises:
            IndexError: As `embed`.
            TypeError: As `embed`.
            ValueError: As `score`; or the model predicts no labels.
        """
        if self.model.label_decoder is None:
            raise ValueError(f"{type(self.model).__name__} predicts no labels: it has no task")
        src = checked_nodes("src", src, self.graph, 1)
        dst = checked_nodes("dst", dst, self.graph, 1)
        with self._asking():
            asked = self._asked(src, dst.unsqueeze(1), t, as_of, relation)

            def scored(rows: slice) -> Tensor:
                batch = self._batch(asked.part(rows))
                own = batch.x if x is None else x[rows].to(batch.t.device)
                batch = labels.asked(replace(batch, x=own), asked.as_of[rows])
                with self._reading():
                    found = self.model(batch)
                assert found.classes is not None
                return torch.cat([found.positive.unsqueeze(1), found.classes], dim=1)

            columns = in_parts(len(src), self.max_pairs, scored)
        return columns[:, 0], columns[:, 1:]

    def rank(
        self,
        src: Tensor,
        t: Tensor | int,
        candidates: Tensor | None = None,
        k: int = 10,
        *,
        as_of: Tensor | int | None = None,
        relation: Tensor | int | None = None,
    ) -> Ranking:
        """Return the destinations of the likeliest events, best first.

        Args:
            src: int64 `[B]`.
            t: As in `embed`.
            candidates: int64 `[n]` for all sources, or `[B, n]`; each must occur once. None:
                all destinations of the events before the largest `as_of`.
            k: Number of destinations to return; all candidates, if there are fewer.
            as_of: As in `embed`.
            relation: As in `score`.

        Returns:
            `nodes` and `scores`, `[B, min(k, n)]`.

        Raises:
            IndexError: As `embed`.
            TypeError: As `embed`.
            ValueError: As `score`; or `k` is below 1, or there are no candidates.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        src = checked_nodes("src", src, self.graph, 1)
        if candidates is not None:
            candidates = checked_nodes("candidates", candidates, self.graph, 1, 2)
        with self._asking():
            asked = self._asked(src, src.unsqueeze(1), t, as_of, relation)
            if not len(src):
                return Ranking(src.view(0, 0), torch.empty(0, 0))
            if candidates is None:
                candidates = self.destinations(as_of=int(asked.as_of.max()))
            if candidates.dim() == 1:
                candidates = candidates.expand(len(src), -1)
            if len(candidates) != len(src) or not candidates.numel():
                raise ValueError(
                    f"candidates must be at least one for each of {len(src)} sources, [n] or "
                    f"[B, n], got {list(candidates.shape)}; without any they are the destinations "
                    "of the events before as_of"
                )
            return self._ranked(asked._replace(dst=candidates), k)

    def neighborhood(
        self, src: int, dst: int, t: int, *, as_of: int | None = None, relation: int | None = None
    ) -> Tensor:
        """Return the events that the model reads around a pair, its neighbors in all hops.

        Args:
            src: A node.
            dst: A node.
            t: A tick: only earlier events are visible.
            as_of: A log position; None: all events in the graph.
            relation: Relation of the event; None without.

        Returns:
            Distinct log positions, int64 `[n]` on the CPU, latest first.

        Raises:
            IndexError: As `embed`.
            ValueError: As `score`.
        """
        with self._asking():
            return events_of(self._batch(self._pair(src, dst, t, as_of, relation)))

    def score_without(
        self,
        src: int,
        dst: int,
        t: int,
        without: Sequence[Tensor | Literal["all"]],
        *,
        forgets: Sequence[bool] | None = None,
        change: Callable[[Batch, slice], Batch] = lambda batch, rows: batch,
        read: Callable[[Scores], Tensor] = lambda found: found.positive,
        as_of: int | None = None,
        relation: int | None = None,
    ) -> Tensor:
        """Return the logits of one pair under several changes of its history.

        Where the strategy is `recent`, the next older events take the place of the neighbors that
        are left out. The model's own state is not changed: a memory keeps what it has learned.

        Args:
            src: A node.
            dst: A node.
            t: A tick: only earlier events are visible.
            without: For each change, log positions of events that are no neighbors, int64 `[n]`; or
                "all": no neighbors at all.
            forgets: For each change, whether the model's state is read as that of nodes without
                events; None: of none.
            change: Returns the batch of a slice of the changes with other inputs, such as counts.
            read: Returns the logits from scores, `[B, ...]`.
            as_of: A log position; None: all events in the graph.
            relation: As in `neighborhood`.

        Returns:
            Float64 `[len(without), ...]` on the CPU.

        Raises:
            IndexError: As `embed`.
            ValueError: As `score`; or a fan-out is "all".
        """
        if "all" in self.fanouts:
            raise ValueError(
                f"neighbors can be left out of fan-outs that are numbers, got {self.fanouts}"
            )
        if not len(without):
            return torch.empty(0, dtype=torch.float64)
        with self._asking():
            pair = self._pair(src, dst, t, as_of, relation)
            whole = self._batch(pair)
            sampled, ends = events_of(whole), whole.nodes.new_tensor([src, dst])
            has_all = any(isinstance(each, str) for each in without)
            alone = self._batch(pair, without="all") if has_all else whole
            new = self.graph.num_nodes + (src != dst) * (ends == dst).long()

            def changed(i: int) -> Batch:
                events = without[i]
                if not isinstance(events, Tensor):
                    batch = alone
                elif torch.isin(events, sampled).any():
                    batch = self._batch(pair, without=events)
                else:
                    batch = whole
                if forgets is None or not forgets[i]:
                    return batch
                nodes = batch.nodes
                for node, other in zip(ends, new, strict=True):
                    nodes = torch.where(batch.nodes == node, other, nodes)
                return replace(batch, nodes=nodes)

            def scored(rows: slice) -> Tensor:
                batch = change(joined([changed(i) for i in range(len(without))[rows]]), rows)
                with self._reading():
                    logits = read(self.model(batch))
                return logits.double().cpu()

            return in_parts(len(without), max(1, self.max_pairs // len(whole.nodes)), scored)

    def destinations(self, src: int | None = None, *, as_of: int | None = None) -> Tensor:
        """Return the default candidates of `rank`, or the destinations of one source.

        Args:
            src: Only events of this source count; None: all.
            as_of: A log position; None: all events in the graph.

        Returns:
            The destinations of the events before, in the order of their first, int64 `[n]`.

        Raises:
            IndexError: If the graph has no such node.
            ValueError: If the log has fewer events.
        """
        [latest] = checked_positions(as_of, 1, self.graph.num_events).tolist()
        pairs = self._plan.draws.pairs_at(latest).upto(latest, pairs=src is not None)
        if src is None:
            return pairs.destinations(latest)
        checked_nodes("src", torch.tensor([src]), self.graph, 1)
        return pairs.destinations_of(src, latest)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        # a state is read as of the graph's size, by one thread at a time
        model = self.model
        lock = model.lock.shared() if model.state is None else model.lock
        with lock, torch.no_grad(), each_target_alone():
            if self.model.training:  # a trainer sets it again
                self.model.eval()
            yield

    def _asked(
        self,
        src: Tensor,
        dst: Tensor,
        t: Tensor | int,
        as_of: Tensor | int | None,
        relation: Tensor | int | None = None,
    ) -> _Asked:
        size, most = len(src), NUM_RELATIONS - 1
        positions = checked_positions(as_of, size, self.graph.num_events)
        if relation is not None:
            relation = _column("relation", relation, size, 0, most, f"in [0, {most}]")
        return _Asked(src, dst, checked_times(t, size), positions, relation)

    def _pair(self, src: int, dst: int, t: int, as_of: int | None, relation: int | None) -> _Asked:
        ends = checked_nodes("src", torch.tensor([src]), self.graph, 1)
        others = checked_nodes("dst", torch.tensor([[dst]]), self.graph, 2)
        return self._asked(ends, others, t, as_of, relation)

    def _ranked(self, asked: _Asked, k: int) -> Ranking:
        width = max(1, RANKED_AT_ONCE // max(1, len(asked.src)))
        best: Ranking | None = None
        for nodes in torch.split(asked.dst, width, dim=1):
            scores = self._scored(asked._replace(dst=nodes))
            if best is None:
                best = Ranking(nodes[:, :0].to(scores.device), scores[:, :0])
            best = best.merged(nodes, scores, k)
        assert best is not None
        return best

    def _scored(self, asked: _Asked) -> Tensor:
        """Return the logits of pairs, `[B, n]`, computed in parts of at most `max_pairs`."""
        model, rows_of, num = self.model, None, max(1, asked.dst.shape[1])
        is_usual = type(model).forward is TemporalModel.forward
        if is_usual and isinstance(model.decoder, LinkDecoder):  # a row of a node for many pairs
            ends = torch.cat([asked.src.unsqueeze(1), asked.dst], dim=1)
            times, positions = (x.repeat_interleave(ends.shape[1]) for x in (asked.t, asked.as_of))
            top, row = distinct(Frontier(ends.flatten(), times, positions), None)
            row = row.view(ends.shape)
            rows_of = self._rows_of(top), row[:, 0], row[:, 1:]

        def in_block(rows: slice, columns: slice) -> Tensor:
            part = asked.part(rows, columns)
            if rows_of is None:
                batch = self._batch(part)
                with self._reading():
                    found = model(batch)
            else:
                z, src_row, dst_row = rows_of
                found = model.decoder(z, self._pairs(src_row[rows], dst_row[rows, columns], part))
            return torch.cat([found.positive.unsqueeze(1), found.negative], dim=1)

        width = min(self.max_pairs, num)

        def scored(rows: slice) -> Tensor:
            starts = range(0, num, width)
            blocks = [in_block(rows, slice(start, start + width)) for start in starts]
            return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1)

        return in_parts(len(asked.src), max(1, self.max_pairs // width), scored)

    def _rows_of(self, top: Frontier) -> Tensor:
        """Return the embeddings of nodes, each at a time as of a position, `[N, dim]`."""

        def embedded(rows: slice) -> Tensor:
            some = top.nodes[rows]
            assert top.position is not None
            at = top.t[rows], top.position[rows]
            batch = self._batch(_Asked(some, some.unsqueeze(1), *at, torch.zeros_like(some)))
            with self._reading():
                z = self.model.embed(batch).z
            return z.index_select(0, batch.src_row)

        return in_parts(len(top), self.max_pairs, embedded)

    def _pairs(self, src_row: Tensor, dst_row: Tensor, asked: _Asked) -> Batch:
        """Return the batch of some pairs, of given rows and without neighbors."""
        draws = self._plan.draws
        roots = self._plan.placed(draws.ask(*asked))
        rows = torch.cat([src_row, dst_row[:, 0], dst_row[:, 1:].reshape(-1)])
        none = roots.queries.nodes.new_empty(0)
        hops = Hops(rows.to(none.device), (Frontier(none, none, none),), ())
        return assemble(draws, roots, hops).batch.to(device_of_model(self.model))

    def _batch(self, asked: _Asked, without: Tensor | Literal["all"] | None = None) -> Batch:
        """Return the batch of some pairs, all of whose hops see the same graph."""
        while True:
            change = self.graph.last_change
            roots = self._plan.draws.ask(*asked)
            batch = query_batch(self._plan, self.fanouts, roots, without)
            if self.graph.last_change is change:
                break
        given, rows = getattr(self._new, "x", None), batch.node_x
        if given is not None and rows is not None:  # see `of_new`
            place = batch.nodes - self.graph.num_nodes
            own = given.to(rows.device)[place.clamp(0, NUM_NEW - 1)]
            batch = replace(batch, node_x=torch.where((place >= 0).unsqueeze(1), own, rows))
        batch = batch.to(device_of_model(self.model))
        self.model.check_widths(batch)
        return batch

    @contextmanager
    def of_new(self, x: Tensor | None) -> Iterator[None]:
        """Context manager in which nodes without events have features, in this thread.

        Args:
            x: As the model reads them, float32 `[2, node_x_dim]`: those of `num_nodes` and of the
                next; None: zeros.
        """
        self._new.x = x
        try:
            yield
        finally:
            self._new.x = None

    def _reading(self) -> AbstractContextManager[None]:
        """Return a context manager for reads of the state, which leave no trace in it."""
        state = self._covered
        return nullcontext() if state is None else state.covering(self.graph.num_nodes + NUM_NEW)


RANKED_AT_ONCE = 1 << 20
"""Pairs of a ranking whose scores are held at once; of one source, at least all."""
NUM_NEW = 2
"""Nodes without events that may be asked about beside the graph's: both ends of a pair."""
MAX_SLOTS = 1 << 23
"""Most slots of neighbors in a hop; each takes 37 bytes, plus the model's activations."""
_FEW = 16


def check_reach(model: TemporalModel, cut: int) -> None:
    """Raise ValueError if the memory of a model, if any, does not reach back to a log position."""
    history = getattr(model.state, "history", None)
    if history is not None and cut < (first := history.position - history.num_events):
        raise ValueError(
            f"the model's memory reaches back {history.num_events:,} events, to position "
            f"{first:,}, and the answer is as of position {cut:,}; ask about a later time"
        )


class TooManyNeighbors(MemoryError):
    """Raised when a hop needs too many slots; split the queries."""


def all_neighbors(graph: TemporalGraph, sampler: Sampler, asked: HopQueries) -> Neighbors:
    """Return all neighbors that the sampler might take of each query, newest first."""
    size, k = len(asked.nodes), _FEW
    while True:
        if size * k > MAX_SLOTS and k > _FEW:
            raise TooManyNeighbors(
                f"all neighbors of {size:,} nodes, some with more than {k // 4:,}, exceed the "
                f"{MAX_SLOTS:,} slots allowed in a hop: give a fan-out as a number"
            )
        found = replace(asked, k=k).sampled(graph, sampler)
        most = int(found.count.max()) if size else 0
        if most < k:
            names, width = ("nodes", "t", "eid"), max(most, 1)
            return replace(found, **{n: getattr(found, n)[:, :width].contiguous() for n in names})
        k *= 4


def in_parts(size: int, at_once: int, make: Callable[[slice], Tensor]) -> Tensor:
    """Return `make` of all rows, with ever smaller parts if they have too many neighbors."""
    parts: list[Tensor] = []
    start = 0
    while start < size or not parts:
        rows = slice(start, min(start + at_once, size))
        try:
            parts.append(make(rows))
        except TooManyNeighbors:
            if rows.stop - rows.start <= 1:
                raise
            at_once = (rows.stop - rows.start) // 2
            continue
        start = rows.stop
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def events_of(batch: Batch) -> Tensor:
    """Return the distinct events of a batch's neighbors, int64 `[n]` on the CPU, latest first."""
    eids = torch.cat([block.eid[block.mask] for block in batch.blocks] or [batch.eid[:0]])
    distinct: Tensor = torch.unique(eids.cpu())
    return distinct.flip(0)


def left_out(found: Neighbors, without: Tensor | Literal["all"], k: int) -> Neighbors:
    """Return the first `k` neighbors of each query, without those of some events."""
    if isinstance(without, str):
        gone = torch.ones_like(found.mask)
    else:
        gone = torch.isin(found.eid, without.to(found.eid.device))
    kept = found.mask & ~gone
    order = (~kept).to(torch.uint8).argsort(dim=1, stable=True)[:, :k]
    kept = kept.gather(1, order)
    return Neighbors(
        found.nodes.gather(1, order).masked_fill(~kept, NO_NODE),
        found.t.gather(1, order) * kept,
        found.eid.gather(1, order).masked_fill(~kept, NO_EVENT),
        kept.sum(dim=1, dtype=torch.int32),
    )


def query_batch(
    plan: Plan,
    fanouts: Sequence[Fanout],
    roots: Roots,
    without: Tensor | Literal["all"] | None = None,
) -> Batch:
    """Return the batch of some roots, on the graph's device; `without` as in `score_without`."""
    if "all" not in fanouts and without is None and plan.graph.node_x is None:
        return plan.of_roots(roots)
    placed, left = plan.placed(roots), iter(fanouts)
    spare = 0
    if isinstance(without, Tensor) and plan.draws.sampler.strategy == "recent":
        spare = len(without)  # other strategies would draw all neighbors anew

    def neighbors(asked: HopQueries) -> Neighbors:
        fanout = next(left)
        if fanout == "all":
            return all_neighbors(plan.graph, plan.draws.sampler, asked)
        found = replace(asked, k=fanout + spare).sampled(plan.graph, plan.draws.sampler)
        return found if without is None else left_out(found, without, fanout)

    if "all" not in fanouts and without is None:
        pending = assemble(plan.draws, placed)
    else:
        pending = assemble(plan.draws, placed, answer_walk(walk_of(plan.draws, placed), neighbors))
    if (table := plan.graph.node_x) is not None:
        rows = pending.ids["node_x"]
        pending.ids["node_x"] = rows.masked_fill(rows >= len(table), -1)  # nodes without events
    return pending.gathered(plan.graph)


Fanout = int | Literal["all"]
"""Neighbors per query of a hop; "all": all visible ones."""


def checked_fanouts(
    model: TemporalModel, fanouts: Sequence[Fanout] | Literal["all"] | None
) -> tuple[Fanout, ...]:
    """Return the fan-outs of queries; None: the model's."""
    if fanouts is None:
        return tuple(model.fanouts)
    whole: Sequence[Fanout] = ["all" for _ in model.fanouts]
    wanted = tuple(whole if fanouts == "all" else fanouts)
    for k in wanted:
        if k != "all" and (not isinstance(k, int) or isinstance(k, bool)):
            raise TypeError(f'fanouts must be whole numbers or "all", got {k!r} in {wanted}')
        if k != "all" and k < 1:
            raise ValueError(f"fanouts must be at least 1 neighbor each, got {wanted}")
    model.check_fanouts(wanted)
    return wanted


def checked_nodes(name: str, nodes: Tensor, graph: TemporalGraph, *dims: int) -> Tensor:
    """Return nodes on the CPU."""
    _checked_tensor(name, nodes)
    if nodes.dim() not in dims:
        shapes = " or ".join("[B]" if dim == 1 else "[B, n]" for dim in dims)
        raise ValueError(f"{name} must be int64 {shapes}, got {list(nodes.shape)}")
    nodes, stop = nodes.cpu(), graph.num_nodes + NUM_NEW
    if nodes.numel() and not 0 <= int(nodes.min()) <= int(nodes.max()) < stop:
        wrong = nodes[(nodes < 0) | (nodes >= stop)][0]
        raise IndexError(
            f"{name} has node {int(wrong)}, the graph has {graph.num_nodes} nodes: for nodes "
            f"without events give {stop - NUM_NEW} and {stop - 1}"
        )
    return nodes


def checked_times(t: Tensor | int, size: int) -> Tensor:
    """Return ticks, one for each of `size` queries, int64 on the CPU."""
    return _column("t", t, size, INT64_MIN, INT64_MAX, "a tick of 64 bits")


def checked_positions(as_of: Tensor | int | None, size: int, num_events: int) -> Tensor:
    """Return log positions, one for each of `size` queries, int64 on the CPU; None: all events."""
    rule = f"log positions from 0 to {num_events}, the number of events in the graph"
    return _column("as_of", num_events if as_of is None else as_of, size, 0, num_events, rule)


def _column(name: str, given: object, size: int, least: int, most: int, rule: str) -> Tensor:
    """Return a number for each query, int64 `[size]` on the CPU, given one for all or for each."""
    if isinstance(given, int) and not isinstance(given, bool):
        column, ends = None, [given]
    else:
        column = _checked_tensor(name, given).cpu().contiguous()
        if column.shape != (size,):
            shape = list(column.shape)
            raise ValueError(f"{name} must be a number or int64 [{size}], got {shape}")
        ends = [int(column.min()), int(column.max())] if size else []
    for value in ends:
        if not least <= value <= most:
            raise ValueError(f"{name} must be {rule}, got {value}")
    return torch.full((size,), ends[0], dtype=torch.int64) if column is None else column


def _checked_tensor(name: str, given: object) -> Tensor:
    if not isinstance(given, Tensor):
        raise TypeError(f"{name} must be a tensor of int64, got {type(given).__name__}")
    if given.dtype != torch.int64:
        raise ValueError(f"{name} must be int64, got {given.dtype}")
    return given
