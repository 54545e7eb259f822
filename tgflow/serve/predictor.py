"""Predictions by the ids and times of a stream, as of the events learned so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import accumulate, chain, pairwise
from numbers import Number
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from tgflow.base.choices import Side
from tgflow.base.describe import described
from tgflow.base.iso_time import EXAMPLE, iso_text, time_seconds
from tgflow.base.units import INT64_MAX, INT64_MIN, exact_number, ticks_per_unit
from tgflow.graph import Neighbors, TemporalGraph
from tgflow.graph.events import NO_LABEL, NUM_RELATIONS
from tgflow.graph.id_columns import list_array
from tgflow.graph.ids import NodeIds
from tgflow.graph.log import NodeCount
from tgflow.graph.sampling import recent_neighbors
from tgflow.serve.event_features import EventFeatures
from tgflow.serve.explain import LINK, Explainer, Explanation, LabelQuestion
from tgflow.serve.popularity import Popularity
from tgflow.serve.scored_pairs import RankedBy, ScoredPairs
from tgflow.streams.options import StreamOptions
from tgflow.train.alerts import AlertList
from tgflow.train.calibration import Calibration
from tgflow.train.continual import ContinualTrainer
from tgflow.train.inference import RANKED_AT_ONCE, Inference, check_reach
from tgflow.train.tasks.labels import EventLabels

EMBEDDED_AT_ONCE = 4096
"""Nodes per batch of rows."""
SIDES: tuple[Side, Side] = ("src", "dst")


class UnknownIds:
    """Ids that no learned event has, numbered -1, -2, ... in order of their first occurrence.

    Questions stay apart, and the run's ids do not change: an engine reads all new sources as one
    node without events, and all new destinations as another.
    """

    def __init__(self, ids: NodeIds) -> None:
        self._ids = ids
        self._numbers: dict[tuple[Side | None, Any], int] = {}

    def number(self, side: Side, name: Any) -> int:
        """Return the number of an id.

        Raises:
            ValueError: If no event of a stream could have it.
        """
        if name == "" or (isinstance(name, int) and name < 0):
            raise ValueError(f"{name!r} is no id: ids are not empty, and numbers start at 0")
        key = side if self._ids.bipartite else None, name
        return self._numbers.setdefault(key, -1 - len(self._numbers))

    def key(self, number: int) -> tuple[Side | None, Any]:
        """Return side and id of a number; the side of ids that both ends share is None."""
        return [*self._numbers][-1 - number]

    def decode(self, nodes: Tensor) -> list[Any]:
        """Return the ids of nodes by dense ids or numbers, int64 `[N]`."""
        if not self._numbers:
            return [*self._ids.decode(nodes)]
        new, known = [name for _, name in self._numbers], iter(self._ids.decode(nodes[nodes >= 0]))
        return [next(known) if node >= 0 else new[-1 - node] for node in nodes.tolist()]


@dataclass(frozen=True, slots=True)
class PairQuery:
    """Pairs to score; in a ranking, the candidates of one source after those of another."""

    src: Tensor
    """Dense ids, int64 `[N]`; negative ones are numbers of `new`."""
    dst: Tensor
    """As `src`, int64 `[N]`."""
    t: Tensor
    """Ticks, int64 `[N]`."""
    new: UnknownIds
    """Nodes that no learned event has."""
    relation: Tensor | None = None
    """Numbers of relations, int64 `[N]`; None without."""
    sizes: Sequence[int] | None = None
    """Number of candidates of each source in a ranking; None: the scores of all pairs."""
    k: int = 0
    """Number of pairs of each source that a ranking keeps."""
    ranked_by: Sequence[RankedBy] = ()
    """What ranks the candidates of each source; those by popularity are in order."""

    def best(self, logits: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Return the rows of the pairs to keep, int64 `[K]`, and the columns of a ranking.

        Ties keep the order of candidates.
        """
        if self.sizes is None:
            return torch.arange(len(logits)), {}
        best, ends = [torch.arange(0)], accumulate(self.sizes, initial=0)
        for (begin, end), by in zip(pairwise(ends), self.ranked_by, strict=True):
            own = logits[begin:end].argsort(descending=True, stable=True)
            if by == "popularity":
                own = torch.arange(end - begin)
            best.append(begin + own[: self.k])
        place = torch.cat([torch.arange(1, len(rows) + 1) for rows in best])
        each = zip(self.ranked_by, best[1:], strict=True)
        ranked_by = [*chain(*([by] * len(rows) for by, rows in each))]
        return torch.cat(best), {"place": place, "ranked_by": ranked_by}


