"""Predictions by the ids and times of a stream, as of the events learned so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from numbers import Number
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from tgflow.choices import Side
from tgflow.config import StreamConfig
from tgflow.describe import described
from tgflow.events import NUM_RELATIONS
from tgflow.graph import TemporalGraph
from tgflow.graph.log import NodeCount, RelationsSeen
from tgflow.ids import NodeIds, UnknownNode, UnknownRelation
from tgflow.inference import Explainer, Explanation, Inference
from tgflow.inference.engine import Ranking
from tgflow.iso import EXAMPLE, iso_seconds
from tgflow.serve.scored_pairs import ScoredPairs
from tgflow.train.calibration import Calibration
from tgflow.train.continual import ContinualTrainer
from tgflow.units import INT64_MAX, INT64_MIN, exact_number, ticks_per_unit


@described
class Predictor:
    """Answers questions by the ids and times of a stream. Does not append or change anything.

    Thread-safe. Ids are those of the stream: one of them, or any sequence, array or column. A time
    is in the unit of the stream's times (`--time-unit`), a `datetime` or a text such as `2024-05-01
    12:00:00+02:00`; the default is the tick after the last event. Scores equal those of the run for
    such an event, but for last bits, which depend on the other pairs in a call.

    During training an answer is as of the last complete micro-batch: see `follow`.

    Args:
        name: Name of the run, for messages.
        stream: The stream's column names, and the unit of its times.
        ids: Node ids of the stream.
        graph: All known events.
        engine: Answers by dense ids and ticks.
        calibration: Maps logits to probabilities.
        relations: Returns the texts of the relations 0, 1, ...; none if relations are numbers.
        has_inverses: Whether the graph has the inverse of each event; see `with_inverses`.
    """

    def __init__(
        self,
        name: str,
        stream: StreamConfig,
        ids: NodeIds,
        graph: TemporalGraph,
        engine: Inference,
        calibration: Calibration,
        relations: Callable[[], Sequence[str]] = tuple,
        *,
        has_inverses: bool = False,
    ) -> None:
        self._name, self._stream = name, stream
        self.ids = ids
        """Ids of the stream; pass them to a stream that continues it: `tg.open_stream(...,
        ids=run.ids)`."""
        self.graph = graph
        self.engine = engine
        """Engine that answers by dense ids and ticks."""
        self._calibration = calibration
        self.relations = relations
        """Returns the texts of the relations 0, 1, ...; none if relations are numbers."""
        self._has_inverses = has_inverses
        self._explainer: Explainer | None = None
        self._trainer: ContinualTrainer | None = None
        self._count, self._seen = NodeCount(graph.log), RelationsSeen(graph.log)

    def follow(self, trainer: ContinualTrainer, engine: Inference) -> None:
        """Answer from the state of a training model from here on, between its micro-batches.

        Training changes parameters and memory in place, and the graph has events not yet learned.
        So readers and the trainer share a fair lock: the trainer holds it exclusively from the
        prediction of a micro-batch until its events are stored and counted, and releases it in
        between. Neither waits for more than one turn of the other, nothing is copied, and training
        results do not change by a bit.

        Args:
            trainer: Trainer whose `changing` is set here, and nowhere else.
            engine: Engine of its model and its graph.
        """
        self.graph, self.engine = trainer.graph, engine
        self._count, self._seen = NodeCount(self.graph.log), RelationsSeen(self.graph.log)
        if trainer.scorer is not None:
            self._calibration = trainer.scorer.calibration
        self._explainer = None
        trainer.changing = engine.changing
        self._trainer = trainer

    def _facts(self) -> dict[str, object]:
        return {
            "name": self._name,
            "model": type(self.engine.model).__name__,
            "position": self.position,
            "ids": self.ids,
            "graph": self.graph,
        }

    @property
    def position(self) -> int:
        """Number of events learned."""
        return self.graph.num_events if self._trainer is None else self._trainer.position

    def holding(self) -> AbstractContextManager[None]:
        """Context manager for questions to be answered as of one position.

        Waits until a trainer has completed a micro-batch, and blocks it meanwhile. Reentrant.
        """
        return nullcontext() if self._trainer is None else self.engine.holding()

    def score(self, src: Any, dst: Any = None, at: Any = None, relation: Any = None) -> ScoredPairs:
        """Return the scores of pairs.

        Args:
            src: Ids of sources; or a table (pandas, polars, Arrow) with the columns that the run's
                stream has for both ends, and optionally for times and relations.
            dst: Ids of destinations, one per source.
            at: One time for all, or one for each.
            relation: One relation for all, or one for each: a text or a number, as in the stream.

        Raises:
            UnknownNode: If the run knows no such node.
            UnknownRelation: If the run knows no such relation.
            TypeError: If ids or relations are of another kind than the stream's.
            ValueError: If lengths differ, a time is between two ticks, or the model requires a
                relation.
        """
        with self.holding():
            if dst is None:
                src, dst, at, relation = self._columns_of(src, at, relation)
            return self.score_pairs(
                *self.pairs_of(self.find(src, "src"), self.find(dst, "dst"), at, relation)
            )

    def embed(self, ids: Any, at: Any = None, *, side: Side = "src") -> Tensor:
        """Return the embeddings of nodes, float `[N, dim]`.

        Args:
            ids: Node ids.
            at: One time for all, or one for each.
            side: For a bipartite stream: whether they are sources or destinations.

        Raises:
            UnknownNode: If the run knows no such node.
            TypeError: If ids are of another kind than the stream's.
            ValueError: If the model makes no embeddings of single nodes.
        """
        with self.holding():
            nodes = self.find(ids, side)
            return self.embed_nodes(nodes, self.ticks(at, len(nodes)))

    def top_k(
        self,
        src: Any,
        k: int = 10,
        candidates: Any = None,
        exclude_known: bool = False,
        at: Any = None,
        relation: Any = None,
        *,
        max_pairs: int | None = None,
    ) -> ScoredPairs:
        """Return the likeliest destinations of each source, best first, one source after another.

        Args:
            src: Ids of sources.
            k: Destinations of each source; fewer, if there are fewer.
            candidates: Ids of destinations to choose among; None: all destinations.
            exclude_known: Omit destinations that a source has had an event with; a source that has
                had one with all of them gets none.
            at: One time for all, or one for each source.
            relation: One relation for all, or one for each source; see `score`.
            max_pairs: Most pairs to score; None: any number.

        Raises:
            UnknownNode: If the run knows no such node.
            UnknownRelation: If the run knows no such relation.
            TypeError: If ids or relations are of another kind than the stream's.
            ValueError: If `k` is below 1, there are no candidates, there are too many pairs, or the
                model requires a relation.
        """
        with self.holding():
            nodes = self.find(src, "src")
            t = self.ticks(at, len(nodes))
            related = self.find_relations(relation, len(nodes))
            others = (
                self.engine.destinations(as_of=self.position)
                if candidates is None
                else self.find(candidates, "dst")
            )
            if max_pairs is not None and len(nodes) * len(others) > max_pairs:
                raise ValueError(
                    f"{len(nodes):,} sources with {len(others):,} candidates each are more than "
                    f"{max_pairs:,} pairs: ask for fewer sources at a time, or name candidates"
                )
            return self._ranked(nodes, t, others, k, exclude_known, related)

    def explain(self, src: Any, dst: Any, at: Any = None, relation: Any = None) -> Explanation:
        """Return why a pair has its score: contributions, and the past events behind them.

        At a past time the answer reads no later event, but with the parameters of now.

        Args:
            src: Id of the source.
            dst: Id of the destination.
            at: A time; None: after the last event.
            relation: A relation; see `score`.

        Returns:
            The explanation, see `tgflow.inference.Explainer`; for an id or a relation without
            events only its `note`.

        Raises:
            TypeError: If ids or the relation are of another kind than the stream's.
            ValueError: If a time is between two ticks, the model requires a relation, or it has a
                memory that does not reach back so far.
        """
        with self.holding():
            t, as_of = int(self.ticks(at, 1)), self.position
            try:
                u, v = int(self.find([src], "src")), int(self.find([dst], "dst"))
                related = self.find_relations(relation, 1)
            except (UnknownNode, UnknownRelation) as error:
                seen = min(as_of, self.graph.log.position(t))
                time, note = self._time(t), str(error)
                return Explanation(src, dst, time, seen, None, None, None, note=note)
            if self._explainer is None:
                self._explainer = Explainer(self.engine)
            probabilities = self._calibration.probabilities
            r = None if related is None else int(related)
            found = self._explainer.explain(
                u, v, t, as_of=as_of, relation=r, probabilities=probabilities
            )
            return found.named(lambda nodes: [*self.ids.decode(nodes)], self._time)

    def find(self, ids: Any, side: Side) -> Tensor:
        """Return the dense ids of nodes, int64 `[N]`; errors as in `score`."""
        column = [ids] if isinstance(ids, str | int | np.integer) else ids
        if not isinstance(column, list | Tensor | np.ndarray | pa.Array | pa.ChunkedArray):
            column = pa.array(column.to_numpy() if hasattr(column, "to_numpy") else [*column])
        nodes = self.ids.find(column, side)
        found = nodes.numpy()
        unknown = (found < 0) | (found >= self._num_nodes())
        if unknown.any():
            name = column[int(unknown.argmax())]
            shown = repr(name.as_py() if isinstance(name, pa.Scalar) else name)
            what = {"src": "source", "dst": "destination"}[side] if self.ids.bipartite else "node"
            raise UnknownNode(f"{shown} is no {what} of {self._name}: no learned event has it")
        return nodes

    def find_relations(self, given: Any, size: int) -> Tensor | None:
        """Return the numbers of relations, int64 `[size]`; None without.

        Args:
            given: One relation for all, one for each, or None.
            size: Number of questions.

        Raises:
            UnknownRelation: If no learned event has such a relation.
            TypeError: If relations are of another kind than the stream's.
            ValueError: If lengths differ, or the events have no relations.
        """
        if given is None:  # inverses have relations, even of a stream that has none
            is_plain = self._stream.relation is not None or not self._has_inverses
            return None if is_plain else torch.zeros(size, dtype=torch.int64)
        with self.holding():
            if not self.graph.log.has_relations or (
                self._has_inverses and self._stream.relation is None
            ):
                raise ValueError(
                    f"the events of {self._name} have no relations; leave out the relation"
                )
            seen = self._seen.upto(self.position)
        if isinstance(given, str | int | np.integer):
            values = [given] * size
        else:
            values = given.tolist() if hasattr(given, "tolist") else [*given]
        values = [_plain(each) for each in values]
        if len(values) != size:
            raise ValueError(
                f"relation must be one for all, or one for each of {size}, got {len(values)}"
            )
        texts = {text: number for number, text in enumerate(self.relations())}
        kind, kinds = (str, "texts") if texts else (int, "whole numbers")
        found: dict[Any, int] = {}
        for value in dict.fromkeys(values):
            if not isinstance(value, kind) or isinstance(value, bool):
                raise TypeError(f"relations of {self._name} are {kinds}, got {value!r}")
            number = texts.get(value, -1) if isinstance(value, str) else value
            number *= 2 if self._has_inverses else 1
            if not 0 <= number < NUM_RELATIONS or not seen[number]:
                raise UnknownRelation(
                    f"{value!r} is no relation of {self._name}: no learned event has it"
                )
            found[value] = number
        return torch.tensor([found[value] for value in values], dtype=torch.int64)

    def pairs_of(
        self, src: Tensor, dst: Tensor, at: Any = None, relation: Any = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return pairs by dense ids, their ticks and relations; errors as in `score`.

        Returns:
            int64 `[N]` each; relations are None if none are given.
        """
        if len(src) != len(dst):
            raise ValueError(f"src and dst must have one length, got {len(src)} and {len(dst)}")
        return src, dst, self.ticks(at, len(src)), self.find_relations(relation, len(src))

    def score_pairs(
        self, src: Tensor, dst: Tensor, t: Tensor, relation: Tensor | None = None
    ) -> ScoredPairs:
        """Return the scores of pairs by dense ids, ticks and relations, int64 `[N]` each."""
        with self.holding():
            logits = self.engine.score(src, dst, t, as_of=self.position, relation=relation)
            return self._scored(src, dst, logits.cpu())

    def embed_nodes(self, nodes: Tensor, t: Tensor) -> Tensor:
        """Return the embeddings of nodes by dense ids and ticks, float `[N, dim]`."""
        with self.holding():
            return self.engine.embed(nodes, t, as_of=self.position).cpu()

    def _ranked(
        self,
        nodes: Tensor,
        times: Tensor,
        others: Tensor,
        k: int,
        exclude_known: bool,
        relation: Tensor | None,
    ) -> ScoredPairs:
        position = self.position
        found: list[Ranking] = []
        for i, node in enumerate(torch.split(nodes, 1)):
            t, left = times[i : i + 1], others
            if exclude_known:
                known = self.engine.destinations(int(node), as_of=position)
                left = others[~torch.isin(others, known)]
            if len(left) or not len(others):
                own = None if relation is None else relation[i : i + 1]
                found.append(self.engine.rank(node, t, left, k, as_of=position, relation=own))
            else:
                found.append(Ranking(left.view(1, 0), torch.empty(1, 0)))
        counts = torch.tensor([each.nodes.shape[1] for each in found], dtype=torch.int64)
        none = torch.empty(0, dtype=torch.int64)
        right = torch.cat([none, *(each.nodes.view(-1).cpu() for each in found)])
        logits = torch.cat([torch.empty(0), *(each.scores.view(-1).cpu() for each in found)])
        place = torch.cat([none, *(torch.arange(1, int(num) + 1) for num in counts)])
        return self._scored(nodes.repeat_interleave(counts), right, logits, place)

    def _scored(
        self, src: Tensor, dst: Tensor, logits: Tensor, place: Tensor | None = None
    ) -> ScoredPairs:
        values, calibration = logits.double().numpy(), self._calibration
        return ScoredPairs(
            [*self.ids.decode(src)],
            [*self.ids.decode(dst)],
            logits,
            torch.from_numpy(calibration.probabilities(values)),
            torch.from_numpy(calibration.anomalies(values)),
            place,
        )

    def _num_nodes(self) -> int:
        if self._trainer is None:
            return self.graph.num_nodes
        with self.holding():
            return self._count.upto(self.position)

    def _columns_of(self, table: Any, at: Any, relation: Any) -> tuple[Any, Any, Any, Any]:
        if hasattr(table, "to_arrow"):
            table = table.to_arrow()
        elif not isinstance(table, pa.Table | pa.RecordBatch):
            if not hasattr(table, "columns"):
                raise ValueError("score needs src and dst, or one table with both; dst is missing")
            table = pa.Table.from_pandas(table, preserve_index=False)
        c, names = self._stream, table.schema.names
        missing = [name for name in (c.src, c.dst) if name not in names]
        if missing:
            raise ValueError(
                f"the table has no column {missing[0]!r}, which the run's stream has for one end; "
                f"it has {', '.join(names)}"
            )
        times = table[c.t].to_pylist() if at is None and c.t in names else at
        if relation is None and c.relation in names:
            relation = table[c.relation].to_pylist()
        return table[c.src], table[c.dst], times, relation

    def ticks(self, at: Any, size: int) -> Tensor:
        """Return the ticks of `size` questions, int64 `[size]`; errors as in `score`."""
        if at is None:
            return torch.full((size,), self._now())
        if isinstance(at, Number | str | datetime):
            return torch.full((size,), self._tick(at))
        times = at.tolist() if hasattr(at, "tolist") else [*at]
        if len(times) != size:
            raise ValueError(f"at must be one time, or one for each of {size}, got {len(times)}")
        return torch.tensor([self._tick(time) for time in times], dtype=torch.int64)

    def _now(self) -> int:
        with self.holding():
            position = self.position
            return int(self.graph.log.read(position - 1, position).t) + 1 if position else 0

    def _time(self, tick: float) -> float:
        """Return the time of a tick in the unit of the stream."""
        unit, own = self._stream.unit, self.graph.time_unit
        time = Fraction(tick) / (1 if own == "tick" else ticks_per_unit(unit, own))
        return int(time) if time.denominator == 1 else float(time)

    def _tick(self, time: Any) -> int:
        unit, tick = self._stream.unit, self.graph.time_unit
        if isinstance(time, str) and (seconds := iso_seconds(time)) is not None:
            unit, number = "s", seconds
        elif isinstance(time, datetime):
            unit = "us"
            since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
            number = Fraction(since // timedelta(microseconds=1))
        elif (found := exact_number(time)) is not None:
            number = found
        else:
            raise ValueError(
                f"{time!r} is not a time: give a number of {unit}, or one such as {EXAMPLE}"
            )
        ticks = number * (1 if tick == "tick" else ticks_per_unit(unit, tick))
        if ticks.denominator != 1:
            raise ValueError(f"{time} {unit} is between two ticks of the run, which are 1 {tick}")
        if not INT64_MIN <= ticks <= INT64_MAX:
            raise ValueError(f"{time} {unit} is not a time: ticks are whole numbers of 64 bits")
        return int(ticks)


def _plain(value: Any) -> Any:
    """Return a relation without the type of its column."""
    if isinstance(value, pa.Scalar):
        return value.as_py()
    return value.item() if isinstance(value, np.generic) else value


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
