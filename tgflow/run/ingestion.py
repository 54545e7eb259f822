"""Ingestion of a run: durable log, event order, dead letters, and its state in checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import torch

from tgflow.base.units import INT64_MAX, parse_seconds, parse_timeout
from tgflow.checkpoint import Checkpoint, Component, UntrustedCheckpoint
from tgflow.checkpoint.durable.errors import LogCorrupt
from tgflow.checkpoint.durable.lock import RunLock
from tgflow.checkpoint.durable.log import DurableLog, LogPosition
from tgflow.checkpoint.sections import Ids, pieces_of, put_pieces
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.graph.log import NodeCount
from tgflow.run.config import ConfigError, StreamConfig, in_flags
from tgflow.run.config.rules import comes_live
from tgflow.run.context import RunContext
from tgflow.run.log import RunLog
from tgflow.run.metrics import label_delays
from tgflow.run.records import DEAD_LETTERS, DamagedJson
from tgflow.streams.files.reader import is_pipe
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.dead_letters import DeadLetterFiles
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.ingest.ingest_state import IngestState, PartitionState
from tgflow.streams.ingest.late_labels import PIECE, LateLabelReader
from tgflow.streams.transports import find_transport
from tgflow.train.observe import Callback, StepRecord

IDLE_TIMEOUT, ORDER_TIMEOUT, MAX_WAIT = "5s", "1s", "250ms"
"""Defaults of streams without an end."""
SEGMENT_BYTES = 16 << 20
"""Approximate segment size of the log; the log is removed segment by segment."""
FILE = "stream.json"
LABEL_IDS = "label_ids"
"""Section of the event ids that labels may name."""
LABEL_IDS_FIRST = "label_ids_first"


def save_ingest(state: IngestState, writer: Checkpoint) -> None:
    writer.put("reorder", state.state_dict(), volatile=True)
    writer.note("ingest", state.to_json())


def save_columns(
    classes: Mapping[str, Sequence[str]], features: Mapping[str, int], writer: Checkpoint
) -> None:
    """Save the texts of the numbers 0, 1, ... by column, and the widths of feature columns."""
    if classes:
        writer.note("classes", {name: [*texts] for name, texts in classes.items()})
    if features:
        writer.note("features", [*features.items()])


def load_classes(reader: Checkpoint) -> dict[str, list[str]]:
    """Return the texts of the numbers 0, 1, ... of relations, labels and categories, by column."""
    kind = dict[str, list[str]]
    classes: dict[str, list[str]] = read_as(kind, reader.meta.get("classes", {}), "classes")
    return classes


def load_features(reader: Checkpoint, dim: int) -> dict[str, int]:
    """Return the widths of the columns of `dim` features by name, in order; empty without names."""
    found = dict(read_as(list[tuple[str, int]], reader.meta.get("features", []), "features"))
    if found and (min(found.values()) < 1 or sum(found.values()) != dim):
        raise UntrustedCheckpoint(f"features: the widths are not those of {dim} features")
    return found


def before_all(classes: Mapping[str, Sequence[str]]) -> dict[int, PartitionState]:
    """Return the state of a source of files at its beginning, whose classes continue others."""
    found = {role: [*names] for role, names in classes.items()}
    return {0: PartitionState({"classes": json.dumps(found)})} if found else {}


def load_ingest(reader: Checkpoint) -> IngestState:
    noted = read_as(dict[str, Any], reader.meta.get("ingest"), "ingest")
    state = IngestState.from_json(noted, reader.get("reorder"))
    read_natural(noted, "num_released", most=read_natural(reader.meta, "position"))
    if (letters := noted["letters"]) is not None:
        read_natural(letters, "byte")
        num = len(read_as(list[int], letters.get("crc32"), "ingest.letters.crc32"))
        if num != read_natural(letters, "segment") + 1:
            raise UntrustedCheckpoint(f"ingest.letters.crc32 has {num} values, not one per file")
    return state


def order_of(order: OrderConfig, stream: StreamConfig, *, has_log: bool) -> OrderConfig:
    """Return the settings of order; timeouts that are unset have the defaults of the stream."""
    is_topic, idle, late = is_endless(stream.path), order.idle_timeout, order.order_timeout
    if not has_log or (is_topic and stream.until_end):
        return replace(order, idle_timeout=None, order_timeout=None)
    idle = idle or (IDLE_TIMEOUT if is_topic else None)
    late = late or (ORDER_TIMEOUT if is_topic or stream.follow else None)
    return replace(order, idle_timeout=idle, order_timeout=late)


def max_wait_of(max_wait: float | str | None, stream: StreamConfig) -> float:
    """Return the seconds that an event waits for its micro-batch to fill; infinite for any."""
    is_live = stream.follow or (is_endless(stream.path) and not stream.until_end)
    return parse_timeout(max_wait or (MAX_WAIT if is_live else "none"))


def is_endless(path: str) -> bool:
    """Return whether a stream is of a transport without an end."""
    transport = find_transport(path)
    return transport is not None and not transport.ends


def open_labels(run: RunContext) -> LateLabelReader | None:
    """Return the reader of labels that come after their events, at the run's position; or None."""
    c, state = run.config, run.state or IngestState()
    if not c.labels.are_given:
        return None
    labels = LateLabelReader(
        run.label_source,
        by_id=c.has_label_ids,
        by_time=not comes_live(c.stream, c.labels)
        and min(order_of(c.order, c.stream, has_log=c.checkpoint.log).timeouts()) == inf,
        most_waiting=c.labels.max_waiting,
        max_bad_ratio=c.checks.max_bad_ratio,
        horizon=run.trainer.graph.horizon,
    )
    if labels.by_id and run.newest is not None and LABEL_IDS in run.newest.meta:
        num, first = (read_natural(run.newest.meta, each) for each in (LABEL_IDS, LABEL_IDS_FIRST))
        left = state.num_released - first
        labels.begin_at(first)
        for piece in pieces_of(run.newest, LABEL_IDS, PIECE, num, first=first):
            keys = piece["ids"].numpy()[:left]
            labels.keep(keys)
            left -= len(keys)
    try:
        labels.restore(state, run.trainer.graph.log, run.ids or run.source.ids)
    except (LookupError, TypeError, AttributeError) as error:
        raise UntrustedCheckpoint(f"this is not a state of late labels: {error!r}") from None
    except ValueError as error:
        raise ConfigError(in_flags(str(error))) from None
    return labels


