"""Explanations of scores: contributions of groups of inputs, and effects of single past events."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tgflow.base.choices import CountOf, Side
from tgflow.base.describe import described
from tgflow.base.units import duration, seconds_per_tick
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import Batch
from tgflow.graph.counts import Number, Values, evaluated, leaves, number
from tgflow.graph.events import EventBatch
from tgflow.plan.count_lookup import CountHistory
from tgflow.train.inference import Inference, check_reach, checked_positions, checked_times
from tgflow.train.tasks.labels import EventLabels
from tgflow.train.tasks.targets import DEPTH

MAX_EVENTS = 256
"""Most past events whose effects are computed: the latest."""
LINK, NEIGHBORHOOD, MEMORY = "link", "neighborhood", "memory"
LISTS: Mapping[str, Sequence[int]] = {
    "pair labels": (0, 1),
    "source labels": (2,),
    "destination labels": (3,),
}
"""The lists of known labels (`LastEvents.before`) of each group of a label's inputs."""
MAX_COLUMNS = 4
"""Most feature columns that are groups of their own."""
LATEST = 8
"""Known labels of a node that an explanation shows."""
GROUPS: Mapping[str, tuple[CountOf, ...]] = {
    "pair": ("pair", "reverse", "pair_relation"),
    "source": ("src", "src_as_dst", "src_new", "src_switch", "src_relation"),
    "destination": ("dst", "dst_as_src", "dst_relation"),
    "arrivals": ("dst_new", "dst_first", "dst_switch"),
    "sequence": (
        *("transition", "transition_row", "window", "window_row"),
        *("continuation", "own_transition", "covisit"),
    ),
}
"""The counts of each group of inputs. Other counts are the same for all pairs."""
_GROUP_OF = {kind: name for name, kinds in GROUPS.items() for kind in kinds}
_LIST_OF: Mapping[CountOf, CountOf] = {
    "src_new": "src",
    "src_switch": "src",
    "dst_new": "dst",
    "dst_first": "dst",
    "dst_switch": "dst",
}
"""Kinds that count some of the events of another one."""
_ALONE: tuple[CountOf, ...] = (
    *("pair", "reverse", "src", "src_as_dst", "src_new", "src_switch", "own_transition"),
    *("dst", "dst_as_src", "dst_new"),
    *("pair_relation", "src_relation", "dst_relation"),
)
"""Kinds that are counted from the events of the two nodes alone."""
_MAX_RECOUNTED = 4096
"""Most events that are counted again without some of them: the latest of the two nodes."""
_Removed: TypeAlias = NDArray[np.bool_]


@described
@dataclass(frozen=True, slots=True)
class Contribution:
    """Contribution of a group of a model's inputs to the logit of a pair."""

    name: str
    """`pair`, `source`, `destination`, `arrivals` (first events of sources and partners at the
    destination) or `sequence` for counts of past events; `neighborhood` for the sampled neighbors
    of both nodes. Of a label also `memory` for the model's state of both nodes, `pair labels`,
    `source labels` and `destination labels` for known labels of past events; and the event's
    feature columns, or `features` for more than four."""
    logit: float
    """Its Shapley value: the mean change of the logit by these inputs, over all orders in which
    groups are added to a pair without history. For a linear score w . (x - x0)."""
    text: str
    """The group in words, such as "12 events, the last one 3 h before"."""
    events: tuple[int, ...]
    """Log positions of its latest events, latest first."""


@described
@dataclass(frozen=True, slots=True)
class EventEffect:
    """A past event, and its effect on the logit of a pair."""

    eid: int
    """Log position."""
    src: Any
    """Source; as the ids of the explanation."""
    dst: Any
    t: float
    drop: float
    """Logit with the event minus logit without it. Negative: the event lowers the score."""


@described
@dataclass(frozen=True, slots=True)
class KnownLabel:
    """A past event whose label was known."""

    eid: int
    """Log position."""
    src: Any
    """Source; as the ids of the explanation."""
    dst: Any
    t: float
    label: Any
    """Its label; of two classes 1 or 0."""


