"""Several models learn from one stream, with the same events and negatives."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from typing import Any

import torch

from tgflow.base.choices import GraphPlacement
from tgflow.checkpoint import Checkpoint, CheckpointError
from tgflow.checkpoint.typed import read_as
from tgflow.cuda.device import Device
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import StepBatch
from tgflow.graph.tables.table import Table
from tgflow.plan.count_lookup import CountHistory
from tgflow.plan.loader import BatchSource
from tgflow.report.compare.groups import GroupPlans, Stopwatch, needs_of, turns
from tgflow.report.compare.lineup import Entrant, Lineup, check_lineup, device_of_lineup
from tgflow.report.compare.participant import Participant
from tgflow.train.config import ContinualConfig, ExecutionConfig
from tgflow.train.finite import TrainingDiverged
from tgflow.train.observe import StepRecord
from tgflow.train.stepper import Stepper
from tgflow.train.stream_trainer import StreamTrainer
from tgflow.train.tasks.labels import make_task
from tgflow.train.trainer_state import graph_of, save_graph


class Comparison(StreamTrainer):
    """Predicts, learns and stores each micro-batch with every entrant, in one pass over a stream.

    All see the same micro-batches, negatives and replayed events, drawn with `config.data_seed`;
    models whose needs agree (fanouts, strategy, memory, counts) share the batches themselves. An
    entrant's scores do not depend on the other entrants or their order: they have the bits of
    `tgflow.ContinualTrainer` with its seed and the same `data_seed`. An entrant whose loss or score
    is not finite drops out; the others continue.

    Args:
        lineup: Entrants.
        graph: Grows by the stream's events; append to it nowhere else.
        config: Settings of all; `seed` is only the default of `data_seed`.
        execution: GPU settings.
            A task is learned by the models with its decoder (`LabelTask.add_decoder`); the others
            are compared by links alone.

    Raises:
        ValueError: As `check_lineup` and `StreamTrainer`, or if no model has the task's decoder.

    Example:
        >>> models = {"tgn": tg.TGN(), "tgat": tg.TGAT()}
        >>> lineup = [tg.compare.Entrant(name, 0, model) for name, model in models.items()]
        >>> comparison = tg.compare.Comparison(lineup, tg.TemporalGraph())
        >>> sorted(comparison.run([events])["participants"])
        ['tgat/0', 'tgn/0']
    """

    def __init__(
        self,
        lineup: Lineup,
        graph: TemporalGraph,
        config: ContinualConfig | None = None,
        *,
        execution: ExecutionConfig | None = None,
    ) -> None:
        check_lineup(lineup)
        config = ContinualConfig() if config is None else config
        config = replace(config, mrr_every=1)  # differences are tested over all events
        if config.data_seed is None:
            config = replace(config, data_seed=config.seed)
        task = make_task(config.task)
        super().__init__(graph, config, execution, device_of_lineup(lineup), task=task)
        graph.log.read_again = 0  # events out of the horizon are kept for the attributes of all
        self._groups: dict[tuple[Any, ...], _Group] = {}
        """Participants grouped by their needs; a group shares batches."""
        self.participants = [self._participant(entrant) for entrant in lineup]
        if task is not None and all(each.figures is None for each in self.participants):
            task.check(lineup[0].model)
        self._origins = {
            each.key: each for each in self.participants if each.entrant.frozen_of is None
        }
        self._queues = {each.key: deque[StepRecord]() for each in self.participants}

    def _facts(self) -> dict[str, object]:
        return {"participants": [each.key for each in self.participants], **super()._facts()}

    @property
    def _steppers(self) -> Sequence[Stepper]:
        """Steppers of the active participants; all have the same events."""
        return [each.stepper for each in self._active or self.participants[:1]]

    @property
    def num_pending(self) -> int:
        """Micro-batches that were learned but whose records were not yielded."""
        waiting = [c.stepper.num_pending + len(self._queues[c.key]) for c in self._active]
        return max(waiting, default=0) + len(self._ready)

    @property
    def memory_rows(self) -> int | None:
        """Rows of node memory that all hold together; None without any."""
        rows = [getattr(c.entrant.model.state, "num_rows", None) for c in self.participants]
        held = [num for num in rows if num is not None]
        return sum(held) if held else None

    @property
    def num_batches(self) -> int:
        """Batches prepared for each micro-batch, over all groups."""
        return sum(group.num_batches for group in self._groups.values())

    def result(self) -> dict[str, Any]:
        """Return the common figures, and individual ones by key in `participants`; JSON."""
        c, progress = self.config, self.progress
        test_start = progress.timeline.tail_start(c.test_share)
        figures = (each.figures for each in self._active if each.figures is not None)
        rules = {} if (found := next(figures, None)) is None else found.of_rules()
        return {
            **self._about(),
            "data_seed": c.data_seed,
            "num_events": progress.num_events,
            "num_nodes": self.graph.num_nodes,
            "num_groups": len(self._groups),
            "test.start_event": test_start,
            "epoch_seconds": progress.wall_seconds,
            "events_per_second": progress.events_per_second(),
            **{f"prequential.{name}": value for name, value in rules.items()},
            "participants": {
                each.key: each.result(test_start, self.position) for each in self.participants
            },
        }

    def save_to(self, writer: Checkpoint) -> None:
        """Save the stream so far once, and the state of each participant."""
        self._collect(everything=True)
        save_graph(writer, self.graph, self.position)
        writer.note("trainer", "compare")
        writer.note("config", asdict(self.config))
        self._save_place(writer)
        notes: list[dict[str, Any]] = [{"key": each.key} for each in self.participants]
        for number, (participant, own) in enumerate(zip(self.participants, notes, strict=True)):
            participant.save(writer.prefixed(_prefix(number), own))
        writer.note("participants", notes)

    @classmethod
    def from_checkpoint(
        cls,
        lineup: Lineup,
        checkpoint: Checkpoint,
        config: ContinualConfig | None = None,
        *,
        execution: ExecutionConfig | None = None,
        device: str | torch.device | Device = "cpu",
        device_budget: int | str | None = None,
        edge_x: Table | None = None,
        table: GraphPlacement = "host",
        directory: str | PathLike[str] | None = None,
    ) -> Comparison:
        """Return a comparison that continues where `checkpoint` was taken, with the same bits.

        The line-up has the same entrants in the same order; their parameters are overwritten.
        Without a `config` it takes that of the checkpoint; `edge_x` receives the edge features, and
        the rest is as in `TemporalGraph`. Raises CheckpointError if it is not of a comparison, or
        of another lineup.
        """
        saved: ContinualConfig = read_as(ContinualConfig, checkpoint.meta.get("config"), "config")
        empty = graph_of(
            checkpoint,
            "compare",
            edge_x,
            device=device,
            device_budget=device_budget,
            table=table,
            directory=directory,
        )
        config = saved if config is None else config
        found = cls(lineup, empty, config, execution=execution)
        noted = checkpoint.meta.get("participants")
        notes = read_as(list[dict[str, Any]], noted, "participants")
        keys = [read_as(str, each.get("key"), "participants.key") for each in notes]
        if keys != [each.key for each in found.participants]:
            raise CheckpointError(f"the checkpoint is of a comparison of {', '.join(keys)}")
        for number, (participant, own) in enumerate(zip(found.participants, notes, strict=True)):
            participant.load(checkpoint.prefixed(_prefix(number), own))
        found._load_place(checkpoint)
        return found

    def _participant(self, entrant: Entrant) -> Participant:
        needs = needs_of(entrant.model, self.config)
        if needs not in self._groups:
            self._groups[needs] = _Group(CountHistory(self.graph, entrant.model.counts))
        group = self._groups[needs]
        participant = Participant(
            entrant, self.graph, self.config, self.execution, group.watch, group.counts, self.labels
        )
        group.participants.append(participant)
        return participant

    @property
    def _active(self) -> list[Participant]:
        return [each for each in self.participants if each.is_active]

    def _source(self) -> BatchSource:
        groups = list(self._groups.values())
        self._current = [
            self._plans(group.participants[0].entrant.model, group.counts) for group in groups
        ]
        return GroupPlans(
            self._current,
            [group.watch for group in groups],
            [group.num_batches for group in groups],
        )

    def _step(self, batch: StepBatch, following: Iterator[StepBatch]) -> StepBatch:
        self._freeze()
        groups = list(self._groups.values())
        for number, turn in enumerate(turns(len(groups), self._index)):
            if number:
                batch = next(following)
            members = groups[turn].participants
            active = [members[i] for i in turns(len(members), self._index) if members[i].is_active]
            for each in active:
                each.predict(batch, self._current[turn].predict)
            learning = [each for each in active if each.num_updates]
            for _ in range(groups[turn].num_batches - 1):
                batch = next(following)
                for each in learning:
                    each.learn(batch)
            for each in learning:
                each.store(batch)
        return batch

    @property
    def _leading(self) -> tuple[str, ...]:
        """Metrics that a live display leads with, first the one by which the best is chosen."""
        if self.labels is None:
            return "ap", "mrr"
        task = self.labels.task
        figure = "ap" if task.num_classes == 2 else "accuracy"
        return f"{task.config.kind}.{figure}", "ap", "mrr"

    def _freeze(self) -> None:
        due = [
            each
            for each in self.participants
            if each.is_waiting and self.position >= (each.entrant.frozen_at or 0)
        ]
        if due:
            self._collect(everything=True)  # records without the copies
        for each in due:
            each.freeze_from(self._origins[f"{each.entrant.frozen_of}/{each.entrant.seed}"])

    def _collect(self, *, everything: bool) -> None:
        """Process values that reached the host; join the records of a micro-batch."""
        for each in self._active:
            each.collect(everything=everything)
        active = self._active
        for each in active:
            self._queues[each.key].extend(each.stepper.records)
            each.stepper.records.clear()
        while active and all(self._queues[each.key] for each in active):
            records = {each.key: self._queues[each.key].popleft() for each in active}
            self._ready.append(_joined(records, self._leading, self.config.metric_names))
        if not active:
            reasons = [each.failure for each in self.participants if each.failure is not None]
            text = "; ".join(str(failure["reason"]) for failure in reasons)
            raise TrainingDiverged(f"no model is left: {text}", (self.position, self.position))


@dataclass(slots=True)
class _Group:
    """Participants who share batches."""

    counts: CountHistory
    watch: Stopwatch = field(default_factory=Stopwatch)
    participants: list[Participant] = field(default_factory=list)

    @property
    def num_batches(self) -> int:
        """Batches for each micro-batch: to predict, and for updates if any participant learns."""
        return 1 + max(each.num_updates for each in self.participants)


def _joined(
    records: dict[str, StepRecord], leading: Sequence[str], metrics: Sequence[str]
) -> StepRecord:
    """Return the record of the best model so far, with the prequential figures of all."""

    def figures_of(record: StepRecord) -> list[float]:
        return [record.prequential.get(name, 0.0) for name in leading]

    best = max(records.values(), key=figures_of)
    figures = {
        f"{key}.{name}": record.prequential[name]
        for key, record in records.items()
        for name in (*leading, *metrics)
        if name in record.prequential
    }
    return replace(best, prequential=best.prequential | figures)


def _prefix(number: int) -> str:
    return f"c{number:03d}-"