def open_ingest(run: RunContext, opened: ExitStack) -> Ingest:
    """Open ingestion at the trainer's position; `opened` closes its dead letters."""
    config, source = run.config, run.source
    order = order_of(config.order, config.stream, has_log=run.log is not None)
    if config.stream.sort:  # all events are buffered until the end
        buffer = {"buffer_events": INT64_MAX, "buffer_bytes": INT64_MAX}
        order = replace(order, allowed_lateness=1e300, late="dead_letter", **buffer)
    lateness = order.allowed_lateness
    if lateness is not None and parse_seconds(lateness) > order.timeouts()[1]:
        text = f"--allowed-lateness is {lateness}, but after {order.order_timeout} without a row "
        text += "all events are released, and earlier ones are late; to wait: --order-timeout"
        run.run_log.warning("order", text)
    letters = DeadLetterFiles(run.path / DEAD_LETTERS, keep=config.operate.keep_dead_letters)
    opened.callback(close_quietly, letters)
    if run.ids is not None:
        source.ids = run.ids
    if hasattr(source, "stop"):  # it may block for long, for instance on a broker
        source.stop = lambda: run.flow.stopped
    return Ingest(
        source,
        order,
        letters=letters,
        max_bad_ratio=config.checks.max_bad_ratio,
        log=run.log,
        state=run.state,
        skip_to=run.trainer.position,
        first=run.directory.first,
        clock_limit=config.order.max_time_jump is None
        and (is_endless(config.stream.path) or config.stream.follow or is_pipe(config.stream.path)),
        keep_event_ids=config.scores.to is not None and config.stream.event_id is not None,
        labels=open_labels(run),
        stop=lambda: run.flow.stopped,
    )


def close_quietly(part: Any) -> None:
    """Close a part and ignore disk errors, as another error ends the run already."""
    with suppress(OSError):
        part.close()