@described
@dataclass(frozen=True, slots=True)
class LabelRecord:
    """The known labels of the past events of a node."""

    side: Side
    """`src` for the events from the source, `dst` for those to the destination."""
    num_known: int
    num_positive: int
    """How many of them have the label that is explained."""
    latest: tuple[KnownLabel, ...]
    """The latest ones, latest first."""


@described
@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a pair has its score, or an event the probability of its label.

    `baseline` plus the `groups`' logits is `logit`. Of an `Explainer` nodes and times are dense ids
    and ticks; of a run, such as `tg.open_run(path).explain(...)`, the ids and times of its stream.
    """

    src: Any
    dst: Any
    t: float
    position: int
    """Number of events that were visible."""
    logit: float
    """Higher is likelier."""
    probability: float
    """Of the event against one random negative; or of the label."""
    baseline: float
    """Logit of a pair without counted events and neighbors, in the same state of the model. Of a
    label: of a pair without memory, neighbors and known labels, and with mean features."""
    groups: tuple[Contribution, ...] = ()
    """Groups of inputs, those with the largest contributions first."""
    events: tuple[EventEffect, ...] = ()
    """The latest past events of the groups, those that raise the logit most first."""
    num_to_halve: int | None = None
    """How many of the first `events` must be removed until the probability is at most half; None if
    the removal of all of them does not suffice."""
    probability_left: float | None = None
    """Probability once all `events` are removed; None without events."""
    new: str | None = None
    """The ends that no event has, as `ScoredPairs.new`."""
    of: str = LINK
    """`link`, or the column of the label whose logit is explained."""
    label: Any = None
    """The label: of two classes 1, else the predicted one, or the one asked about; None of links"""
    history: tuple[LabelRecord, ...] = ()
    """The known labels of both nodes; none of links."""

    @property
    def reason(self) -> str:
        """The two groups that raise the logit most, in words; "" if none raises it."""
        raising = sorted((x for x in self.groups if x.logit > 0), key=lambda x: -x.logit)
        return "; ".join(f"{group.name}: {group.text}" for group in raising[:2])

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and `reason` as JSON-serializable data."""
        return asdict(self) | {"reason": self.reason}

    def named(
        self,
        src: Any,
        dst: Any,
        new: str | None,
        names: Callable[[Tensor], Sequence[Any]],
        time: Callable[[float], float],
        label_names: Sequence[str | int] = (),
    ) -> Explanation:
        """Return the explanation by the ids and times of a stream: those of nodes by `names`, of
        ticks by `time`, and labels by their numbers, unless these are the labels.
        """

        def label(number: Any) -> Any:
            return label_names[number] if label_names and number is not None else number

        def named(event: Any) -> Any:
            u, v = names(torch.tensor([event.src, event.dst]))
            return replace(event, src=u, dst=v, t=time(event.t))

        def known(record: LabelRecord) -> LabelRecord:
            rows = (replace(named(each), label=label(each.label)) for each in record.latest)
            return replace(record, latest=tuple(rows))

        return replace(
            self,
            src=src,
            dst=dst,
            t=time(self.t),
            events=tuple(map(named, self.events)),
            new=new,
            label=label(self.label),
            history=tuple(map(known, self.history)),
        )


class LabelQuestion(NamedTuple):
    """The label of an event that is explained."""

    labels: EventLabels
    x: Tensor | None = None
    """The event's own features, scaled, float32 `[1, x_dim]`; None if labels depend on none."""
    columns: Sequence[tuple[str, int, str]] = ()
    """Name, width and value of each feature column, in order."""
    label: int | None = None
    """One of more than two labels; None: the predicted one."""


def logistic(logits: Values) -> Values:
    """Return the logistic function."""
    return 0.5 * (1 + np.tanh(0.5 * logits))