@described
class Predictor:
    """Answers questions by the ids and times of a stream. Does not append or change anything.

    Ids are those of the stream: one of them, or any sequence, array or column. A time is in the
    unit of the stream's times (`--time-unit`), a `datetime` or a text such as `2024-05-01
    12:00:00+02:00`; the default is the tick after the last event. An answer for a past time reads
    no later event, but has the parameters of now. On the CPU the scores of pairs do not depend on
    the other pairs in a call. A node, a relation or a category that no learned event has gets the
    answer that the run gives at its first event, and stays unknown to the run.

    Thread-safe, except while a trainer learns: see `follow`.

    Args:
        name: Name of the run, for messages.
        stream: The stream's column names, and the unit of its times.
        ids: Node ids of the stream.
        graph: All known events.
        engine: Answers by dense ids and ticks.
        calibration: Maps logits to probabilities.
        classes: Returns the texts of the numbers 0, 1, ... by column: "relation", unless relations
            are numbers, and the categorical ones.
        features: Widths of the stream's feature columns by name, in order, categorical ones last.
        has_inverses: Whether the graph has the inverse of each event; see `with_inverses`.
        labels: Labels of the graph's events, if the model predicts them.
        label_names: Labels as the stream has them by their numbers 0, 1, ...; none if these are
            the labels.
        label_columns: Numbers of the labels whose probabilities scores include, by their names.
    """

    def __init__(
        self,
        name: str,
        stream: StreamOptions,
        ids: NodeIds,
        graph: TemporalGraph,
        engine: Inference,
        calibration: Calibration,
        classes: Callable[[], Mapping[str, Sequence[str]]] = dict,
        *,
        features: Mapping[str, int] = MappingProxyType({}),
        has_inverses: bool = False,
        labels: EventLabels | None = None,
        label_names: Sequence[str | int] = (),
        label_columns: Mapping[str | int, int] = MappingProxyType({}),
    ) -> None:
        self._name, self._stream = name, stream
        self.ids = ids
        """Ids of the stream; pass them to a stream that continues it: `tg.open_stream(...,
        ids=run.ids)`."""
        self.graph = graph
        self.engine = engine
        """Engine that answers by dense ids and ticks."""
        self._calibration = calibration
        self._classes, self._has_inverses = classes, has_inverses
        self.features = EventFeatures(stream, features, self._texts)
        self.labels, self.label_names = labels, label_names
        self._label_columns = label_columns
        self.alerts: AlertList | None = None
        """Alerts of the run; None if it raises none."""
        self.node_rows: Callable[[Sequence[Any], Tensor | None], Tensor] | None = None
        """Returns the features of new nodes by ids and sides, as the model reads them."""
        self._explainer: Explainer | None = None
        self._trainer: ContinualTrainer | None = None
        self._latest = 0, 0
        """A position, and the tick after its last event."""
        self._count, self._popularity = NodeCount(graph.log), Popularity(graph)

    def follow(self, trainer: ContinualTrainer, engine: Inference) -> None:
        """Answer from the state of a training model from here on, between its steps.

        Training changes parameters and memory in place: ask in the thread that iterates over
        `trainer.steps`. Processes beside it are served by `tgflow run --serve`.

        Args:
            trainer: The trainer.
            engine: Engine of its model and its graph.
        """
        self.graph, self.engine = trainer.graph, engine
        self._count, self._popularity = NodeCount(self.graph.log), Popularity(self.graph)
        if trainer.scorer is not None:
            self._calibration = trainer.scorer.calibration
        self._explainer, self._latest = None, (0, 0)
        self._trainer = trainer

    def _facts(self) -> dict[str, object]:
        return {
            "name": self._name,
            "model": type(self.engine.model).__name__,
            "position": self.position,
            "ids": self.ids,
            "graph": self.graph,
        }

    def relations(self) -> Sequence[str]:
        """Return the texts of the relations 0, 1, ...; none if relations are numbers."""
        return self._texts("relation")

    def _texts(self, column: str) -> Sequence[str]:
        return self._classes().get(column, ())

    @property
    def position(self) -> int:
        """Number of events learned."""
        return self.graph.num_events if self._trainer is None else self._trainer.position

    def score(
        self, src: Any, dst: Any = None, at: Any = None, relation: Any = None, x: Any = None
    ) -> ScoredPairs:
        """Return the scores of pairs, or of events before they are stored.

        In runs with a task that predicts labels of events, scores include those of the labels.

        Args:
            src: Ids of sources; or a table (pandas, polars, Arrow) with the columns that the run's
                stream has for both ends, and optionally for times, relations and features; others
                are ignored, as in the stream.
            dst: Ids of destinations, one per source.
            at: One time for all, or one for each.
            relation: One relation for all, or one for each: a text or a number, as in the stream.
            x: Features by the stream's columns, as they are in the stream: a dict such as
                `{"amount": 500, "location": "L100"}` for all events, one for each, or a table. The
                prediction of a label reads them; without, where it needs them, labels are unknown.
                Missing ones are filled if the run does so. Without categorical columns also an
                array of numbers, `[N, x_dim]`, in the order of the columns.

        Raises:
            TypeError: If ids or relations are of another kind than the stream's.
            ValueError: If lengths differ, a time is between two ticks or beyond the kept memory,
                the model requires a relation, a feature is missing or invalid, or features are
                given that no score reads.
        """
        if dst is None:
            src, dst, at, relation, x = self._columns_of(src, at, relation, x)
        pairs = self.pairs_of(src, dst, at, relation)
        if self.labels is None and x is None:
            return self.score_pairs([pairs])[0]
        return self.score_events(pairs, self.features_of(x, len(pairs.src)))

    def embed(self, ids: Any, at: Any = None, *, side: Side = "src") -> Tensor:
        """Return the embeddings of nodes, float `[N, dim]`.

        Args:
            ids: Node ids.
            at: One time for all, or one for each.
            side: For a bipartite stream: whether they are sources or destinations.

        Raises:
            TypeError: If ids are of another kind than the stream's.
            ValueError: If the model makes no embeddings of single nodes.
        """
        nodes = self.find(ids, side, new := UnknownIds(self.ids))
        return self.embed_nodes(nodes, self.ticks(at, len(nodes)), new)

    def embeddings(
        self, ids: Any = None, at: Any = None, *, side: Side = "src"
    ) -> pa.RecordBatchReader:
        """Return rows of nodes: `id`, `side` or `is_new`, and e0, e1, ...

        `side` is there for all nodes of a bipartite stream, `is_new` for given ids: whether no
        learned event has them.

        They are made while they are read; `read_pandas()` returns a frame, `read_all()` a table.

        Args:
            ids: Node ids; None: all nodes.
            at: One time for all.
            side: As in `embed`.

        Raises:
            TypeError, ValueError: As `embed`.

        Example:
            >>> run = tg.open_run("runs/pay")
            >>> run.embeddings(["acc_1"]).read_all().column_names[:2]
            ['id', 'e0']
        """
        sides = self.ids.state_dict().get("sides") if ids is None else None
        new = UnknownIds(self.ids)
        all_nodes = self.ids.without_erased(torch.arange(self._num_nodes()))
        chosen = all_nodes if ids is None else self.find(ids, side, new)

        def rows(nodes: Tensor) -> pa.RecordBatch:
            z = self.embed_nodes(nodes, self.ticks(at, len(nodes)), new)
            columns = {"id": list_array(new.decode(nodes))}
            if ids is not None:
                columns["is_new"] = pa.array((nodes < 0).tolist())
            if sides is not None:
                columns["side"] = pa.array([SIDES[each] for each in sides[nodes].tolist()])
            columns |= {f"e{i}": pa.array(column.numpy()) for i, column in enumerate(z.T)}
            return pa.RecordBatch.from_pydict(columns)

        first, *others = torch.split(chosen, EMBEDDED_AT_ONCE)
        batch = rows(first)
        return pa.RecordBatchReader.from_batches(batch.schema, chain([batch], map(rows, others)))

    def top_k(
        self,
        src: Any,
        k: int = 10,
        candidates: Any = None,
        exclude_known: bool = False,
        at: Any = None,
        relation: Any = None,
    ) -> ScoredPairs:
        """Return the likeliest destinations of each source, best first, one source after another.

        Those of a source without any event, in either direction and within the horizon, are ranked
        by popularity: the number of events that each received within the horizon, then its latest
        event, then its number in the order of first events. The model ranks it after all if it
        reads features of nodes. `ranked_by` names which.

        Args:
            src: Ids of sources.
            k: Destinations of each source; fewer, if there are fewer.
            candidates: Ids of destinations to choose among; None: all destinations.
            exclude_known: Omit destinations that a source has had an event with; a source that has
                had one with all of them gets none.
            at: One time for all, or one for each source.
            relation: One relation for all, or one for each source; see `score`.

        Raises:
            TypeError: If ids or relations are of another kind than the stream's.
            ValueError: If `k` is below 1, there are no candidates, or the model requires a
                relation.
        """
        new = UnknownIds(self.ids)
        nodes = self.find(src, "src", new)
        others = self.destinations() if candidates is None else self.find(candidates, "dst", new)
        if k < 1 or not len(others):
            what = "k" if k < 1 else "the number of candidates"
            raise ValueError(f"{what} must be at least 1, got {k if k < 1 else 0}")
        at_once = max(1, RANKED_AT_ONCE // len(others))
        rankings = self.rankings(nodes, at, relation, others, new, k, exclude_known, at_once)
        return ScoredPairs.joined([self.score_pairs([each])[0] for each in rankings])

    def explain(
        self,
        src: Any = None,
        dst: Any = None,
        at: Any = None,
        relation: Any = None,
        x: Any = None,
        *,
        of: str | None = None,
        label: Any = None,
        event: int | None = None,
        with_effects: bool = True,
    ) -> Explanation:
        """Return why a pair has its score, or an event the probability of its label.

        The answer has contributions, and the past events behind them.

        At a past time the answer reads no later event, but with the parameters of now.

        Args:
            src: Id of the source.
            dst: Id of the destination.
            at: A time; None: after the last event.
            relation: A relation; see `score`.
            x: The event's features, for a label that is predicted from them; see `score`.
            of: The column of the labels (`--target`), whose logit is explained; None or "link":
                the score.
            label: One of more than two labels; None: the predicted one.
            event: Log position of a stored event whose label is explained, instead of all these.
            with_effects: Whether to compute the effects of single past events.

        Returns:
            The explanation, see `tgflow.serve.Explainer`.

        Raises:
            TypeError: If ids or the relation are of another kind than the stream's.
            ValueError: If a time is between two ticks, the model requires a relation, or it has a
                memory that does not reach back so far; or there is no such label, or the features
                that it depends on are missing.
        """
        question: LabelQuestion | None
        if event is not None:
            if any(each is not None for each in (src, dst, at, relation, x, of, label)):
                raise ValueError("event names a stored one with all that it has: give it alone")
            src, dst, asked, question = self._stored_event(event)
        elif src is None or dst is None:
            raise ValueError("src and dst are needed, or the position of a stored event")
        else:
            asked = self.pairs_of([src], [dst], at, relation)
            question = self._label_question(of, label, x)
        if self._explainer is None:
            self._explainer = Explainer(self.engine)
        u, v = (int(nodes) for nodes in self._engine_nodes(asked.src, asked.dst))
        related = None if asked.relation is None else int(asked.relation)
        with self.engine.of_new(self._new_x(asked.new, int(asked.src), int(asked.dst))):
            found = self._explainer.explain(
                u,
                v,
                int(asked.t),
                as_of=self.position,
                relation=related,
                probabilities=self._calibration.probabilities,
                of=question,
                with_effects=with_effects,
            )
        [new] = _new_ends(asked.src, asked.dst)
        names = self.label_names
        return found.named(src, dst, new, self.ids.decode, self.time_of, names)

    def _label_question(self, of: str | None, label: Any, x: Any) -> LabelQuestion | None:
        """Return the label to explain; None for the link."""
        target = None if self.labels is None else self.labels.task.config.target
        if of in (None, LINK):
            if label is not None or x is not None:
                raise ValueError(
                    f"a label and features are for explanations of labels: of={target!r}"
                )
            return None
        if self.labels is None or of != target:
            known = LINK if target is None else f"{LINK} or {target}"
            raise ValueError(f"of={of!r}: {self._name} explains {known}")
        names = [*self.label_names]
        if label is not None and names:
            if label not in names:
                known = ", ".join(map(str, names))
                raise ValueError(f"{label!r} is no label; there are {known}")
            if len(names) == 2 and label == names[0]:
                raise ValueError(
                    f"of the labels of {target} the positive one, {names[1]}, is "
                    f"explained; got {label!r}"
                )
            label = names.index(label)
        if x is None and self._reads_features:
            raise ValueError(f"the label depends on the event's features: {self.features.names}")
        given, columns = x[0] if isinstance(x, list) else x, []
        if isinstance(given, Mapping):
            columns = [(n, width, str(given.get(n))) for n, width in self.features.widths.items()]
        return LabelQuestion(self.labels, self.features_of(x, 1), columns, label)

    def _stored_event(self, position: int) -> tuple[Any, Any, PairQuery, LabelQuestion]:
        """Return the ends of a stored event, and the questions for its label."""
        if self.labels is None or not 0 <= position < self.position:
            what = "" if self.labels is None else f" {position:,} among {self.position:,}"
            raise ValueError(f"{self._name} has no event{what} whose label is predicted")
        event, x, columns = self.graph.log.read(position, position + 1), None, []
        [src], [dst] = self.ids.decode(event.src), self.ids.decode(event.dst)
        if self._reads_features and self.graph.edge_x is not None:
            x = self.graph.edge_x.read(position, position + 1).cpu()
            widths = self.features.widths  # none if the stream has not named its columns
            parts = zip(widths, torch.split(x[0], [*widths.values()] or len(x[0])), strict=False)
            columns = [(name, len(part), self._stored_text(name, part)) for name, part in parts]
        asked = PairQuery(event.src, event.dst, event.t, UnknownIds(self.ids), event.relation)
        return src, dst, asked, LabelQuestion(self.labels, x, columns)

    def _stored_text(self, name: str, value: Tensor) -> str:
        """Return the value of a stored column in words, as it is read by the model."""
        if len(value) > 1:
            texts, code = self._texts(name), int(value.argmax())
            return texts[code] if code < min(len(texts), len(value) - 1) else "other"
        if self.graph.feature_scale is None:
            return f"{float(value):.3g}"
        return f"{float(value):+.3g} deviations from its mean"

    def known_labels(self, eid: Tensor) -> list[Any]:
        """Return the labels of events by log positions, int64 `[N]`: None where not known yet."""
        if self.labels is None or not len(eid):
            return [None] * len(eid)
        history, c = self.labels.history, self._stream
        names: Any = dict(enumerate(c.label_names)) or {1: c.positive_label or 1}
        now, end = torch.tensor([self._now()]), torch.tensor([self.position])
        code = history.seen_by(eid, now, end)
        own, label = history.classes(eid), self.graph.log.gather(eid).label
        late = [*history.codes] if history.num_classes > 2 else [0, 1]
        rows = zip(code.tolist(), own.tolist(), label.tolist(), strict=True)  # type: ignore[union-attr]
        found = [None if c < 0 else each if c == o else late[c] for c, o, each in rows]
        return [None if each is None else names.get(each, each) for each in found]

    def label_history(self, name: Any, side: Side) -> list[Any]:
        """Return the known labels of a node's events on one side within the horizon, in order."""
        nodes = self.find(name, side, UnknownIds(self.ids))
        first = self.graph.since(self.position)
        ends = getattr(self.graph.log.read(first, self.position), side)
        labels = self.known_labels(first + (ends == nodes).nonzero().squeeze(1))
        return [each for each in labels if each is not None]

    def alerts_since(self, since: Any = None, limit: int = 100) -> tuple[list[dict[str, Any]], int]:
        """Return the latest alerts from a time on, newest first, and their number without limit.

        Raises:
            ValueError: If the run raises no alerts, or the time is none.
        """
        if self.alerts is None:
            text = "raises no alerts: they need a task of labels and --alert-budget 100"
            raise ValueError(f"{self._name} {text}")
        first = 0 if since is None else self.graph.log.position(self._tick(since))
        first = max(first, self.graph.since(self.position))
        found = self.alerts.between(first, self.position)
        eid, probability = (x.flip(0)[:limit] for x in found)
        events = self.graph.log.gather(eid)
        columns = {
            "position": eid.tolist(),
            "src": self.ids.decode(events.src),
            "dst": self.ids.decode(events.dst),
            "t": [self.time_of(t) for t in events.t.tolist()],
            "time": [iso_text(t, self.graph.time_unit) for t in events.t.tolist()],
            "label_probability": probability.tolist(),
            "label": self.known_labels(eid),
        }
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return rows, len(found.position)

    def find(self, ids: Any, side: Side, new: UnknownIds) -> Tensor:
        """Return the dense ids of nodes, int64 `[N]`; of those that no learned event has, numbers.

        Args:
            ids: One id of the stream, or any sequence, array or column.
            side: For a bipartite stream: whether they are sources or destinations.
            new: Gets those that no learned event has.

        Raises:
            TypeError: If ids are of another kind than the stream's.
            ValueError: If one is missing, or is no id.
        """
        column = [ids] if isinstance(ids, str | int | np.integer) else ids
        if not isinstance(column, list | Tensor | np.ndarray | pa.Array | pa.ChunkedArray):
            column = pa.array(column.to_numpy() if hasattr(column, "to_numpy") else [*column])
        nodes = self.ids.find(column, side)
        for i in ((nodes < 0) | (nodes >= self._num_nodes())).nonzero().squeeze(1).tolist():
            nodes[i] = new.number(side, _plain(column[i]))
        return nodes

    def find_relations(self, given: Any, size: int) -> Tensor | None:
        """Return the numbers of relations, int64 `[size]`; None without.

        A text that no event has had gets the next number, as in the stream.

        Args:
            given: One relation for all, one for each, or None.
            size: Number of questions.

        Raises:
            TypeError: If relations are of another kind than the stream's.
            ValueError: If lengths differ, or the events have no relations.
        """
        if given is None:  # inverses have relations, even of a stream that has none
            is_plain = self._stream.relation is not None or not self._has_inverses
            return None if is_plain else torch.zeros(size, dtype=torch.int64)
        if not self.graph.log.has_relations or (
            self._has_inverses and self._stream.relation is None
        ):
            raise ValueError(
                f"the events of {self._name} have no relations; leave out the relation"
            )
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
            number = texts.get(value, len(texts)) if isinstance(value, str) else value
            number *= 2 if self._has_inverses else 1
            if not 0 <= number < NUM_RELATIONS:
                raise ValueError(f"{value!r} is no relation: there are at most {NUM_RELATIONS:,}")
            found[value] = number
        return torch.tensor([found[value] for value in values], dtype=torch.int64)

    def pairs_of(self, src: Any, dst: Any, at: Any = None, relation: Any = None) -> PairQuery:
        """Return pairs by the stream's ids, to be scored; errors as in `score`."""
        new = UnknownIds(self.ids)
        src, dst = self.find(src, "src", new), self.find(dst, "dst", new)
        if len(src) != len(dst):
            raise ValueError(f"src and dst must have one length, got {len(src)} and {len(dst)}")
        size = len(src)
        return PairQuery(src, dst, self.ticks(at, size), new, self.find_relations(relation, size))

    def rankings(
        self,
        src: Tensor,
        at: Any,
        relation: Any,
        candidates: Tensor,
        new: UnknownIds,
        k: int,
        exclude_known: bool,
        at_once: int,
    ) -> Iterator[PairQuery]:
        """Yield the candidates of sources, `at_once` sources each; see `find` and `top_k`."""
        t, related = self.ticks(at, len(src)), self.find_relations(relation, len(src))
        for rows in torch.split(torch.arange(len(src)), at_once):
            popular = self._popular(src[rows], t[rows], candidates, k)
            lists = [candidates if best is None else best for best in popular]
            if exclude_known:  # by the model: popular ones are of sources without events
                for i, row in enumerate(rows.tolist()):
                    if popular[i] is None and src[row] >= 0:
                        cut = min(self.graph.log.position(int(t[row])), self.position)
                        known = self.engine.destinations(int(src[row]), as_of=cut)
                        lists[i] = candidates[~torch.isin(candidates, known)]
            sizes = [len(each) for each in lists]
            by: list[RankedBy] = ["model" if best is None else "popularity" for best in popular]
            every = rows.repeat_interleave(torch.tensor(sizes, dtype=torch.int64))
            own = None if related is None else related[every]
            dst = torch.cat([candidates[:0], *lists])
            yield PairQuery(src[every], dst, t[every], new, own, sizes, k, by)

    def _popular(
        self, src: Tensor, t: Tensor, candidates: Tensor, k: int
    ) -> Sequence[Tensor | None]:
        """Return the most popular candidates for each source without events, None for others."""
        found: list[Tensor | None] = [None] * len(src)
        if self.graph.node_x is not None and self.engine.model.reads_nodes:
            return found
        cuts = self.graph.log.positions(t).clamp(max=self.position)
        for cut in torch.unique(cuts).tolist():
            rows = (cuts == cut).nonzero().squeeze(1)
            is_new, best = self._popularity.rank(src[rows], candidates, k, cut)
            for row in rows[is_new].tolist():
                found[row] = best
        return found

    def features_of(self, x: Any, size: int) -> Tensor | None:
        """Return the features of events as the model reads them, float32 `[size, x_dim]`.

        Each is scaled as that of the next event; errors as in `score`.
        """
        if x is None:
            return None
        table, scale = self.graph.edge_x, self.graph.feature_scale
        if table is None or not self._reads_features:
            raise ValueError(
                f"no score of {self._name} reads the features of an event before it is stored: "
                "leave them out; labels of events (--task edge --target COLUMN) would read them"
            )
        rows = self.features.rows(x, size, table.dim)
        if scale is None or not size:
            return rows
        parts = [rows] if scale.size == scale.freeze_at else torch.split(rows, 1)
        return torch.cat([scale.scaled(part)[0] for part in parts])

    @property
    def _reads_features(self) -> bool:
        """Whether labels of events are predicted from their features."""
        decoder = self.engine.model.label_decoder
        return self.labels is not None and getattr(decoder, "x_proj", None) is not None

    def score_events(self, asked: PairQuery, x: Tensor | None = None) -> ScoredPairs:
        """Return the scores of events and of their labels; `x` is a result of `features_of`."""
        assert self.labels is not None
        if x is None and self._reads_features:
            [found] = self.score_pairs([asked])
            unknown = torch.full((len(found),), torch.nan, dtype=torch.float64)
            return replace(found, predicted_label=[None] * len(found), label_probability=unknown)
        t = asked.t
        labels, relation = self.labels, asked.relation
        (src, dst), cuts = self._engine_nodes(asked.src, asked.dst), self._cuts(t)

        def answered(rows: Tensor | slice) -> Tensor:
            related = None if relation is None else relation[rows]
            own = None if x is None else x[rows]
            logits, classes = self.engine.score_events(
                src[rows], dst[rows], t[rows], own, labels, as_of=cuts[rows], relation=related
            )
            return torch.cat([logits.unsqueeze(1), classes], dim=1)

        columns = self._in_turn(asked.src, asked.dst, asked.new, answered)
        logits, classes = columns[:, 0], columns[:, 1:]
        label, share = self.labels.said(t, cuts, classes)
        names = self.label_names
        texts = [
            None if each == NO_LABEL else names[max(0, each)] if names else each
            for each in label.tolist()
        ]
        scored = self._scored(logits.cpu(), [(asked, slice(None))])
        shares = None
        if self._label_columns:
            columns = labels.shares(t, cuts, classes, [*self._label_columns.values()]).T
            shares = dict(zip(self._label_columns, columns, strict=True))
        return replace(
            scored, predicted_label=texts, label_probability=share, label_probabilities=shares
        )

    def score_pairs(self, asked: Sequence[PairQuery]) -> list[ScoredPairs]:
        """Return the answer to each query, all with relations or none, by one call of the model."""
        if self.graph.node_x is not None and len(asked) > 1:
            return [self.score_pairs([each])[0] for each in asked]
        src, dst, t = (
            torch.cat([getattr(each, name) for each in asked]) for name in ("src", "dst", "t")
        )
        related = [each.relation for each in asked if each.relation is not None]
        relation = torch.cat(related) if related else None

        def scored(rows: Tensor | slice) -> Tensor:
            own = None if relation is None else relation[rows]
            return self.logits(src[rows], dst[rows], t[rows], own)

        logits = self._in_turn(src, dst, asked[0].new, scored)
        parts = torch.split(logits, [len(each.src) for each in asked])
        best = [each.best(own) for each, own in zip(asked, parts, strict=True)]
        kept = torch.cat([own[rows] for own, (rows, _) in zip(parts, best, strict=True)])
        every = self._scored(
            kept, [(each, rows) for each, (rows, _) in zip(asked, best, strict=True)]
        )
        spans = pairwise(accumulate((len(rows) for rows, _ in best), initial=0))
        return [
            replace(every[begin:end], **columns)
            for (begin, end), (_, columns) in zip(spans, best, strict=True)
        ]

    def logits(self, src: Tensor, dst: Tensor, t: Tensor, relation: Tensor | None = None) -> Tensor:
        """Return the logits of pairs on the CPU; arguments as in `PairQuery`."""
        nodes = self._engine_nodes(src, dst)
        return self.engine.score(*nodes, t, as_of=self._cuts(t), relation=relation).cpu()

    def _engine_nodes(self, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
        """Return nodes with those of the engine without events in the places of new ones.

        They are numbered as the stream numbers the nodes of a next event.
        """
        new = self.graph.num_nodes
        other = new + ((src < 0) & (src != dst)).long()
        return src.where(src >= 0, new), dst.where(dst >= 0, other)

    def _in_turn(
        self, src: Tensor, dst: Tensor, new: UnknownIds, ask: Callable[[Tensor | slice], Tensor]
    ) -> Tensor:
        """Return the answers to all rows; if nodes have features, to each new pair in turn."""
        if self.graph.node_x is None or not len(src):
            return ask(slice(None))
        keys = torch.stack([src, dst], dim=1).clamp(max=0)
        kinds, which = torch.unique(keys, dim=0, return_inverse=True)
        places, answers = [], []
        for i, (u, v) in enumerate(kinds.tolist()):
            places.append((which == i).nonzero().squeeze(1))
            with self.engine.of_new(self._new_x(new, u, v)):
                answers.append(ask(places[-1]))
        return torch.cat(answers)[torch.cat(places).argsort()]

    def _new_x(self, new: UnknownIds, u: int, v: int) -> Tensor | None:
        """Return the features of the nodes without events in the places of `u` and `v`."""
        keys = [new.key(number) for number in dict.fromkeys((u, v)) if number < 0]
        if self.node_rows is None or not keys:
            return None
        is_dst = torch.tensor([side == "dst" for side, _ in keys]) if self.ids.bipartite else None
        x = self.node_rows([name for _, name in keys], is_dst)
        return torch.cat([x[:1], x[-1:]])

    def embed_nodes(self, nodes: Tensor, t: Tensor, new: UnknownIds) -> Tensor:
        """Return the embeddings of nodes (see `find`) at ticks, float `[N, dim]`."""
        known, cuts = nodes.where(nodes >= 0, self.graph.num_nodes), self._cuts(t)

        def embedded(rows: Tensor | slice) -> Tensor:
            return self.engine.embed(known[rows], t[rows], as_of=cuts[rows]).cpu()

        return self._in_turn(nodes, nodes, new, embedded)

    def _scored(
        self, logits: Tensor, parts: Sequence[tuple[PairQuery, Tensor | slice]]
    ) -> ScoredPairs:
        """Return logits of rows of queries as scores, one query after another."""
        values, calibration = logits.double().numpy(), self._calibration
        src, dst, new = [], [], []
        for asked, rows in parts:
            u, v = asked.src[rows], asked.dst[rows]
            src += asked.new.decode(u)
            dst += asked.new.decode(v)
            new += _new_ends(u, v)
        return ScoredPairs(
            src,
            dst,
            logits,
            torch.from_numpy(calibration.probabilities(values)),
            torch.from_numpy(calibration.anomalies(values)),
            new=new,
        )

    def neighbors(self, nodes: Tensor, t: Tensor, k: int) -> Neighbors:
        """Return the latest `k` neighbors of nodes (see `find`), before ticks, int64 `[N]` each."""
        nodes = nodes.clamp(min=-1)
        cuts = self.graph.log.positions(t).clamp(max=self.position)
        device = self.graph.device
        found = recent_neighbors(self.graph, nodes.to(device), t.to(device), k, cuts.to(device))
        return Neighbors(found.nodes.cpu(), found.t.cpu(), found.eid.cpu(), found.count.cpu())

    def destinations(self) -> Tensor:
        """Return all destinations so far by dense ids, int64 `[n]`."""
        return self.ids.without_erased(self.engine.destinations(as_of=self.position))

    def _cuts(self, t: Tensor) -> Tensor:
        """Return the log positions as of which questions at ticks are answered, int64 `[N]`."""
        cuts = self.graph.log.positions(t).clamp(max=self.position)
        if len(cuts):
            check_reach(self.engine.model, int(cuts.min()))
        return cuts

    def _num_nodes(self) -> int:
        if self._trainer is None:
            return self.graph.num_nodes
        return self._count.upto(self.position)

    def _columns_of(self, table: Any, at: Any, relation: Any, x: Any) -> tuple[Any, ...]:
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
        if x is None and self._reads_features and self.features.widths.keys() & {*names}:
            x = table
        return table[c.src], table[c.dst], times, relation, x

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
        position = self.position
        latest = self._latest  # once, as other threads may replace it
        if latest[0] != position:
            last = self.graph.log.read(position - 1, position)
            self._latest = latest = position, int(last.t) + 1
        return latest[1]

    def time_of(self, tick: float) -> float:
        """Return the time of a tick in the unit of the stream."""
        unit, own = self._stream.unit, self.graph.time_unit
        time = Fraction(tick) / (1 if own == "tick" else ticks_per_unit(unit, own))
        return int(time) if time.denominator == 1 else float(time)

    def _tick(self, time: Any) -> int:
        unit, tick = self._stream.unit, self.graph.time_unit
        format = self._stream.time_format
        seconds = time_seconds(time) if isinstance(time, str) else None
        if seconds is None and format is not None:
            seconds = time_seconds(str(time), format)
        if seconds is not None:
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
    """Return a value without the type of its column."""
    if isinstance(value, pa.Scalar):
        return value.as_py()
    return value.item() if isinstance(value, np.generic | Tensor) else value


def _new_ends(src: Tensor, dst: Tensor) -> list[str | None]:
    """Return which ends of pairs are negative, for `ScoredPairs.new`."""
    return [_ENDS[code] for code in ((src < 0) + 2 * (dst < 0)).tolist()]


_ENDS = (None, "src", "dst", "both")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
