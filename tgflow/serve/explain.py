"""Explanations of scores: contributions of groups of inputs, and effects of single past events."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tgflow.base.choices import CountOf
from tgflow.base.describe import described
from tgflow.base.units import duration, seconds_per_tick
from tgflow.graph import TemporalGraph
from tgflow.graph.counts import Number, Values, evaluated, leaves, number
from tgflow.graph.events import EventBatch
from tgflow.plan.count_lookup import CountHistory
from tgflow.train.inference import Inference, check_reach, checked_positions, checked_times

MAX_EVENTS = 256
"""Most past events whose effects are computed: the latest."""
NEIGHBORHOOD = "neighborhood"
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
    of both nodes."""
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
class Explanation:
    """Why a pair has its score.

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
    """Of the event against one random negative."""
    baseline: float
    """Logit of a pair without counted events and neighbors, in the same state of the model."""
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

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-serializable data."""
        return asdict(self)

    def named(
        self,
        src: Any,
        dst: Any,
        new: str | None,
        names: Callable[[Tensor], Sequence[Any]],
        time: Callable[[float], float],
    ) -> Explanation:
        """Return the explanation with other ids and times.

        Args:
            src: Id of the source.
            dst: Id of the destination.
            new: The field of that name.
            names: Returns the ids of nodes, int64 `[N]`.
            time: Returns the time of a tick.
        """
        ends = iter(names(torch.tensor([x for e in self.events for x in (e.src, e.dst)]).long()))
        events = tuple(
            replace(event, src=next(ends), dst=next(ends), t=time(event.t)) for event in self.events
        )
        return replace(self, src=src, dst=dst, t=time(self.t), events=events, new=new)


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
    ) -> Explanation:
        """Return why a pair has its score.

        Args:
            src: A node.
            dst: A node.
            t: A tick: only earlier events are visible.
            as_of: A log position: only events before are visible; None: all events in the graph.
            relation: Relation of the event; None without.
            probabilities: Maps logits to probabilities.
            num_events: Latest events of each counted list to consider, beside those of the
                neighborhood.

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
        past = _Past(self, src, dst, t, cut, relation, sampled, num_events)
        groups = past.groups
        values, without = past.subsets()
        scores = past.scores(values, without)
        parts = shapley(scores)
        order = sorted(range(len(groups)), key=lambda i: -abs(parts[i]))
        logit = float(scores[-1])
        events, num_to_halve, left = past.effects(logit, probabilities)
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
        )


class _Past:
    """The visible history of one pair, and its changes."""

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
        self._sampled = sampled.numpy()
        self._log = explainer.engine.graph.log
        kinds = [leaf.count.of for leaf in self._leaves if leaf.count is not None]
        self._lists = self._events_of({_LIST_OF.get(kind, kind) for kind in kinds})
        self.groups = [name for name, of in GROUPS.items() if {*of} & {*kinds}]
        if self._engine.fanouts:
            self.groups.append(NEIGHBORHOOD)
        self._own, self._new = self._values(explainer._counts)
        latest = [eids[len(eids) - min(most, len(eids)) :] for eids in self._lists.values()]
        self.eids = np.unique(np.concatenate([self._sampled, *latest]))[-MAX_EVENTS:]
        self._events = self._log.gather(torch.from_numpy(self.eids))

    def _events_of(self, kinds: set[CountOf]) -> dict[CountOf, NDArray[np.int64]]:
        """Return the log positions of all events of each kind, ascending."""
        (u, v, _), events = self._pair, self._log.read(0, self._cut)
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
            found[kind] = np.flatnonzero(is_one)
        return found

    def _values(self, counts: CountHistory) -> tuple[Values, Values]:
        """Return the leaves of the pair, and those of two nodes without events, `[L]` each."""
        src, dst, t = self._pair
        new = self._engine.graph.num_nodes
        pairs = [(src, dst), (new, new if src == dst else new + 1)]
        own, other = _answer(counts, pairs, t, self._cut, self._relation)
        return own, other

    def subsets(self) -> tuple[Values, list[Tensor | Literal["all"]]]:
        """Return the leaves `[2^G, L]` and the neighbors removed of each subset of the groups.

        Subset i has group j if i has bit j.
        """
        has = np.arange(2 ** len(self.groups))[:, None] >> np.arange(len(self.groups)) & 1
        values = np.tile(self._own, (len(has), 1))
        for j, leaf in enumerate(self._leaves):
            group = None if leaf.count is None else _GROUP_OF.get(leaf.count.of)
            if group is not None:
                is_there = has[:, self.groups.index(group)] > 0
                values[:, j] = np.where(is_there, self._own[j], self._new[j])
        none = torch.empty(0, dtype=torch.int64)
        if NEIGHBORHOOD not in self.groups:
            return values, [none] * len(has)
        return values, [none if each else "all" for each in has[:, -1]]

    def scores(self, values: Values, without: Sequence[Tensor | Literal["all"]]) -> Values:
        """Return the logits of changed histories, `[V]`, with leaves `[V, L]`."""
        columns: dict[Number, Any] = dict(zip(self._leaves, values.T, strict=True))
        counts = torch.from_numpy(evaluated(self._numbers, columns)) if self._numbers else None
        logits = self._engine.score_without(
            *self._pair, without, counts, as_of=self._cut, relation=self._relation
        )
        return np.asarray(logits)

    def contribution(self, name: str, logit: float) -> Contribution:
        if name == "sequence":
            return Contribution(name, logit, "events after the source's last destinations", ())
        eids = self._sampled
        if name != NEIGHBORHOOD:
            lists = {_LIST_OF.get(kind, kind) for kind in GROUPS[name]} & self._lists.keys()
            eids = np.unique(np.concatenate([self._lists[kind] for kind in lists]))
        behind = np.intersect1d(eids, self.eids)[::-1].tolist()
        among = "among " if name == "arrivals" and len(eids) else ""
        return Contribution(name, logit, among + self._text(name, eids), tuple(behind))

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
        drops = logit - self._scores_without(np.eye(len(self.eids), dtype=bool))
        order = np.lexsort((-self.eids, -drops))
        columns = (self.eids, *(x.numpy() for x in (self._events.src, self._events.dst)))
        rows = zip(*columns, self._events.t.numpy(), drops, strict=True)
        events = [EventEffect(*map(_plain, row)) for row in rows]
        gone = np.zeros((len(order), len(order)), bool)
        gone[:, order] = np.tri(len(order), dtype=bool)
        left = probabilities(self._scores_without(gone))
        is_half = left <= probabilities(np.array([logit])) / 2
        num = int(is_half.argmax()) + 1 if is_half.any() else None
        return tuple(events[i] for i in order), num, float(left[-1])

    def _scores_without(self, gone: _Removed) -> Values:
        """Return the logits without some of the events, `[V]` of bool `[V, K]`."""
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
        return self.scores(values, without)

    def _changes(self, numbers: Sequence[Number], gone: _Removed) -> Values:
        """Return by how much numbers change without some of the events, `[V, len(numbers)]`."""
        src, dst, t = self._pair
        events = self._log.read(0, self._cut)
        is_near = [np.isin(ends.numpy(), (src, dst)) for ends in (events.src, events.dst)]
        eids = np.flatnonzero(is_near[0] | is_near[1])[-_MAX_RECOUNTED:]
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

    Args:
        values: float64 `[2^G]`: the worth of subset i, which has player j if i has bit j.
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