class Explainer:
    """Explains scores of an engine, by the same model on changed histories of a pair.

    *Groups.* The inputs of a score are grouped: counts of past events by whose events they count,
    and the sampled neighborhood. Each subset of the groups is scored, others being those of two
    nodes without events at the same time and position; contributions are exact Shapley values.

    *Events.* Each of the pair's latest events is removed, from neighborhoods and from counts, and
    the pair scored again. Scores are then those of a log without the event, except that a node
    memory keeps what it has learned, numbers that depend on the events of other nodes stay (such as
    sequences, first events of other sources, and the ages of other events in events), and random
    strategies draw no other neighbor. Only the latest 4,096 events of the two nodes are counted
    again.

    Keeps counts of its own, for which it reads the log once. Thread-safe.

    Args:
        engine: Engine whose scores are explained; fan-outs must be numbers.

    Raises:
        ValueError: If events have been deleted from the graph, and the model counts them.

    Example:
        >>> explainer = tg.serve.Explainer(tg.Inference(tg.Recency(rule="LR>GR"), graph))
        >>> found = explainer.explain(0, 2, t=50)
        >>> for group in found.groups:
        ...     print(f"{group.name}: {group.text}")
        pair: 1 event, 40 s before
        destination: 2 events, the last one 10 s before
    """

    def __init__(self, engine: Inference) -> None:
        self.engine = engine
        self._numbers = tuple(map(number, engine.model.counts))
        self._leaves = leaves(self._numbers)
        self._counts = CountHistory(engine.graph, self._leaves)

    def explain(
        self,
        src: int,
        dst: int,
        t: int,
        *,
        as_of: int | None = None,
        relation: int | None = None,
        probabilities: Callable[[Values], Values] = logistic,
        num_events: int = 50,
        of: LabelQuestion | None = None,
        with_effects: bool = True,
    ) -> Explanation:
        """Return why a pair has its score, or an event the probability of its label.

        Args:
            src: A node.
            dst: A node.
            t: A tick: only earlier events are visible.
            as_of: A log position: only events before are visible; None: all events in the graph.
            relation: Relation of the event; None without.
            probabilities: Maps logits to probabilities.
            num_events: Latest events of each counted list to consider, beside those of the
                neighborhood.
            of: The label to explain; None: the link.
            with_effects: Whether to compute the effects of single events.

        Raises:
            IndexError: If the graph has no such node.
            ValueError: If an argument is out of range, the model counts relations and none is
                given, or its memory does not reach back so far.
        """
        if num_events < 0:
            raise ValueError(f"num_events must be at least 0, got {num_events}")
        log = self.engine.graph.log
        [limit] = checked_positions(as_of, 1, len(log)).tolist()
        cut = min(log.position(int(checked_times(t, 1))), limit)
        check_reach(self.engine.model, cut)
        sampled = self.engine.neighborhood(src, dst, t, as_of=cut, relation=relation)
        past: _Past
        if of is None:
            past = _LinkPast(self, src, dst, t, cut, relation, sampled, num_events)
        else:
            past = _LabelPast(self, src, dst, t, cut, relation, sampled, num_events)
            past.ask(of)
            probabilities = logistic
        groups = past.groups
        scores = past.logits_with(
            np.arange(2 ** len(groups))[:, None] >> np.arange(len(groups)) & 1
        )
        parts = shapley(scores)
        order = sorted(range(len(groups)), key=lambda i: -abs(parts[i]))
        logit = float(scores[-1])
        effects = past.effects(logit, probabilities) if with_effects else ((), None, None)
        events, num_to_halve, left = effects
        return Explanation(
            src,
            dst,
            t,
            cut,
            logit,
            float(probabilities(scores[-1:])[0]),
            float(scores[0]),
            tuple(past.contribution(groups[i], float(parts[i])) for i in order),
            events,
            num_to_halve,
            left,
            **past.facts,
        )


