"""Labels of events as a task: those of edges, those of their sources, and anomalies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tgflow.base.describe import described
from tgflow.base.units import parse_bytes, seconds_of, ticks_in
from tgflow.checkpoint import Checkpoint, Component, check_like
from tgflow.checkpoint.sections import pieces_of, put_pieces
from tgflow.checkpoint.typed import read_natural
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import Batch, HostEvents, Targets
from tgflow.graph.events import NO_LABEL
from tgflow.nn.label_decoder import LabelDecoder
from tgflow.nn.model import Scores, TemporalModel, device_of_model, feature_widths
from tgflow.train.tasks.baselines import LabelRules
from tgflow.train.tasks.config import TaskConfig
from tgflow.train.tasks.figures import LabelFigures, odds_of, ranks_of
from tgflow.train.tasks.kept_rows import KeptRows
from tgflow.train.tasks.targets import DEPTH, LabelHistory

_PIECE, _NOTE = 1 << 16, "num_label_scores"
_TINY = torch.finfo(torch.float32).tiny
LATE_FIGURES = ("judged", "pending", "corrected", "too_late", "seen")
"""Numbers of late labels: added to the figures; of events whose label has not come; corrections of
a label; those whose prediction was no longer kept, or whose event was before the horizon; and
entries of the log so far."""
_JUDGED, _PENDING, _CORRECTED, _TOO_LATE, _SEEN = range(len(LATE_FIGURES))
_PER_OCTAVE = 4
_LATE = "late_figures"


@described
class LabelTask:
    """Labels of events (`edge`), of their sources (`node`), or of anomalies (`anomaly`) as a task.

    Args:
        config: Settings of the task; `classes=None` means two.

    Example:
        >>> labeled = tg.EventBatch(many.src, many.dst, many.t, label=many.src % 2)
        >>> task = tg.tasks.TaskConfig(kind="edge", target="is_odd")
        >>> config = tg.OfflineConfig(epochs=1, task=task)
        >>> trainer = tg.OfflineTrainer(tg.TGN(), tg.TemporalGraph.from_events(labeled), config)
        >>> 0 <= trainer.fit()["test.edge.auc"] <= 1
        True
    """

    def __init__(self, config: TaskConfig) -> None:
        self.config = config
        self.num_classes = 2 if config.classes is None else config.classes
        if config.kind == "anomaly" and self.num_classes != 2:
            raise ValueError(f"an anomaly task has two classes; got classes={self.num_classes}")

    def _facts(self) -> dict[str, object]:
        c = self.config
        return {"kind": c.kind, "target": c.target, "num_classes": self.num_classes}

    @property
    def select(self) -> str | None:
        """The validation metric that chooses the best epoch; None: that of links."""
        if not self.config.has_decoder:
            return None
        return f"{self.config.kind}.{'auc' if self.num_classes == 2 else 'accuracy'}"

    def add_decoder(self, model: TemporalModel, x_dim: int = 0) -> None:
        """Add a label decoder to a model, initialized by torch's default generator.

        Args:
            model: One that defines `embed`, with a decoder whose `dim` is the width of embeddings,
                as that of `LinkDecoder`.
            x_dim: Width of the events' own features to read; 0 for none.

        Raises:
            ValueError: If the model makes no embeddings.
        """
        if not self.config.has_decoder:
            return
        check_embeds(model)
        dim = getattr(model.decoder, "dim", None)
        if dim is None:
            raise ValueError(
                f"the decoder of {type(model).__name__} does not define the width of embeddings: "
                "give it an attribute dim"
            )
        model.label_decoder = LabelDecoder(
            dim, self.num_classes, x_dim=x_dim, reads_dst=self.config.kind == "edge", depth=DEPTH
        )

    def check(self, model: TemporalModel) -> None:
        """Raise ValueError if the model lacks a required label decoder."""
        if self.config.has_decoder and model.label_decoder is None:
            raise ValueError(
                f"{type(model).__name__} has no label_decoder for the task {self.config.kind}; "
                "call LabelTask.add_decoder(model) first"
            )

    def labels_of(
        self, graph: TemporalGraph, like: EventLabels | None = None, known_at: int | None = None
    ) -> EventLabels:
        """Return the labels of a graph's events, including future ones.

        Classes are numbered as those of `like`, labels of another graph. A label must be known
        before the tick `known_at` to be learned; None: before the last new event of its batch.
        """
        return EventLabels(self, graph, like, known_at)

    def loss(self, links: Tensor, scores: Scores, batch: Batch, model: TemporalModel) -> Tensor:
        """Return the cross-entropy of known labels, plus the loss of links if configured.

        The mean is over the events whose labels are known, by their weights, and the kept ones;
        without any, labels add 0.
        """
        if scores.classes is None:
            return links
        assert batch.targets is not None
        known, weight, kept = batch.targets.is_known, batch.weight, batch.targets.kept
        logits, label = scores.classes, batch.targets.label
        if kept is not None:
            assert isinstance(model.label_decoder, LabelDecoder)
            logits = torch.cat([logits, model.label_decoder.decode(kept.values, kept.past)])
            label, known = torch.cat([label, kept.label]), torch.cat([known, kept.is_known])
            if weight is not None:
                weight = torch.cat([weight, kept.weight])
        each = cross_entropy(logits, label, reduction="none")
        if weight is None:
            labels = each.where(known, 0.0).sum() / known.sum().clamp(min=1)
        else:
            share = (weight / weight.max().clamp(min=_TINY)).where(known, 0.0)
            labels = (each.where(known, 0.0) * share).sum() / share.sum().clamp(min=_TINY)
        return labels + links * float(self.config.links)


def freeze(model: TemporalModel) -> None:
    """Freeze all parameters of a model but those of its label decoder."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("label_decoder."))


