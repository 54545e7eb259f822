"""Ingestion of a run: source, durable log, event order, dead letters and stream.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tgflow.config import Config
from tgflow.durable.errors import LogCorrupt
from tgflow.durable.log import DurableLog
from tgflow.runtime.checkpoints import Component
from tgflow.runtime.directory import RunDirectory
from tgflow.runtime.files import DamagedJson, RunFiles
from tgflow.runtime.log import RunLog
from tgflow.runtime.restore import Start
from tgflow.runtime.stream import FlowControl
from tgflow.streams.ingest.breaker import CircuitBreaker
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.dead_letters import DeadLetterFiles
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.ingest.state import IngestState
from tgflow.streams.rows.row_batch import PartitionedSource, Stoppable
from tgflow.streams.transports import find_transport, scheme_of
from tgflow.train.stream_trainer import StreamTrainer
from tgflow.units import INT64_MAX


def section_of(config: Config, address: str) -> Any:
    """Return the section named like the scheme of `address`; None for a path, or without one."""
    scheme = scheme_of(address)
    return None if scheme is None else getattr(config, scheme, None)


def make_ingest(
    source: PartitionedSource,
    start: Start,
    position: int,
    dead_letters: DeadLetterFiles,
    log: DurableLog | None,
    flow: FlowControl,
    *,
    order: OrderConfig,
    max_bad_ratio: float,
    keep_event_ids: bool,
) -> Ingest:
    """Return ingestion, from the beginning or from its saved state.

    Args:
        source: Source of rows, not started.
        start: State of ingestion in a checkpoint.
        position: Events that the trainer has.
        dead_letters: Receives refused rows.
        log: Receives events before they are released; None: no log.
        flow: Stops it.
        order: How events are put in order.
        max_bad_ratio: Share of refused rows that ends the run.
        keep_event_ids: Whether to keep the stream's event ids, which rows of scores name.
    """
    if start.ids is not None:
        source.ids = start.ids
    if isinstance(source, Stoppable):
        source.stop = lambda: flow.stopped
    return Ingest(
        source,
        order,
        letters=dead_letters,
        breaker=CircuitBreaker(source.name, max_bad_ratio),
        log=log,
        state=start.state,
        skip_to=position,
        keep_event_ids=keep_event_ids,
        stop=lambda: flow.stopped,
    )


def order_of(order: OrderConfig, *, sort: bool) -> OrderConfig:
    """Return how events are put in order: with `sort`, all are held back until the end."""
    if not sort:
        return order
    return replace(
        order,
        allowed_lateness=INT64_MAX,
        late="dead_letter",
        buffer_events=INT64_MAX,
        buffer_bytes=INT64_MAX,
    )


def open_dead_letters(directory: RunDirectory) -> DeadLetterFiles:
    """Return where dead letters go: to files, and to a topic if one is named."""
    address = directory.config.stream.path
    section, transport = section_of(directory.config, address), find_transport(address)
    name, topic = getattr(section, "dead_letter_topic", None), None
    if name is not None and transport is not None and transport.topic is not None:
        topic = transport.topic(f"{address.rpartition('/')[0]}/{name}", section.options)
    return DeadLetterFiles(directory.path / "dead-letters", topic=topic)


SEGMENT_BYTES = 16 << 20
"""Of a file of the log, about: what no checkpoint needs any more is given back by the file."""


def open_log(
    path: Path, state: IngestState | None, idle_timeout: float | None, run_log: RunLog
) -> DurableLog:
    """Return the log, all of which that will be read is sound.

    One that is gone, with a checkpoint there, starts over where that leaves off: what it held comes
    from the source again, as without a log.

    Args:
        path: Its directory.
        state: What the checkpoint knows of ingestion; None if the run starts.
        idle_timeout: Of the settings: if there is one, a log that is gone cannot be made good.
        run_log: Hears of what is missing or damaged where nothing will be read.

    Raises:
        LogCorrupt: If it is damaged, or does not go with the checkpoint.
    """
    needed = None if state is None else state.log
    if needed is not None and not any(path.glob("*.log")):
        if idle_timeout is not None:
            raise LogCorrupt(f"{path} is gone, and only it knew which partitions were idle")
        text = f"{path} is gone; what came after the checkpoint is read from the source again"
        run_log.warning("log", text)
    log = DurableLog(  # checked here, not in the thread that reads it
        path, segment_bytes=SEGMENT_BYTES, needed=needed, check=True
    )
    try:
        for problem in log.problems:
            run_log.warning("log", problem)
        if needed is None and not log.is_whole:
            raise LogCorrupt(
                f"{log.directory} has lost its beginning, and there is no checkpoint to resume from"
            )
        if needed is not None:
            log.locate(needed)
    except BaseException:
        log.close()
        raise
    return log


FILE = "stream.json"


class StreamReport(Component):
    """Writes what became of the rows, and how many events wait to be learned.

    Args:
        ingest: Ingestion.
        trainer: What learns from it.
        files: Where it is written.
        warn: Gets a sentence about an earlier report that is damaged.
    """

    def __init__(
        self,
        ingest: Ingest,
        trainer: StreamTrainer,
        files: RunFiles,
        warn: Callable[[str], None],
    ) -> None:
        self._ingest, self._trainer, self._files = ingest, trainer, files
        self._warn = warn

    def report(self) -> Mapping[str, Mapping[str, Any]]:
        """Write and return the report.

        A run that resumes with nothing left to learn polls nothing: its earlier report holds.

        Raises:
            OSError: If it cannot be written.
        """
        report = self._ingest.report()
        if not self._ingest.has_polled and (before := self._before()):
            return {"stream": before}
        learned = self._trainer.position
        report |= {"num_learned": learned, "num_waiting": max(0, report["num_released"] - learned)}
        self._files.write_json(FILE, report)
        return {"stream": report}

    def _before(self) -> dict[str, Any] | None:
        try:
            return self._files.read_json(FILE)
        except DamagedJson as error:
            self._warn(f"{FILE} is damaged, so rows before are not counted: {error}")
            return None