def open_log(
    path: Path,
    state: IngestState | None,
    order: OrderConfig,
    run_log: RunLog,
    lock: RunLock | None = None,
) -> DurableLog:
    """Open the log, verified from the checkpoint's position on.

    A missing log restarts at the checkpoint: later events come from the source, unless `order` has
    timeouts, as only the log records what was released when they expired.
    """
    needed = None if state is None else state.log
    if needed is not None and not any(path.glob("*.log")):
        if min(order.timeouts()) < inf:
            text = "only it recorded the order of events after the checkpoint"
            raise LogCorrupt(f"{path} is gone, and {text}")
        text = f"{path} is gone; events after the checkpoint are read from the source again"
        run_log.warning("log", text)
    log = DurableLog(path, segment_bytes=SEGMENT_BYTES, needed=needed, lock=lock)
    if needed is None and not log.is_whole:
        log.close()
        raise LogCorrupt(
            f"{path} has lost its beginning, and there is no checkpoint to resume from"
        )
    return log


class SavedIngest(Component, Callback):
    """Ingestion in checkpoints: ids, positions, buffered events; and stream.json."""

    def __init__(self, run: RunContext) -> None:
        self._ingest, self._trainer, self._files = run.ingest, run.trainer, run.directory.files
        self._features: Mapping[str, int] = getattr(run.source, "features", {})  # not of own ones
        self._store, self._run_log = run.store, run.run_log
        self._log, self._keep_log = run.log, run.config.checkpoint.keep_log
        self._nodes = NodeCount(run.trainer.graph.log, 0 if run.ids is None else len(run.ids))
        self._saved = None if run.state is None else run.state.to_json()
        self._pending: IngestState | None = None
        if run.ingest.labels is not None:
            self._trainer.graph.log.read_again = run.ingest.labels.position

    def on_step(self, record: StepRecord) -> None:
        self._ingest.forget_before(self._trainer.position)
        if (labels := self._ingest.labels) is not None:
            self._trainer.graph.log.read_again = labels.position

    def changed(self) -> bool:
        """Whether more rows were read than the newest checkpoint holds."""
        return self._ingest.state_at(self._trainer.position).to_json() != self._saved

    def save(self, writer: Checkpoint) -> None:
        """Save the ids of the trainer's events, and the state of ingestion."""
        self._pending = self._ingest.state_at(self._trainer.position)
        Ids(self._ingest.ids, self._nodes.upto(self._trainer.position)).save(writer)
        if self._log is not None:
            writer.outside.append(self._log.sync)
            if not self._keep_log:
                writer.committed.append(lambda path: self._drop_segments())
        save_ingest(self._pending, writer)
        save_columns(self._pending.classes, self._features, writer)
        if (labels := self._ingest.labels) is not None and labels.by_id:
            first, stop, ids = labels.first // PIECE * PIECE, self._trainer.position, labels.ids()
            writer.note(LABEL_IDS, stop)
            writer.note(LABEL_IDS_FIRST, first)
            read = lambda start, stop: {"ids": torch.from_numpy(ids(start, stop))}  # noqa: E731
            put_pieces(writer, LABEL_IDS, PIECE, stop, read, first=first, volatile=True)

    def saved(self) -> None:
        assert self._pending is not None
        self._saved = self._pending.to_json()
        self._ingest.committed(self._pending)

    def _drop_segments(self) -> None:
        oldest = self._store.oldest_kept()
        if self._log is None or oldest is None or oldest["ingest"]["log"] is None:
            return
        try:
            self._log.drop_before(LogPosition.from_json(oldest["ingest"]["log"]))
        except OSError as error:
            text = f"old segments of the log could not be removed: {error}"
            self._run_log.warning("log", text)

    def report(self) -> Mapping[str, Mapping[str, Any]]:
        """Write and return counts of rows and of events not yet learned.

        A resumed run with nothing left to learn polls nothing, and keeps its earlier report.
        """
        report = self._ingest.report()
        if not self._ingest.has_polled:
            try:
                if (before := self._files.read_json(FILE)) is not None:
                    return {"stream": before}
            except DamagedJson as error:
                text = f"{FILE} is damaged, so earlier rows are not counted: {error}"
                self._run_log.warning("stream", text)
        learned = self._trainer.position
        report |= {"num_learned": learned, "num_waiting": max(0, report["num_released"] - learned)}
        if (labels := report.get("labels")) is not None:
            labels["delay_seconds"] = label_delays(self._trainer.graph)
        self._files.write_json(FILE, report)
        return {"stream": report}
