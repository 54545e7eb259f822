"""Leaders, differences, slices and drift, from the scores of every event."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgflow.base.choices import METRIC_TITLES
from tgflow.base.resampling import RESAMPLES, Interval, Resampling, Values
from tgflow.base.units import seconds_in
from tgflow.report.compare.outcome import Outcome
from tgflow.report.compare.significance import (
    Significance,
    ap_values,
    block_length,
    chance_above,
    compare_means,
)
from tgflow.report.formatting import score
from tgflow.report.label_figures import COLUMNS, columns_of, figure_name, named, rule_rows, task_of
from tgflow.train.tasks.figures import bin_scores, calibration_of

NUM_WINDOWS = 20
_HOUR = 3600.0
AGES = {
    "pair up to 1 h ago": (0.0, _HOUR),
    "pair up to 1 day ago": (_HOUR, 24 * _HOUR),
    "pair up to 1 week ago": (24 * _HOUR, 168 * _HOUR),
    "pair longer ago": (168 * _HOUR, np.inf),
}
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Slice:
    """A subset of the events, and how well each model ranked them."""

    name: str
    num: int
    mrr: dict[str, Interval]
    ap: dict[str, float]


@dataclass(frozen=True, slots=True)
class Worth:
    """Mean reciprocal rank of a model minus that of its frozen copy, for the same events."""

    copy: str
    origin: str
    num_events: int
    """Events since the copy was frozen."""
    since: Interval
    """Interval of a paired block bootstrap over these events."""
    chance: float
    """Share of the resamples in which it is above 0; ties count one half."""


class Analysis:
    """Statistics of the models that finished a comparison.

    Only events scored by all of them count, so that all differences are over the same events.
    """

    def __init__(self, outcome: Outcome, batch_size: int, num_resamples: int = RESAMPLES) -> None:
        self.outcome = outcome
        self.batch_size = batch_size
        self._num_resamples = num_resamples
        self._participants: Mapping[str, Any] = outcome.summary["participants"]
        self.keys: dict[str, list[str]] = {}
        """Models that finished, by label."""
        scored = []
        for key, each in self._participants.items():
            finite = np.isfinite(outcome.scores[key])
            if each["failure"] is None and finite.any():
                self.keys.setdefault(each["label"], []).append(key)
                scored.append(finite[:, 0])
        self.counts: Mask = np.logical_and.reduce(scored) if scored else np.zeros(0, bool)
        self.facts = {name: column[self.counts] for name, column in outcome.facts.items()}
        self.num_events = int(self.counts.sum())

    @cached_property
    def reciprocal_ranks(self) -> dict[str, Values]:
        """Reciprocal ranks, by label `[S, N]`."""
        return {label: self._column(label, 0) for label in self.keys}

    @cached_property
    def mrr(self) -> Significance:
        """Significance of the reciprocal ranks of events."""
        return compare_means(self.reciprocal_ranks, num_resamples=self._num_resamples)

    @cached_property
    def ap(self) -> Significance:
        """Significance of the average precision of batches, in blocks of as many events."""
        values = {label: self._batch_aps(label, slice(None)) for label in self.keys}
        block = max(1, block_length(self.num_events) // self.batch_size)
        return compare_means(values, block=block, num_resamples=self._num_resamples)

    @property
    def task(self) -> tuple[str, str] | None:
        """Prefix of the label figures of the models, and the leading figure; None without any."""
        every = (each for label in self.keys for each in self.of_label(label))
        return next((found for each in every if (found := task_of(each)) is not None), None)

    @cached_property
    def judged(self) -> dict[str, Values]:
        """Values by which predicted labels are judged, `[S, N]`, by label of the models that do."""
        if "class" not in self.facts:
            return {}
        found = {label: self._column(label, 3) for label in self.keys}
        return {label: values for label, values in found.items() if np.isfinite(values).all()}

    @cached_property
    def labels(self) -> Significance | None:
        """Significance of the leading figure of predicted labels; None if it is not defined."""
        if not self.judged or self.task is None:
            return None
        figure, values = self.task[1], self.judged
        values, positives = {n: x[:, self._known] for n, x in values.items()}, self.positives
        positives = positives[self._known]
        if figure == "ap" and 0 < positives.sum() < len(positives):
            values = {
                label: np.stack([ap_values(row, positives) for row in rows])
                for label, rows in values.items()
            }
        elif figure != "mrr":
            return None
        return compare_means(values, num_resamples=self._num_resamples)

    @property
    def leading(self) -> tuple[str, Significance]:
        """The figure that models are compared by first, and its significance."""
        if self.labels is None or self.task is None:
            return "MRR", self.mrr
        prefix, figure = self.task
        key = f"{prefix.partition('.')[2]}.{figure}"
        return figure_name(key, self.outcome.summary), self.labels

    def label_windows(self) -> dict[str, list[float]]:
        """Return the leading figure of labels in each window, the mean over seeds.

        NaN for the AP of a window whose labels are all alike.
        """

        def figure(row: Values, window: slice) -> float:
            known = self._known[window]
            row, are_positive = row[window][known], self.positives[window][known]
            if not len(row):
                return np.nan
            if self.task is None or self.task[1] != "ap":
                return float(row.mean())
            if are_positive.all() or not are_positive.any():
                return np.nan
            return float(ap_values(row, are_positive).mean())

        return {
            label: [float(np.mean([figure(row, w) for row in rows])) for w in self.windows()]
            for label, rows in self.judged.items()
        }

    def calibration(self) -> dict[str, dict[int, float]]:
        """Return the share of label 1 in each tenth of predicted probability, over all seeds."""
        if self.task is None or self.task[1] != "ap":
            return {}
        known = self._known
        positives = self.positives[known]
        return {
            label: calibration_of(bin_scores(rows[:, known].ravel(), np.tile(positives, len(rows))))
            for label, rows in self.judged.items()
        }

    @property
    def _known(self) -> Mask:
        return np.asarray(self.facts["class"] >= 0)

    @property
    def positives(self) -> Mask:
        """Whether the label of each event is 1, of two classes; bool `[N]`."""
        return np.asarray(self.facts["class"] == 1)

    def label_table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]] | None:
        """Return header and rows of the label figures; None without a task.

        First the models that predict labels, the best one first, with an interval over all seeds
        and p of the leading figure; then the others, and heuristic baselines of labels.
        """
        if self.task is None:
            return None
        prefix, leading = self.task
        means = {} if self.labels is None else self.labels.means
        flat = {name: x for label in self.keys for name, x in self.of_label(label)[0].items()}
        keys = columns_of(flat, prefix, leading)
        rows = []
        for label in sorted(self.keys, key=[*means, *self.keys].index):
            values = [
                np.mean([each.get(f"{prefix}.{key}", np.nan) for each in self.of_label(label)])
                for key in keys
            ]
            interval = p = ""
            if label in means and self.labels is not None:
                mean, best = means[label], self.labels.p_of_best(label)
                values[0], interval = mean.mean, f"{mean.low:.3f}–{mean.high:.3f}"
                p = "best" if best is None else f"{best:.4f}"
            first, *others = map(score, values)
            rows.append((label, first, interval, p, *others))
        for name, first, *others in rule_rows({**flat, **self.outcome.summary}, prefix, keys):
            rows.append((name, first, "", "", *others))
        first, *others = (COLUMNS[key] for key in keys)
        head = f"labels, {prefix.partition('.')[2]}{named(self.outcome.summary, ': ')}"
        return (head, first, "95 %", "p", *others), rows

    @cached_property
    def slices(self) -> list[Slice]:
        """The events, sliced by their attributes; empty slices are omitted."""
        resampling = Resampling(self.num_events, block_length(self.num_events), self._num_resamples)
        return [self._slice(name, mask, resampling) for name, mask in self._masks() if mask.any()]

    def windows(self) -> list[slice]:
        """Return the bounds of 20 windows of about equally many events."""
        cuts = np.linspace(0, self.num_events, min(NUM_WINDOWS, self.num_events) + 1).astype(int)
        return [slice(a, b) for a, b in itertools.pairwise(cuts)]

    @cached_property
    def worths(self) -> list[Worth]:
        """The gain from continued learning of each model that has a frozen copy."""
        return [worth for label in self.keys if (worth := self._worth(label)) is not None]

    def _worth(self, copy: str) -> Worth | None:
        first, *_ = self.of_label(copy)
        origin = first["frozen_of"]
        if origin not in self.keys:
            return None
        at = int(np.searchsorted(self.facts["eid"], first["frozen_at"]))
        seeds, of_copy = ([each["seed"] for each in self.of_label(name)] for name in (origin, copy))
        gains = [
            self.reciprocal_ranks[origin][row, at:]
            - self.reciprocal_ranks[copy][of_copy.index(seed), at:]
            for row, seed in enumerate(seeds)
            if seed in of_copy
        ]
        if not gains or at >= self.num_events:
            return None
        late = np.stack(gains)
        size = late.shape[1]
        drawn = Resampling(size, block_length(size), self._num_resamples).means(late)
        return Worth(copy, origin, size, Interval.of(late.mean(), drawn), chance_above(drawn))

    def drift(self, seconds_per_tick: float) -> dict[str, list[float]]:
        """Return statistics of the stream in each window, independent of models.

        `repeats`, `new nodes`, `ties`: shares of the events; `events a day`; `shift`: the
        Jensen-Shannon divergence, in bits, of its destinations from those of the window before.
        """
        facts, windows = self.facts, self.windows()
        new = (facts["num_src"] == 0) | (facts["num_dst"] == 0)
        out: dict[str, list[float]] = {
            "repeats": [float((facts["num_pair"][w] > 0).mean()) for w in windows],
            "new nodes": [float(new[w].mean()) for w in windows],
            "ties": [float(facts["tied"][w].mean()) for w in windows],
        }
        spans = [int(facts["t"][w][-1] - facts["t"][w][0]) for w in windows]
        days = [seconds_in(span, seconds_per_tick) / 86_400 for span in spans]
        sizes = [w.stop - w.start for w in windows]
        out["events a day"] = [
            n / max(d, 1e-9) if d > 0 else np.nan for n, d in zip(sizes, days, strict=True)
        ]
        parts = [facts["dst"][w] for w in windows]
        out["shift"] = [np.nan] + [divergence(a, b) for a, b in itertools.pairwise(parts)]
        return out

    def of_label(self, label: str) -> list[Mapping[str, Any]]:
        """Return the summary of each seed of a model that finished."""
        return [self._participants[key] for key in self.keys[label]]

    @property
    def own_metrics(self) -> Sequence[str]:
        """Names of custom metrics."""
        return tuple(self.outcome.summary.get("metrics", ()))

    def own_metric(self, label: str, name: str) -> float:
        """Return a custom metric, the mean over seeds: over all events, or over the test."""
        part = "test" if "test_negatives" in self.outcome.summary else "prequential"
        found = [each.get(f"{part}.{name}", np.nan) for each in self.of_label(label)]
        return float(np.mean(found))

    def cost(self, label: str) -> float:
        """Return the microseconds per event, the mean over seeds."""
        return float(np.mean([each["microseconds"]["all"] for each in self.of_label(label)]))

    def pareto(self) -> list[str]:
        """Return the models better than all that cost no more, the cheapest first."""
        best, out, means = -np.inf, [], self.leading[1].means
        for label in sorted(means, key=lambda each: (self.cost(each), each)):
            if means[label].mean > best:
                best = means[label].mean
                out.append(label)
        return out

    @cached_property
    def mrr_parts(self) -> dict[str, Mask | str]:
        """The further MRRs by title: of events whose pair was seen before, and of the others, as
        masks; and among negatives of another kind, as names of figures.
        """
        seen = self.facts["num_pair"] > 0
        both = {"returns": seen, "first meetings": ~seen}
        out: dict[str, Mask | str] = {f"{name}, {x.sum():,}": x for name, x in both.items()}
        known = {name for each in self._participants.values() for name in each}
        further = ("mrr_source", "mrr_recent", "mrr_hist")
        names = [name for name in further if f"prequential.{name}" in known]
        return out | {METRIC_TITLES[name].removeprefix("MRR, "): name for name in names}

    def of_mrr_parts(self, label: str) -> list[str]:
        """Return the MRR of each of `mrr_parts`, the mean over seeds, as text."""
        ranks = self.reciprocal_ranks[label]
        return [
            score(self.own_metric(label, part))
            if isinstance(part, str)
            else score(ranks[:, part].mean() if part.any() else np.nan)
            for part in self.mrr_parts.values()
        ]

    def failures(self) -> dict[str, Mapping[str, Any]]:
        """Return the models that dropped out, and why."""
        every = self._participants.items()
        return {key: each["failure"] for key, each in every if each["failure"]}

    def _column(self, label: str, number: int) -> Values:
        scores = self.outcome.scores
        return np.stack(
            [scores[key][self.counts, number].astype(np.float64) for key in self.keys[label]]
        )

    def _batch_aps(self, label: str, rows: Any) -> Values:
        positive, negative = self._column(label, 1)[:, rows], self._column(label, 2)[:, rows]
        pairs = zip(positive, negative, strict=True)
        return np.stack([batch_aps(p, n, self.batch_size) for p, n in pairs])

    def _slice(self, name: str, mask: Mask, resampling: Resampling) -> Slice:
        weights = mask.astype(float)
        mrr, ap = {}, {}
        for label, ranks in self.reciprocal_ranks.items():
            drawn = resampling.means(ranks, weights)
            mrr[label] = Interval.of(ranks[:, mask].mean(), drawn[np.isfinite(drawn)])
            ap[label] = float(self._batch_aps(label, mask).mean())
        return Slice(name, int(mask.sum()), mrr, ap)

    def _masks(self) -> Iterator[tuple[str, Mask]]:
        f = self.facts
        new_src, new_dst = f["num_src"] == 0, f["num_dst"] == 0
        known = ~new_src & ~new_dst
        seen, reverse = f["num_pair"] > 0, f["num_reverse"] > 0
        yield "all events", np.ones(self.num_events, bool)
        yield "pair repeated", seen
        yield "reversed only", reverse & ~seen
        yield "new pair of known nodes", known & ~seen & ~reverse
        yield "one node new", new_src ^ new_dst
        yield "both nodes new", new_src & new_dst
        for name, (low, high) in AGES.items():
            yield name, (f["pair_age"] > low) & (f["pair_age"] <= high)
        yield from _quarters(f["num_src"])


def _quarters(degree: NDArray[Any]) -> Iterator[tuple[str, Mask]]:
    """Yield the events by their source's number of earlier events, in quarters."""
    cuts = np.quantile(degree, [0.25, 0.5, 0.75]).astype(int) if len(degree) else []
    bounds = [-1, *sorted({int(cut) for cut in cuts}), np.iinfo(np.int64).max]
    for low, high in itertools.pairwise(bounds):
        last = high == bounds[-1]
        span = f"more than {low:,}" if last else f"{low + 1:,} to {high:,}"
        yield f"source of {span} events", (degree > low) & (degree <= high)


