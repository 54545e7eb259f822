"""Models trained offline one after the other, and compared on the same test; their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tgflow.base.metrics import ranks
from tgflow.checkpoint import Checkpoint, CheckpointError, UntrustedCheckpoint
from tgflow.checkpoint.typed import read_as
from tgflow.graph import TemporalGraph
from tgflow.graph.ids import NodeIds
from tgflow.report.compare.attributes import event_facts
from tgflow.report.compare.lineup import Entrant
from tgflow.report.compare.outcome import Outcome
from tgflow.report.compare.score_log import COLUMNS
from tgflow.train.config import ExecutionConfig, OfflineConfig
from tgflow.train.finite import TrainingDiverged
from tgflow.train.observe import Callback
from tgflow.train.offline import OfflineTrainer
from tgflow.train.tasks.config import TaskConfig
from tgflow.train.tasks.labels import EventLabels, make_task

_NOW = "now-"


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """Result of an entrant."""

    key: str
    rows: NDArray[Any]
    """float64 `[N, 3]`: its scores of the test's events, see `COLUMNS`; NaN: not scored. `[N, 4]`
    with a task, see `LABEL`."""
    result: Mapping[str, Any]
    """Result of `OfflineTrainer.fit`; empty if it dropped out."""
    failure: Mapping[str, Any] | None = None


class OfflineResults:
    """Results of entrants, and the newest epoch of the one in training, which checkpoints hold.

    One is taken when an entrant is done, and after an epoch if it `is_due`.
    """

    def __init__(
        self,
        newest: Checkpoint | None = None,
        position: int = 0,
        command: Literal["compare", "train"] = "compare",
    ) -> None:
        self._command = command
        self._trainer: OfflineTrainer | None = None
        self.position = position
        """Number of epochs and of results so far, resumes included; numbers the checkpoints."""
        self.trained = [] if newest is None else _trained_of(newest)
        """Finished entrants, in the order of the line-up."""
        self.is_due: Callable[[], bool] = lambda: False
        self.take: Callable[[], object] = lambda: None
        """Takes a checkpoint."""
        self._under_way: Checkpoint | None = None
        if newest is not None:
            noted = read_as(dict[str, Any] | None, newest.meta.get("under_way"), "under_way")
            self._under_way = None if noted is None else newest.prefixed(_NOW, noted)

    def find(self, number: int, key: str) -> Trained | None:
        """Return the result of entrant `number`; None if it is not trained yet."""
        if number >= len(self.trained):
            return None
        found = self.trained[number]
        if found.key != key:
            raise CheckpointError(
                f"the checkpoint has {found.key} instead of {key}: the model list has changed"
            )
        return found

    def resume(self, trainer: OfflineTrainer) -> bool:
        """Resume the unfinished training from its newest epoch; return whether there is one."""
        if self._under_way is None:
            return False
        trainer.load_progress(self._under_way)
        self._under_way = None
        return True

    def after_epoch(self, trainer: OfflineTrainer) -> None:
        """Save the state of a training, if it is due."""
        self._trainer, self.position = trainer, self.position + 1
        if self.is_due():
            self.take()

    def add(self, trained: Trained) -> None:
        """Save the result of the next entrant."""
        self.trained.append(trained)
        self._trainer, self.position = None, self.position + 1
        self.take()

    def save_to(self, writer: Checkpoint) -> None:
        """Save the results, and the training whose epoch is done; later changes do not alter it."""
        under_way: dict[str, Any] | None = None
        if self._trainer is not None:
            under_way = {}
            self._trainer.save_progress(writer.prefixed(_NOW, under_way))
        noted = [
            {"key": each.key, "result": dict(each.result), "failure": each.failure}
            for each in self.trained
        ]
        for number, each in enumerate(self.trained):
            rows = torch.from_numpy(each.rows)
            writer.put_sealed(_scores(number), partial(dict[str, Tensor], rows=rows))
        writer.note("trainer", self._command)
        writer.note("under_way", under_way)
        writer.note("trained", noted)


def _trained_of(checkpoint: Checkpoint) -> list[Trained]:
    found = []
    notes = read_as(list[dict[str, Any]], checkpoint.meta.get("trained"), "trained")
    for number, noted in enumerate(notes):
        where, section = f"trained[{number}]", _scores(number)
        rows = checkpoint.get(section)["rows"]
        if rows.dtype != torch.float64 or rows.ndim != 2 or rows.shape[1] not in (3, 4):
            raise UntrustedCheckpoint(
                f"{section} has {rows.dtype} {list(rows.shape)}, which are not scores"
            )
        key = read_as(str, noted.get("key"), f"{where}.key")
        result = read_as(dict[str, Any], noted.get("result"), f"{where}.result")
        failure = read_as(dict[str, Any] | None, noted.get("failure"), f"{where}.failure")
        found.append(Trained(key, rows.numpy(), result, failure))
    return found


def _scores(number: int) -> str:
    return f"c{number:03d}-scores"


def compare_offline(
    lineup: Iterable[Entrant],
    graph: TemporalGraph,
    config: OfflineConfig,
    *,
    execution: ExecutionConfig | None = None,
    ids: NodeIds | None = None,
    results: OfflineResults | None = None,
    on_result: Callable[[str, Mapping[str, Any]], None] = lambda key, result: None,
) -> Outcome:
    """Train each entrant and return the scores of all on the events of the test.

    The split, the new nodes and the negatives are the same for all, by `config.data_seed`. An
    entrant whose loss is not finite drops out; the others continue. With several kinds of negatives
    the first is compared. A task is learned by the models with its decoder.
    """
    results = OfflineResults() if results is None else results
    task = make_task(config.task)
    labels = None if task is None else task.labels_of(graph)
    participants: dict[str, Any] = {}
    for number, entrant in enumerate(lineup):
        if (trained := results.find(number, entrant.key)) is None:
            own = replace(config, seed=entrant.seed, **entrant.learning)
            predicts = labels is not None and labels.are_predicted_by(entrant.model)
            scores = _TestScores(config.test_negatives[0], labels, predicts=predicts)
            own = own if predicts else replace(own, task=TaskConfig())
            trainer = OfflineTrainer(
                entrant.model, graph, own, scores, execution=execution, ids=ids
            )
            trained = _trained(entrant.key, trainer, scores, results)
        participants[entrant.key] = _participant(entrant, trained)
        on_result(entrant.key, trained.result)
    return _outcome(results.trained, participants, graph, config.data_seed, labels)


def _trained(
    key: str, trainer: OfflineTrainer, scores: _TestScores, results: OfflineResults
) -> Trained:
    results.resume(trainer)
    result, failure = {}, None
    try:
        result = trainer.fit(lambda: results.after_epoch(trainer), progress=False)
    except TrainingDiverged as error:
        failure = {"at": error.events[0], "reason": str(error)}
    rows = scores.rows(trainer.split.test_start, trainer.graph.num_events)
    trained = Trained(key, rows, result, failure)
    results.add(trained)
    return trained


def _outcome(
    trained: Sequence[Trained],
    participants: Mapping[str, Any],
    graph: TemporalGraph,
    data_seed: int,
    labels: EventLabels | None,
) -> Outcome:
    common = next((each for each in trained if each.failure is None), None)
    if common is None:
        raise TrainingDiverged("no model is left", (0, graph.num_events))
    start = graph.num_events - len(common.rows)
    shared = "protocol", "protocol_line", "tied_share", "visibility", "num_nodes", "test_negatives"
    summary = {name: common.result[name] for name in shared} | {
        "data_seed": data_seed,
        "num_events": graph.num_events,
        "test.start_event": start,
        "participants": participants,
    }
    scores = {each.key: each.rows for each in trained}
    return Outcome(event_facts(graph, start, graph.num_events, labels), scores, summary)


class _TestScores(Callback):
    def __init__(self, kind: str, labels: EventLabels | None, *, predicts: bool) -> None:
        self._kind, self._labels, self._predicts = kind, labels, predicts
        self._parts: list[tuple[Tensor, ...]] = []

    def on_test_scores(
        self,
        negatives: str,
        eid: Tensor,
        positive: Tensor,
        negative: Tensor,
        classes: Tensor | None,
    ) -> None:
        """Add the scores of a test batch."""
        if negatives == self._kind:
            columns = [1 / ranks(positive, negative), positive, negative[:, 0]]
            if self._labels is not None and self._predicts:
                columns.append(self._labels.judged(eid, positive, classes))
            self._parts.append((eid, *columns))

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Return the scores of the events at `[start, stop)`, `[N, 3 or 4]`; NaN: not scored."""
        out = np.full((stop - start, len(COLUMNS) + (self._labels is not None)), np.nan)
        for eid, *columns in self._parts:
            found = np.stack([column.double().numpy() for column in columns], 1)
            out[eid.numpy() - start, : found.shape[1]] = found
        return out


def _participant(entrant: Entrant, trained: Trained) -> dict[str, Any]:
    """Return an entrant's summary; the cost of an event is that of an event of an epoch."""
    result = trained.result
    each = 1e6 / result["events_per_second"] if result else float("nan")
    overhead = each * result["overhead_share"] if result else float("nan")
    spent = {"compute": each - overhead, "commit": 0.0, "preparation": overhead, "all": each}
    facts = entrant.facts() | {"failure": trained.failure, "microseconds": spent}
    return {**facts, **result}