class _Past(ABC):
    """The visible history of one pair, and its changes."""

    groups: list[str]
    eids: NDArray[np.int64]
    """Log positions of the events whose effects are computed, ascending."""

    def __init__(
        self,
        explainer: Explainer,
        src: int,
        dst: int,
        t: int,
        cut: int,
        relation: int | None,
        sampled: Tensor,
        most: int,
    ) -> None:
        self._engine, self._numbers = explainer.engine, explainer._numbers
        self._leaves = explainer._leaves
        self._pair, self._cut, self._relation = (src, dst, t), cut, relation
        self._sampled, self._most = sampled.numpy(), most
        self._log = explainer.engine.graph.log
        self.facts: dict[str, Any] = {}
        """Further fields of the explanation."""

    @abstractmethod
    def logits_with(self, has: NDArray[np.int64]) -> Values:
        """Return the logits with the groups marked in each row, `[V]` of `[V, G]`."""

    @abstractmethod
    def logits_without(self, gone: _Removed) -> Values:
        """Return the logits without some of the events, `[V]` of bool `[V, K]`."""

    @abstractmethod
    def contribution(self, name: str, logit: float) -> Contribution:
        """Return the contribution of a group."""

    def _consider(self, *lists: NDArray[np.int64]) -> None:
        """Take the latest events of lists as those whose effects are computed."""
        self.eids = np.unique(np.concatenate([self._sampled, *lists]))[-MAX_EVENTS:]
        self._events = self._log.gather(torch.from_numpy(self.eids))

    def _behind(self, name: str, logit: float, text: str, eids: NDArray[np.int64]) -> Contribution:
        behind = np.intersect1d(eids, self.eids)[::-1].tolist()
        return Contribution(name, logit, text, tuple(behind))

    def _text(self, group: str, eids: NDArray[np.int64]) -> str:
        sampled = "sampled " if group == NEIGHBORHOOD else ""
        if not len(eids):
            return f"no {sampled}events"
        graph, last = self._engine.graph, self._log.gather(torch.tensor([eids.max()])).t
        age = self._pair[2] - int(last)
        ago = age_text(age, graph.time_unit)
        if len(eids) == 1:
            return f"1 {sampled}event, {ago} before"
        return f"{len(eids):,} {sampled}events, the last one {ago} before"

    def effects(
        self, logit: float, probabilities: Callable[[Values], Values]
    ) -> tuple[tuple[EventEffect, ...], int | None, float | None]:
        """Return `events`, `num_to_halve` and `probability_left` of an explanation."""
        if not len(self.eids):
            return (), None, None
        drops = logit - self.logits_without(np.eye(len(self.eids), dtype=bool))
        order = np.lexsort((-self.eids, -drops))
        columns = (self.eids, *(x.numpy() for x in (self._events.src, self._events.dst)))
        rows = zip(*columns, self._events.t.numpy(), drops, strict=True)
        events = [EventEffect(*map(_plain, row)) for row in rows]
        gone = np.zeros((len(order), len(order)), bool)
        gone[:, order] = np.tri(len(order), dtype=bool)
        left = probabilities(self.logits_without(gone))
        is_half = left <= probabilities(np.array([logit])) / 2
        num = int(is_half.argmax()) + 1 if is_half.any() else None
        return tuple(events[i] for i in order), num, float(left[-1])