def batch_aps(positive: Values, negative: Values, batch_size: int) -> Values:
    """Return the average precision of each batch of consecutive events, the last one partial."""
    out = []
    for start in range(0, len(positive), batch_size):
        p, n = positive[start : start + batch_size], negative[start : start + batch_size]
        above = len(p) - np.searchsorted(np.sort(p), p)
        false = len(n) - np.searchsorted(np.sort(n), p)
        out.append(float((above / (above + false)).mean()))
    return np.array(out)


def divergence(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Return the Jensen-Shannon divergence of two samples of names, in bits, from 0 to 1."""
    names, where = np.unique(np.concatenate([first, second]), return_inverse=True)
    p = np.bincount(where[: len(first)], minlength=len(names)) / max(len(first), 1)
    q = np.bincount(where[len(first) :], minlength=len(names)) / max(len(second), 1)
    terms = [x[x > 0] * np.log2(x[x > 0] / ((p + q) / 2)[x > 0]) for x in (p, q)]
    return float(np.concatenate(terms).sum()) / 2


def running_means(values: Sequence[float] | Values, size: int) -> Values:
    """Return the mean of each value and of up to `size - 1` before it."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    stop = np.arange(1, len(sums))
    start = np.maximum(0, stop - size)
    means: Values = (sums[stop] - sums[start]) / (stop - start)
    return means
