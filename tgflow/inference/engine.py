"""Inference: what a model says of any nodes and pairs, at any time and log position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Literal

import torch
from torch import Tensor

from tgflow.batch import Batch
from tgflow.choices import Strategy
from tgflow.describe import described
from tgflow.graph import TemporalGraph
from tgflow.inference.batches import QueryBatches
from tgflow.inference.parts import in_parts
from tgflow.inference.queries import (
    Fanout,
    checked_fanouts,
    checked_nodes,
    checked_positions,
    checked_times,
)
from tgflow.inference.ranking import Ranking
from tgflow.inference.turns import Turns
from tgflow.model import Scores, TemporalModel, device_of_model
from tgflow.plan.inputs import check_unspread
from tgflow.plan.negatives import NegativeSampler
from tgflow.plan.spec import PlanSpec
from tgflow.state import DeviceState, SpreadState


@described
class Inference:
    """Answers from a model and its graph: embeddings, scores of pairs, rankings of destinations.

    Everything is as of a log position: neighbors, counts of past events and node memory are those
    that the log's events before it have made; by default all events that there are. A query sees
    what is strictly earlier than its time, too. With the model's own fan-outs, and its own way of
    sampling if that draws nothing, an answer has the bits of a trainer's `predict` for the same
    pairs in one call: as of a batch's start with `visibility="batch"`; of its end, or of each event
    itself, with `visibility="event"`.

    Safe to use from any number of threads, while one appends to the graph. Whoever changes the
    model meanwhile, parameters or memory, does so within `changing()`; a `ContinualTrainer` does if
    its `changing` is the engine's. Models without state answer several threads at a time, models
    with state one after the other.

    The model is put in evaluation mode when it is asked. Nothing else of it or of the graph
    changes: a run that is asked ends with the bits of one that is not.

    Args:
        model: Any model; one that defines no `embed` scores pairs, and that alone.
        graph: What it was trained on, or another with as wide features.
        fanouts: Neighbors per hop, from the queries down, or "all" for a hop or for all of them:
            whole neighborhoods. None: the model's own; many models take no others.
        strategy: How neighbors are sampled; None: as the model says.
        span: Ticks: the width of strategy `window`, the half-life of `decayed`.
        seed: Seeds strategies that draw. The same call draws the same at the same position.
        max_pairs: Pairs to score, or nodes to embed, at once: larger calls go in parts.

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
        strategy: Strategy | None = None,
        span: int | None = None,
        seed: int = 0,
        max_pairs: int = 20_000,
    ) -> None:
        if max_pairs < 1:
            raise ValueError(f"max_pairs must be at least 1, got {max_pairs}")
        if isinstance(model.state, SpreadState):
            raise ValueError(
                "the model's memory is spread over ranks, and a question is asked of one: ask a "
                "model that has all of it, as one that is loaded from the run's checkpoint"
            )
        check_unspread(graph)
        self.model, self.graph = model, graph
        self.fanouts = checked_fanouts(model, fanouts)
        self.max_pairs = max_pairs
        self._spec = PlanSpec(
            graph,
            seed=seed,
            batch_size=1,
            fanouts=[1 if k == "all" else k for k in self.fanouts],
            strategy=strategy or model.strategy,
            span=span,
            visibility="batch",
            negatives=NegativeSampler(),
            with_memory=model.state is not None,
            counts=model.counts,
        )
        self._batches = QueryBatches(self._spec, self.fanouts)
        self._turns = Turns()

    def _facts(self) -> dict[str, object]:
        return {
            "model": type(self.model).__name__,
            "graph": self.graph,
            "fanouts": self.fanouts,
            "max_pairs": self.max_pairs,
        }

    def embed(self, nodes: Tensor, t: Tensor | int, *, as_of: Tensor | int | None = None) -> Tensor:
        """Return the embeddings of nodes at times.

        Args:
            nodes: int64 `[B]`.
            t: Ticks, one for all or int64 `[B]`: what happened before is seen.
            as_of: Log positions, one for all or int64 `[B]`: only events before are seen. None: all
                events there are.

        Returns:
            Float `[B, dim]`, on the model's device, which it does not wait for.

        Raises:
            IndexError: If the graph has no such node.
            TypeError: If an argument is not a tensor.
            ValueError: If the model defines no `embed`, an argument has another dtype or shape, the
                log has fewer events, or the model's memory cannot look back as far.
        """
        name = type(self.model).__name__
        if type(self.model).embed is TemporalModel.embed:
            raise ValueError(
                f"{name} scores the two nodes of a pair together and makes no embeddings of single "
                "nodes, it defines no embed: ask for score or rank"
            )
        nodes = checked_nodes("nodes", nodes, self.graph, 1)
        with self._asking():
            times, positions = self._checked(len(nodes), t, as_of)

            def embedded(rows: slice) -> Tensor:
                return self._embeddings(nodes[rows], times[rows], positions[rows])

            return in_parts(len(nodes), self.max_pairs, embedded)

    def score(
        self, src: Tensor, dst: Tensor, t: Tensor | int, *, as_of: Tensor | int | None = None
    ) -> Tensor:
        """Return the logits of events: the higher, the likelier.

        Args:
            src: int64 `[B]`.
            dst: int64 `[B]`, or `[B, n]` for several destinations each.
            t: As in `embed`.
            as_of: As in `embed`.

        Returns:
            Float of the shape of `dst`, on the model's device, which it does not wait for.

        Raises:
            IndexError: As `embed`.
            TypeError: As `embed`.
            ValueError: As `embed`; or events have been deleted, and the model counts them.
        """
        src = checked_nodes("src", src, self.graph, 1)
        dst = checked_nodes("dst", dst, self.graph, 1, 2)
        if len(dst) != len(src):
            raise ValueError(
                f"dst must have the destinations of each of {len(src)} sources, "
                f"got {list(dst.shape)}"
            )
        with self._asking():
            times, positions = self._checked(len(src), t, as_of)
            if not dst.numel():
                return torch.empty(dst.shape, device=device_of_model(self.model))
            pairs = dst if dst.dim() == 2 else dst.unsqueeze(1)
            scores = self._scored(src, pairs, times, positions)
        return scores.view(dst.shape)

    def rank(
        self,
        src: Tensor,
        t: Tensor | int,
        candidates: Tensor | None = None,
        k: int = 10,
        *,
        as_of: Tensor | int | None = None,
    ) -> Ranking:
        """Return the destinations of the likeliest events, best first.

        Args:
            src: int64 `[B]`.
            t: As in `embed`.
            candidates: int64 `[n]` for all sources, or `[B, n]`; each is to be there once. None:
                all destinations of the events before the largest `as_of`.
            k: How many to return; all candidates, if there are fewer.
            as_of: As in `embed`.

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
            times, positions = self._checked(len(src), t, as_of)
            if not len(src):
                return Ranking(src.view(0, 0), torch.empty(0, 0))
            if candidates is None:
                candidates = self.destinations(as_of=int(positions.max()))
            if candidates.dim() == 1:
                candidates = candidates.expand(len(src), -1)
            if len(candidates) != len(src) or not candidates.numel():
                raise ValueError(
                    f"candidates must be at least one for each of {len(src)} sources, [n] or "
                    f"[B, n], got {list(candidates.shape)}; without any they are the destinations "
                    "of the events before as_of"
                )
            return self._ranked(src, times, positions, candidates, k)

    def destinations(self, src: int | None = None, *, as_of: int | None = None) -> Tensor:
        """Return whom `rank` chooses among if it is given no candidates, or whom a node has met.

        Args:
            src: A source whose events alone count; None: all.
            as_of: A log position; None: all events there are.

        Returns:
            The destinations of the events before, in the order of their first, int64 `[n]`.

        Raises:
            IndexError: If the graph has no such node.
            ValueError: If the log has fewer events.
        """
        [latest] = checked_positions(as_of, 1, self.graph.num_events).tolist()
        pairs = self._spec.pairs.upto(latest)
        if src is None:
            return pairs.destinations(latest)
        checked_nodes("src", torch.tensor([src]), self.graph, 1)
        return pairs.destinations_of(src, latest)

    def holding(self) -> AbstractContextManager[None]:
        """Enclose questions that are to be answered from the same model: nobody changes it between.

        Waits for a change that is being made, and for others who ask. Within it the thread may ask,
        and enter it again.

        Example:
            >>> with engine.holding():
            ...     now = trainer.position
            ...     engine.score(src, dst, t, as_of=now)
        """
        return self._turns.taken(alone=True)

    def changing(self) -> AbstractContextManager[None]:
        """Return a context in which the model's parameters or state may change.

        Waits for queries in progress, and holds up others. Appending to the graph does not need it.

        Example:
            >>> with engine.changing():
            ...     optimizer.step()
        """
        return self._turns.taken(alone=True)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with self._turns.taken(alone=self.model.state is not None), torch.no_grad():
            if self.model.training:  # a trainer sets it again
                self.model.eval()
            yield

    def _checked(
        self, size: int, t: Tensor | int, as_of: Tensor | int | None
    ) -> tuple[Tensor, Tensor]:
        positions = checked_positions(as_of, size, self.graph.num_events)
        return checked_times(t, size), positions

    def _ranked(self, src: Tensor, t: Tensor, as_of: Tensor, candidates: Tensor, k: int) -> Ranking:
        width = max(1, self.max_pairs // max(1, len(src)))
        best: Ranking | None = None
        for nodes in torch.split(candidates, width, dim=1):
            scores = self._scored(src, nodes, t, as_of)
            if best is None:
                best = Ranking(nodes[:, :0].to(scores.device), scores[:, :0])
            best = best.merged(nodes, scores, k)
        assert best is not None
        return best

    def _scored(self, src: Tensor, dst: Tensor, t: Tensor, as_of: Tensor) -> Tensor:
        """Return the logits of pairs, `[B, n]`, as many at a time as may be."""
        if dst.shape[1] > self.max_pairs:
            parts = torch.split(dst, self.max_pairs, dim=1)
            return torch.cat([self._scored(src, part, t, as_of) for part in parts], dim=1)

        def scored(rows: slice) -> Tensor:
            found = self._scores(src[rows], dst[rows], t[rows], as_of[rows])
            return torch.cat([found.positive.unsqueeze(1), found.negative], dim=1)

        return in_parts(len(src), max(1, self.max_pairs // max(1, dst.shape[1])), scored)

    def _scores(self, src: Tensor, dst: Tensor, t: Tensor, as_of: Tensor) -> Scores:
        batch = self._batch(src, dst, t, as_of)
        with self._reading():
            found: Scores = self.model(batch)
        return found

    def _embeddings(self, nodes: Tensor, t: Tensor, as_of: Tensor) -> Tensor:
        batch = self._batch(nodes, nodes.unsqueeze(1), t, as_of)
        with self._reading():
            z = self.model.embed(batch).z
        return z.index_select(0, batch.src_row)

    def _batch(self, src: Tensor, dst: Tensor, t: Tensor, as_of: Tensor) -> Batch:
        """Return the batch of some pairs, all of whose hops see the same graph."""
        while True:
            change = self.graph.last_change
            batch = self._batches.of_roots(self._spec.ask(src, dst, t, as_of))
            if self.graph.last_change is change:
                break
        batch = batch.to(device_of_model(self.model))
        self.model.check_widths(batch)
        return batch

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Enclose what reads the state: that leaves no trace of who has read it."""
        state = self.model.state
        if not isinstance(state, DeviceState):
            yield
            return
        with state.covering(self.graph.num_nodes):
            yield