def embeds(kind: Any) -> bool:
    """Return whether models of a class make embeddings, which labels are predicted from."""
    return getattr(kind, "embed", None) is not TemporalModel.embed


def check_embeds(model: TemporalModel) -> None:
    if not embeds(type(model)):
        raise ValueError(
            f"{type(model).__name__} makes no embeddings of single nodes, which labels are "
            "predicted from; choose a model that does: tgn, tgat, jodie or graphmixer"
        )


class EventLabels:
    """The labels of a graph's events; the arguments are those of `LabelTask.labels_of`."""

    def __init__(
        self,
        task: LabelTask,
        graph: TemporalGraph,
        like: EventLabels | None = None,
        known_at: int | None = None,
    ) -> None:
        self.task, self._graph, self._known_at = task, graph, known_at
        delay = task.config.label_delay
        # rounded down: a label is visible after the delay, so of whole ticks from the next one on
        self._delay = 0 if delay is None else math.floor(ticks_in(delay, graph.time_unit))
        codes = None if like is None else like.history.codes
        self.history: LabelHistory = LabelHistory(graph, task.num_classes, self._delay, codes)

    @property
    def are_predicted(self) -> bool:
        """Whether a decoder predicts them (`Scores.classes`)."""
        return self.task.config.has_decoder

    def are_predicted_by(self, model: TemporalModel) -> bool:
        """Whether `model` predicts them, by its decoder or as anomalies."""
        return not self.are_predicted or model.label_decoder is not None

    def judged(self, eid: Tensor, positive: Tensor, classes: Tensor | None) -> Tensor:
        """Return the values by which predictions of events are judged, float64 `[B]`.

        Of anomalies (no `classes`) minus the logits of the links, of two classes the logit of label
        1, or else the reciprocal rank of the true class. Those of events whose label is not known
        mean nothing.
        """
        if classes is None:
            return -positive.double()
        if self.task.num_classes == 2:
            return odds_of(classes)
        return 1 / ranks_of(self.history.classes(eid).clamp(min=0), classes.float())

    def said(self, t: Tensor, at: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the most likely label of events at ticks and positions, and its probability."""
        share, code = classes.double().softmax(1), classes.argmax(1)
        if self.task.num_classes == 2:
            return self.history.labels(code, t, at), share[:, 1]
        return self.history.labels(code, t, at), share.gather(1, code.unsqueeze(1)).squeeze(1)

    def shares(self, t: Tensor, at: Tensor, classes: Tensor, labels: Sequence[int]) -> Tensor:
        """Return the probabilities of some of more than two labels, float64 `[B, len(labels)]`.

        NaN of a label that no event visible at ticks and positions has had.
        """
        codes, was_seen = self.history.first_of(labels, t, at)
        return classes.double().softmax(1)[:, codes].where(was_seen, torch.nan)

    def attach(self, batch: Batch) -> Batch:
        if not self.are_predicted:
            return batch
        eid, last = batch.host.eid, batch.host.end - 1
        past = self.history.past(eid, self._graph.since(batch.host.begin))
        label = self.history.classes(eid, last)
        known, t = torch.ones(len(eid), dtype=torch.bool), batch.host.t
        if self.task.config.label_delay is not None:
            until = t[: batch.num_new].amax() if self._known_at is None else self._known_at
            known = t + self._delay < until
        known |= self._graph.log.late.find(eid, last) >= 0
        known &= label >= 0
        return _with_targets(batch, label.clamp(min=0), known, *past)

    def asked(self, batch: Batch, as_of: Tensor, last: Tensor | None = None) -> Batch:
        """Attach the labels visible to events that are not stored, as of log positions.

        `last` replaces the events whose labels are visible; see `LabelHistory.last_of`.
        """
        host, unknown = batch.host, torch.zeros_like(as_of)
        view = self.history.asked(host.t, as_of)
        if last is None:
            last = self.history.last_of(host.src, host.dst, view)
        past = self.history.past_at(last, view)
        return _with_targets(batch, unknown, unknown.bool(), *past)

    def odds(self, classes: Tensor, code: int) -> Tensor:
        """Return the logit of a class, log(p / (1 - p)), float64 `[B]` of `[B, num_classes]`."""
        logits = classes.double()
        others = torch.cat([logits[:, :code], logits[:, code + 1 :]], dim=1)
        return logits[:, code] - others.logsumexp(1)

    def figures(self, *, pooled: bool, scratch: str | None = None) -> EventFigures:
        return EventFigures(self.task, self._graph, self.history, pooled=pooled, scratch=scratch)

    def check_measurable(self, part: str, start: int, stop: int) -> None:
        """Raise ValueError if labels of the events at `[start, stop)` give no AUC to choose by."""
        classes = self.history.classes(torch.arange(start, stop))
        classes = classes[classes >= 0]
        if self.task.num_classes > 2 or 0 < int(classes.sum()) < len(classes):
            return
        target = self.task.config.target
        what = f"of class {int(classes[0])}" if len(classes) else "not known"
        raise ValueError(
            f"every label ({target}) of {part} is {what}, so two classes cannot be separated "
            "there; give the number of classes (classes=...), or other parts"
        )


def _with_targets(
    batch: Batch, label: Tensor, is_known: Tensor, past: Tensor, ages: Tensor
) -> Batch:
    seconds = seconds_of(ages.clamp(min=0), batch.seconds_per_tick)
    columns = label, is_known, past, seconds.log1p().float()
    label, is_known, there, age = (x.to(batch.eid.device) for x in columns)
    return replace(batch, targets=Targets(label, is_known, there, age, host_past=past))


class EventFigures(Component):
    """Figures of the predicted labels of a log's events, in order, and of heuristic baselines.

    Own labels are added with their predictions, whatever their delay. Predictions of events without
    one are kept in a bounded space, and added once a late label is known; a correction of it is
    counted, and changes no other figure.
    """

    name = "task"

    def __init__(
        self,
        task: LabelTask,
        graph: TemporalGraph,
        history: LabelHistory,
        *,
        pooled: bool,
        scratch: str | None = None,
    ) -> None:
        self._task, self._graph, self._history = task, graph, history
        self._new = partial(LabelFigures, task.num_classes, pooled=pooled)
        self._own = self._new()
        self._span = torch.tensor([-1, -1])
        """Log positions of the first event added, and after the last."""
        width = task.num_classes if task.config.has_decoder else 1
        capacity = parse_bytes(task.config.label_memory) // 16
        columns = {"logits": (width, torch.float32)}
        self._said = KeptRows("label_predictions", columns, capacity, scratch)
        self._late = torch.zeros(len(LATE_FIGURES), dtype=torch.int64)
        """`LATE_FIGURES`."""
        self._delays = torch.zeros(64 * _PER_OCTAVE, dtype=torch.int64)
        """Late labels by the logarithm of their delay in ticks."""

    def add(self, host: HostEvents, positive: Tensor, classes: Tensor | None) -> dict[str, float]:
        """Add predictions of new events, and return the means over these, by name."""
        if not len(host.eid):
            return {}
        first = int(self._span[0])
        self._span = torch.tensor([int(host.eid[0]) if first < 0 else first, host.end])
        logits = -positive.double().unsqueeze(1) if classes is None else classes.float()
        label = self._history.classes(host.eid)
        known = label >= 0
        if self._said.first is not None or not known.all():
            self._said.write(host.begin, {"logits": logits})
            self._late[_PENDING] += int((~known).sum())
        self._late[_TOO_LATE] += self._graph.log.late.num_outside(host.begin, host.end)
        label, logits = label[known], logits[known]
        if len(self._graph.log.late):
            came, said = self._came(host.begin, host.end)
            label, logits = torch.cat([came, label]), torch.cat([said.to(logits.dtype), logits])
        if classes is None:
            self._own.add_scores(logits[:, 0].double(), label == 1)
            return {}
        return self._named(self._own.add(label, logits))

    def _came(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return the late labels that events `[start, stop)` are the first to see, as classes.

        Those of events that were predicted, with the logits of then; counts the others.
        """
        log = self._graph.log
        begin, end = log.late.num_known(torch.tensor([log.since(start), stop - 1])).tolist()
        begin, self._late[_SEEN] = max(begin, int(self._late[_SEEN])), end
        found = log.late.known(slice(begin, end))
        eid, label = found.eid, self._history.late_classes(torch.arange(begin, end))
        history, place = self._history, found.before.clamp(min=0)
        own, earlier = history.classes(eid), history.late_classes(place)
        before = torch.where(found.before < 0, own, earlier)
        self._late[_CORRECTED] += int(((before >= 0) & (label != before)).sum())
        # a first one that withdraws nothing is none
        was_none = (found.before < 0) | (log.late.known(place).before < 0)
        is_new = was_none & (before < 0) & (label >= 0) & (eid >= self._span[0])
        eid, label, t = eid[is_new], label[is_new], found.t[is_new]
        delay = (t - log.gather(eid).t).clamp(min=1).double()
        group = (delay.log2() * _PER_OCTAVE).long()
        self._delays += torch.bincount(group, minlength=len(self._delays))
        is_kept = eid >= max(self._said.begin(self._said.stop), log.since(start))
        self._late[_PENDING] -= len(eid)
        self._late[_JUDGED] += int(is_kept.sum())
        self._late[_TOO_LATE] += int((~is_kept).sum())
        return label[is_kept], self._said.read(eid[is_kept])["logits"]

    def aps(self) -> tuple[dict[str, float], ...]:
        """Return the AP of recent scores and of all by name; nothing unless it is defined."""
        recent, whole = self._own.aps() or (None, None)
        return tuple({} if x is None else self._named({"ap": x}) for x in (recent, whole))

    def result(self, *, with_intervals: bool) -> dict[str, float]:
        return self._named(self._own.result(with_intervals=with_intervals) | self.late())

    def late(self) -> dict[str, float]:
        """Return the figures of late labels: `LATE_FIGURES`, and quantiles of their delay.

        Nothing unless an event had no label of its own. Delays are in seconds, within 9 %.
        """
        if not self._has_late:
            return {}
        found = {
            f"late.{name}": float(num) for name, num in zip(LATE_FIGURES, self._late, strict=True)
        }
        del found["late.seen"]
        share = self._delays.cumsum(0) / max(int(self._delays.sum()), 1)
        for name, level in (("median", 0.5), ("p90", 0.9)):
            if share[-1]:
                group = int(torch.searchsorted(share, level))
                ticks = 2 ** ((group + 0.5) / _PER_OCTAVE)
                found[f"late.delay_{name}"] = ticks * self._graph.seconds_per_tick
        return found

    def of_rules(self) -> dict[str, float]:
        """Return those of heuristic baselines for the same events.

        None of anomalies, nor once some of the events are before the horizon.
        """
        found: dict[str, LabelFigures] = {}
        start, stop = self._span.tolist()
        if not self._task.config.has_decoder or self._graph.since(max(stop, 0)) > 0:
            return {}
        rules = LabelRules(self._graph.log, self._history)
        for eid, predicted in rules.predicted(max(start, 0), max(stop, 0)):
            label = self._history.first_classes(eid, stop - 1)
            for name, classes in predicted.items():
                found.setdefault(name, self._new()).add(label[label >= 0], classes[label >= 0])
        values = {
            f"{rule}.{name}": value
            for rule, figures in found.items()
            for name, value in figures.result(with_intervals=False).items()
            if not name.startswith("num_")
        }
        return self._named(values)

    def _named(self, values: Mapping[str, float]) -> dict[str, float]:
        return {f"{self._task.config.kind}.{name}": value for name, value in values.items()}

    def save(self, writer: Checkpoint) -> None:
        is_idle = not self._own.has_any  # which is not of the data, see `save_state`
        writer.put(
            self.name, {**self._own.state_dict(), "span": self._span.clone()}, volatile=is_idle
        )
        score, is_positive = self._own.pool()

        def rows(start: int, stop: int) -> dict[str, Tensor]:
            # copies, as files hold whole tensors
            own = {"score": score, "is_positive": is_positive}
            return {name: column[start:stop].clone() for name, column in own.items()}

        put_pieces(writer, self._pool_name, _PIECE, len(score), rows, volatile=is_idle)
        writer.note(_NOTE, len(score))
        if self._has_late:
            late = {"numbers": self._late.clone(), "delays": self._delays.clone()}
            writer.put(_LATE, late, volatile=is_idle)
            writer.note(_LATE, True)
            self._said.save(writer, volatile=is_idle)

    def load(self, reader: Checkpoint) -> None:
        found = reader.get(self.name)
        check_like(self.name, found, {**self._own.state_dict(), "span": self._span})
        self._own.load_state_dict(found)
        self._span = found["span"].clone()
        num = read_natural(reader.meta, _NOTE)
        pieces = [*pieces_of(reader, self._pool_name, _PIECE, num)]
        types = {"score": torch.float64, "is_positive": torch.bool}
        if any({name: x.dtype for name, x in piece.items()} != types for piece in pieces):
            raise ValueError(f"{self._pool_name} has other columns than scores of labels")
        self._own.load_pool(*(torch.cat([piece[name] for piece in pieces]) for name in types))
        if _LATE in reader.meta:
            late = reader.get(_LATE)
            check_like(_LATE, late, {"numbers": self._late, "delays": self._delays})
            self._late, self._delays = late["numbers"].clone(), late["delays"].clone()
            self._said.load(reader)

    @property
    def _pool_name(self) -> str:
        # pieces of one name never change, and figures that begin anew begin at another event
        return f"label-scores-{max(0, int(self._span[0]))}"

    @property
    def _has_late(self) -> bool:
        return self._said.first is not None or int(self._late[_SEEN]) > 0


def make_task(config: TaskConfig) -> LabelTask | None:
    """Return the task of some settings; None if only links of unlabeled events are learned."""
    learns_links_alone = config.kind == "link" or config.node_labels is not None
    return None if learns_links_alone else LabelTask(config)


def task_with_decoder(
    config: TaskConfig, model: TemporalModel, graph: TemporalGraph
) -> LabelTask | None:
    """Return the task of some settings, and add its decoder to a model that has none."""
    task = make_task(config)
    if task is not None and config.has_decoder:
        if model.label_decoder is None:
            device = device_of_model(model)
            task.add_decoder(model, feature_widths(graph)["edge_x_dim"])
            model.to(device)
        if config.freeze:
            freeze(model)
    return task


def count_classes(graph: TemporalGraph) -> int:
    """Return the number of distinct known labels, which are 0 and 1, or -1 and 1, if two."""
    label = graph.log.read(0, graph.num_events).label
    if label is None:
        raise ValueError("the events have no labels; name their column by target=...")
    kinds = torch.unique(label[label != NO_LABEL])
    if len(kinds) < 2:
        raise ValueError(f"there is nothing to learn: the labels are {kinds.tolist()}")
    return len(kinds)