class _LinkPast(_Past):
    """The history behind the score of a pair: counts and neighbors."""

    def __init__(self, explainer: Explainer, *asked: Any) -> None:
        super().__init__(explainer, *asked)
        kinds = [leaf.count.of for leaf in self._leaves if leaf.count is not None]
        self._lists = self._events_of({_LIST_OF.get(kind, kind) for kind in kinds})
        self.groups = [name for name, of in GROUPS.items() if {*of} & {*kinds}]
        if self._engine.fanouts:
            self.groups.append(NEIGHBORHOOD)
        since = self._engine.graph.since(self._cut)
        (src, dst, t), new = self._pair, self._engine.graph.num_nodes
        pairs = [(src, dst), (new, new if src == dst else new + 1)]
        self._own, self._new = _answer(
            explainer._counts.at(since), pairs, t, self._cut, self._relation
        )
        """Leaves of the pair, and those of two nodes without events, `[L]` each."""
        most = self._most
        self._consider(*(eids[len(eids) - min(most, len(eids)) :] for eids in self._lists.values()))

    def _events_of(self, kinds: set[CountOf]) -> dict[CountOf, NDArray[np.int64]]:
        """Return the log positions of all events of each kind, ascending."""
        (u, v, _), since = self._pair, self._engine.graph.since(self._cut)
        events = self._log.read(since, self._cut)
        src, dst = events.src.numpy(), events.dst.numpy()
        ends: dict[CountOf, tuple[int | None, int | None]] = {
            "pair": (u, v),
            "reverse": (v, u),
            "src": (u, None),
            "dst": (None, v),
            "src_as_dst": (None, u),
            "dst_as_src": (v, None),
            "pair_relation": (u, v),
            "src_relation": (u, None),
            "dst_relation": (None, v),
        }
        found = {}
        for kind in kinds & ends.keys():
            first, second = ends[kind]
            is_one = np.ones(len(src), bool) if first is None else src == first
            if second is not None:
                is_one &= dst == second
            if kind.endswith("_relation") and events.relation is not None:
                is_one &= events.relation.numpy() == self._relation
            found[kind] = since + np.flatnonzero(is_one)
        return found

    def logits_with(self, has: NDArray[np.int64]) -> Values:
        values = np.tile(self._own, (len(has), 1))
        for j, leaf in enumerate(self._leaves):
            group = None if leaf.count is None else _GROUP_OF.get(leaf.count.of)
            if group is not None:
                is_there = has[:, self.groups.index(group)] > 0
                values[:, j] = np.where(is_there, self._own[j], self._new[j])
        return self._scores(values, _kept(has, self.groups))

    def _scores(self, values: Values, without: Sequence[Tensor | Literal["all"]]) -> Values:
        """Return the logits of changed histories, `[V]`, with leaves `[V, L]`."""
        columns: dict[Number, Any] = dict(zip(self._leaves, values.T, strict=True))
        counts = torch.from_numpy(evaluated(self._numbers, columns)) if self._numbers else None

        def counted(batch: Batch, rows: slice) -> Batch:
            if counts is None:
                return batch
            return replace(batch, counts=counts[rows].unsqueeze(1).to(batch.t.device))

        logits = self._engine.score_without(
            *self._pair, without, change=counted, as_of=self._cut, relation=self._relation
        )
        return np.asarray(logits)

    def contribution(self, name: str, logit: float) -> Contribution:
        if name == "sequence":
            return Contribution(name, logit, "events after the source's last destinations", ())
        eids = self._sampled
        if name != NEIGHBORHOOD:
            lists = {_LIST_OF.get(kind, kind) for kind in GROUPS[name]} & self._lists.keys()
            eids = np.unique(np.concatenate([self._lists[kind] for kind in lists]))
        among = "among " if name == "arrivals" and len(eids) else ""
        return self._behind(name, logit, among + self._text(name, eids), eids)

    def logits_without(self, gone: _Removed) -> Values:
        values = np.tile(self._own, (len(gone), 1))
        alone = [j for j, leaf in enumerate(self._leaves) if _is_alone(leaf)]
        if alone:
            values[:, alone] += self._changes([self._leaves[j] for j in alone], gone)
        for j, leaf in enumerate(self._leaves):
            count = leaf.count
            if leaf.op == "decayed" and count is not None and count.clock == "events":
                is_one = np.isin(self.eids, self._lists.get(count.of, ()))
                age = (self._cut - self.eids) / (count.half_life or 1.0)
                values[:, j] -= gone @ (is_one * 0.5**age)
        without = [torch.from_numpy(self.eids[row]) for row in gone]
        return self._scores(values, without)

    def _changes(self, numbers: Sequence[Number], gone: _Removed) -> Values:
        """Return by how much numbers change without some of the events, `[V, len(numbers)]`."""
        src, dst, t = self._pair
        since = self._engine.graph.since(self._cut)
        events = self._log.read(since, self._cut)
        is_near = [np.isin(ends.numpy(), (src, dst)) for ends in (events.src, events.dst)]
        eids = since + np.flatnonzero(is_near[0] | is_near[1])[-_MAX_RECOUNTED:]
        near = self._log.gather(torch.from_numpy(eids))
        nodes = torch.cat([torch.tensor([src, dst]), near.src, near.dst])
        dense = torch.unique(nodes, return_inverse=True)[1]  # few nodes: a small graph
        (u, v), near_src, near_dst = torch.split(dense, [2, len(near), len(near)])
        unit = self._engine.graph.time_unit

        def counted(kept: NDArray[np.bool_]) -> Values:
            graph, rows = TemporalGraph(time_unit=unit), torch.from_numpy(kept)
            relation = None if near.relation is None else near.relation[rows]
            some = EventBatch(near_src[rows], near_dst[rows], near.t[rows], relation=relation)
            graph.append(some, allow_late=True)
            history, pairs = CountHistory(graph, numbers), [(int(u), int(v))]
            return _answer(history, pairs, t, len(graph.log), self._relation).reshape(-1)

        is_kept = np.ones(len(eids), bool)
        whole, changes = counted(is_kept), np.zeros((len(gone), len(numbers)))
        for i, row in enumerate(gone):
            is_kept = ~np.isin(eids, self.eids[row])
            if not is_kept.all():
                changes[i] = counted(is_kept) - whole
        return changes


