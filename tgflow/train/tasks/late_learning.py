"""Learning of labels that become known after their event, from inputs kept of then."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from tgflow.base.keys import KeyDomain, derive_key
from tgflow.base.units import parse_bytes
from tgflow.checkpoint import Checkpoint, Component
from tgflow.checkpoint.typed import read_as
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import Batch, KeptTargets, StepBatch
from tgflow.nn.label_decoder import NUM_PASTS, LabelDecoder
from tgflow.plan.replay import ExperienceReplay
from tgflow.train.results import Results
from tgflow.train.step import TrainStep
from tgflow.train.tasks.kept_rows import KeptRows
from tgflow.train.tasks.labels import EventLabels
from tgflow.train.tasks.targets import DEPTH

_REPLAY = ExperienceReplay(1.0, 1 << 62, math.inf)
"""Draws uniformly."""


class LateLearning(Component):
    """Learns labels that become known after their event was learned, from inputs kept of then.

    Each micro-batch learns labels that became known before it, in order and at most as many as it
    has events, and some of those learned so before again, drawn by keys from those whose inputs are
    kept. So what is learned is a function of the log. Rows are filled up to a fixed number.

    Inputs are kept with a delay of labels, or from the first event whose label is not known. Labels
    that are known at once are learned with their event, and not again: that gains little.
    """

    name = "late_learning"

    def __init__(
        self,
        labels: EventLabels,
        decoder: LabelDecoder,
        graph: TemporalGraph,
        batch_size: int,
        seed: int,
        results: Results[tuple[int, Tensor]],
        directory: str | None,
    ) -> None:
        c, history = labels.task.config, labels.history
        small = torch.int8 if history.num_classes < 128 else torch.int32
        columns = {"values": (decoder.width, torch.float16), "past": (NUM_PASTS * DEPTH, small)}
        capacity = parse_bytes(c.label_memory)
        self._rows = KeptRows("label_inputs", columns, capacity, directory)
        self._history, self._log, self._results, self._seed = history, graph.log, results, seed
        self._is_delayed = c.label_delay is not None
        self._num_new, self._num_again = batch_size, round(c.label_replay * batch_size)
        self._predicted: tuple[int, Tensor, Tensor] | None = None
        """First event, past and values of the micro-batch that was predicted, if they are kept."""
        self._before = self._after = (0, 0)
        """Up to where labels were learned before the micro-batch that is learned, and with it: own
        labels, by event, and late ones, in the order in which they became known."""
        decoder.keep = decoder.inputs

    @classmethod
    def of(
        cls, learner: TrainStep, labels: EventLabels, graph: TemporalGraph
    ) -> LateLearning | None:
        """Return that of a model that learns; None without a `LabelDecoder`."""
        decoder, config = learner.model.label_decoder, learner.config
        if not learner.learns or not isinstance(decoder, LabelDecoder):
            return None
        numbers, results = (config.batch_size, config.seed), learner.new_results()
        return cls(labels, decoder, graph, *numbers, results, learner.execution.scratch)

    def put(self, batch: StepBatch, values: Tensor) -> None:
        """Take the inputs of a micro-batch that was predicted, to keep them at `commit`."""
        assert isinstance(batch, Batch)
        assert batch.targets is not None
        assert batch.targets.host_past is not None
        self._predicted = None
        may_skip = self._rows.first is None and not self._is_delayed
        if may_skip and (self._history.classes(batch.host.eid[: batch.num_new]) >= 0).all():
            return
        past = batch.targets.host_past[: batch.num_new].flatten(1)
        self._predicted = batch.host.begin, past, values[: batch.num_new]

    def commit(self) -> None:
        """Keep the inputs of the micro-batch, and count its labels as learned."""
        self._before = self._after
        if self._predicted is None:
            return
        start, past, values = self._predicted
        if self._rows.first is None:
            self._rows.first = start
        self._results.put((start, past), {"values": values})
        self._write()
        self._predicted = None

    def _write(self, *, everything: bool = False) -> None:
        for (start, past), values, _ in self._results.take(everything=everything):
            self._rows.write(start, {"values": values["values"], "past": past})

    def attach(self, batch: Batch) -> Batch:
        """Return a batch to learn with kept labels; those of all updates of a micro-batch."""
        begin, targets = batch.host.begin, batch.targets
        if self._rows.first is None and self._predicted is None:
            return batch
        assert targets is not None
        first = max(self._rows.begin(batch.host.end), self._log.since(begin))
        new, self._after = self._became_known(begin, first)
        again = self._again(
            derive_key(self._seed, batch.epoch, batch.index, KeyDomain.LABELS), first
        )
        eid = torch.cat([new, again[again >= first]])
        label = self._history.classes(eid, begin - 1)
        eid, label = eid[label >= 0], label[label >= 0]
        if len(eid) and int(eid.max()) >= self._rows.stop:
            self._write(everything=True)
        rows, num = self._rows.read(eid), self._num_new + self._num_again
        weight = self._log.column("weight", eid)
        kept = KeptTargets(
            rows["values"],
            rows["past"].view(-1, NUM_PASTS, DEPTH),
            label,
            torch.ones(len(eid), dtype=torch.bool),
            torch.ones(len(eid)) if weight is None else weight,
        )
        none = (x.new_zeros(num - len(x), *x.shape[1:]) for x in kept)
        columns = (torch.cat(each).to(batch.eid.device) for each in zip(kept, none, strict=True))
        filled = KeptTargets(*columns)
        return replace(batch, targets=targets._replace(kept=filled))

    def _became_known(self, begin: int, first: int) -> tuple[Tensor, tuple[int, int]]:
        """Return the events whose labels are next, of those known to the event before `begin`."""
        history, (own, late) = self._history, self._before
        if begin == 0:
            return torch.empty(0, dtype=torch.int64), (0, 0)
        history.upto(begin)
        known = begin
        if self._is_delayed:
            t = int(self._log.read(begin - 1, begin).t)
            known = history.cut(t, self._log.since(begin))
        own = max(own, min(first, known)) if self._is_delayed else known  # learned with its event
        start, stop = history.num_labeled(own), history.num_labeled(known)
        taken = history.labeled(torch.arange(start, min(stop, start + self._num_new)))
        own = known if start + len(taken) == stop else int(taken[-1]) + 1
        num_known = int(self._log.late.num_known(torch.tensor(begin - 1)))
        places = torch.arange(max(late, self._log.late.first_place), num_known)
        late = max(late, num_known)
        places = places[history.late(places) >= first]
        if len(places) > (most := self._num_new - len(taken)):
            late, places = int(places[most]), places[:most]
        return torch.cat([taken, history.late(places)]), (own, late)

    def _again(self, key: int, first: int) -> Tensor:
        """Return events with labels learned before the micro-batch, to learn them again."""
        (own, late), history = self._before, self._history
        own = own if self._is_delayed else 0
        own_begin, own_stop = history.num_labeled(min(first, own)), history.num_labeled(own)
        late_begin = min(late, int(self._log.late.num_known(torch.tensor(first))))
        num_own, num_late = own_stop - own_begin, late - late_begin
        share = round(self._num_again * num_own / max(num_own + num_late, 1))
        drawn_own = _REPLAY.draw(key, num_own, share) + own_begin
        drawn_late = _REPLAY.draw(key, num_late, self._num_again - share) + late_begin
        return torch.cat([history.labeled(drawn_own), history.late(drawn_late)])

    def save(self, writer: Checkpoint) -> None:
        if self._rows.first is not None:
            self._write(everything=True)
            writer.note(self.name, [*self._before])
            learned, late = self._before
            at = writer.meta.get("position", 0)  # none in a part of a comparison, without a horizon
            is_forgotten = self._log.since(at) > 0
            has_learned = late or is_forgotten or self._history.num_labeled(learned)
            self._rows.save(writer, volatile=not has_learned)

    def load(self, reader: Checkpoint) -> None:
        if self.name in reader.meta:
            self._rows.load(reader)
            own, late = read_as(tuple[int, int], reader.meta[self.name], self.name)
            self._before = self._after = own, late