def _kept(has: NDArray[np.int64], groups: Sequence[str]) -> list[Tensor | Literal["all"]]:
    """Return the neighbors to leave out for each row of marked groups: none, or all."""
    none = torch.empty(0, dtype=torch.int64)
    if NEIGHBORHOOD not in groups:
        return [none] * len(has)
    return [none if each else "all" for each in has[:, groups.index(NEIGHBORHOOD)]]


class _LabelPast(_Past):
    """The inputs behind the label of an event: neighbors, memory, known labels and features."""

    def ask(self, of: LabelQuestion) -> None:
        """Take the label that is explained."""
        self._of, model, (u, v, t) = of, self._engine.model, self._pair
        src, dst, at, limit = (torch.tensor([x]) for x in (u, v, t, self._cut))
        history = of.labels.history
        self._view = history.asked(at, limit)
        self._last = history.last_of(src, dst, self._view, DEPTH + MAX_EVENTS)[0]
        near = self._last[:, :DEPTH].flatten().numpy()
        self._consider(near[near >= 0])
        columns = [(name, width) for name, width, _ in of.columns]
        if len(columns) > MAX_COLUMNS or (of.x is not None and not columns):
            columns = [("features", 0 if of.x is None else of.x.shape[1])]
        self._columns = dict(columns)
        self.groups = [*LISTS, *self._columns]
        self.groups += [MEMORY] if model.state is not None else []
        self.groups += [NEIGHBORHOOD] if self._engine.fanouts else []
        [classes] = self._classes(np.ones((1, len(self.groups)), dtype=np.int64))
        self._code, label = 1, of.label
        if len(classes) > 2:
            codes, predicted = history.codes, int(classes.argmax())
            self._code = predicted if of.label is None else codes.get(of.label, -1)
            if self._code < 0:
                raise ValueError(
                    f"no learned event has the label {of.label!r}; labels are {[*codes]}"
                )
            label = next((name for name, code in codes.items() if code == self._code), None)
        elif of.label in (None, 1):
            label = 1
        else:
            raise ValueError(f"label {of.label!r}: of two labels that of class 1 is explained")
        self.facts = {
            "of": of.labels.task.config.target,
            "label": label,
            "history": (self._record("src"), self._record("dst")),
        }

    def _record(self, side: Side) -> LabelRecord:
        (u, v, _), history = self._pair, self._of.labels.history
        since = self._view.since
        events = self._log.read(since, self._cut)
        is_own = events.src == u if side == "src" else events.dst == v
        eids = since + is_own.nonzero().squeeze(1)
        codes = self._codes(eids)
        eids, codes = eids[codes >= 0], codes[codes >= 0]
        names = [*history.codes] if history.num_classes > 2 else [0, 1]
        latest = tuple(
            KnownLabel(
                since + i, int(events.src[i]), int(events.dst[i]), int(events.t[i]), names[code]
            )
            for i, code in zip(
                (eids[-LATEST:] - since).tolist(), codes[-LATEST:].tolist(), strict=True
            )
        )
        num_positive = int((codes == self._code).sum())
        return LabelRecord(side, len(eids), num_positive, latest[::-1])

    def _codes(self, eids: Tensor) -> Tensor:
        """Return the classes of events as far as their labels are visible, or else -1."""
        return self._of.labels.history.seen(eids.unsqueeze(0), self._view)[0]

    def logits_with(self, has: NDArray[np.int64]) -> Values:
        return self._odds(self._classes(has))

    def logits_without(self, gone: _Removed) -> Values:
        return self._odds(
            self._classes(np.ones((len(gone), len(self.groups)), dtype=np.int64), gone)
        )

    def _odds(self, classes: Tensor) -> Values:
        return self._of.labels.odds(classes, self._code).numpy()

    def _classes(self, has: NDArray[np.int64], gone: _Removed | None = None) -> Tensor:
        """Return the logits of the classes, float64 `[V, num_classes]`."""
        marked = {name: torch.from_numpy(has[:, i] > 0) for i, name in enumerate(self.groups)}
        last = torch.full((len(has), len(self._last), DEPTH), -1)
        for i, row in enumerate(last):
            kept = [*self._last]
            if gone is not None:
                away = torch.from_numpy(self.eids[gone[i]])
                kept = [each[~torch.isin(each, away)] for each in kept]
            for name, lists in LISTS.items():
                for place in lists if marked[name][i] else ():
                    row[place] = kept[place][:DEPTH]
        x = None if self._of.x is None else self._of.x.repeat(len(has), 1)
        start = 0
        for name, width in self._columns.items():
            if x is not None:
                x[~marked[name], start : start + width] = 0
            start += width

        def changed(batch: Batch, rows: slice) -> Batch:
            own = batch.x if x is None else x[rows].to(batch.t.device)
            as_of = torch.full((len(batch.host.t),), self._cut)
            return self._of.labels.asked(replace(batch, x=own), as_of, last[rows])

        without = _kept(has, self.groups)
        if gone is not None:
            without = [torch.from_numpy(self.eids[row]) for row in gone]
        return self._engine.score_without(
            *self._pair,
            without,
            forgets=[not each for each in marked[MEMORY]] if MEMORY in marked else None,
            change=changed,
            read=lambda found: found.named()["classes"],
            as_of=self._cut,
            relation=self._relation,
        )

    def contribution(self, name: str, logit: float) -> Contribution:
        if name == NEIGHBORHOOD:
            return self._behind(name, logit, self._text(name, self._sampled), self._sampled)
        if name == MEMORY:
            return Contribution(name, logit, "what the model keeps of both nodes", ())
        if name not in LISTS:
            texts = {column: text for column, _, text in self._of.columns}
            num = len(self._of.columns)
            return Contribution(name, logit, texts.get(name) or f"{num or 'all'} columns", ())
        eids = self._last[list(LISTS[name]), :DEPTH].flatten()
        eids = torch.unique(eids[eids >= 0])
        num = int((self._codes(eids) == self._code).sum())
        text = f"{num} positive of the latest {len(eids)}" if len(eids) else "no known labels"
        return self._behind(name, logit, text, eids.numpy())


def _is_alone(leaf: Number) -> bool:
    """Whether a number depends on no events but those of the two nodes."""
    count = leaf.count
    if count is None or count.of not in _ALONE or count.clock == "events":
        return False
    return leaf.op != "rank" or count.of == "pair"


def _answer(
    counts: CountHistory,
    pairs: Sequence[tuple[int, int]],
    t: int,
    position: int,
    relation: int | None,
) -> Values:
    """Return the numbers of some pairs at one time and position, `[len(pairs), C]`."""
    src, dst = torch.tensor(pairs).unbind(1)
    num = len(src)
    related = None if relation is None else torch.full((num,), relation)
    found = counts.answer(
        EventBatch.checked(src=src, dst=dst, t=torch.full((num,), t), relation=related),
        None,
        torch.empty(num, 0, dtype=torch.int64),
        limit=torch.full((num,), position),
        stop=position,
    )
    numbers: Values = found[:, 0].numpy()
    return numbers


def age_text(age: float, unit: str) -> str:
    """Write the time from an event to a score, such as "3 h 2 min" or "7 ticks"."""
    if unit != "tick":
        return duration(age * seconds_per_tick(unit))
    return f"{age:,} tick{'s' * (age != 1)}"


def shapley(values: Values) -> Values:
    """Return the Shapley values of `G` players, float64 `[G]`, for the worth of all 2^G subsets.

    Subset i of `values` has player j if i has bit j.
    """
    num = len(values).bit_length() - 1
    subsets = np.arange(len(values))
    sizes = (subsets[:, None] >> np.arange(num) & 1).sum(1)
    found = np.zeros(num)
    for player in range(num):
        lacking = subsets[subsets >> player & 1 == 0]
        orders = [math.factorial(s) * math.factorial(num - s - 1) for s in sizes[lacking].tolist()]
        weights = np.array(orders) / math.factorial(num)
        found[player] = weights @ (values[lacking | 1 << player] - values[lacking])
    return found


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
