"""The parts of a run put together, at its beginning or where the newest checkpoint left off."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from tgflow.checkpoint import (
    Checkpoint,
    CheckpointStore,
    CheckpointWriter,
    NoValidCheckpoint,
    RowsLost,
)
from tgflow.choices import Direction
from tgflow.config import Config
from tgflow.durable.errors import LogCorrupt
from tgflow.durable.log import DurableLog
from tgflow.graph import TemporalGraph
from tgflow.ids import NodeIds
from tgflow.model import TemporalModel
from tgflow.runtime import resume
from tgflow.runtime.directory import RunDirectory
from tgflow.runtime.edge_table import open_table
from tgflow.runtime.log import RunLog
from tgflow.runtime.machine import describe
from tgflow.runtime.stream import FlowControl, PacedStream
from tgflow.streams.ingest.accounting import RowAccounting
from tgflow.streams.ingest.breaker import CircuitBreaker
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.ingest.dead_letters import DeadLetterFiles, DeadLetterSink
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.ingest.state import IngestState
from tgflow.streams.rows.partitioned import PartitionedSource, Stoppable
from tgflow.streams.transports import find_transport
from tgflow.train.continual import ContinualTrainer
from tgflow.units import INT64_MAX, parse_bytes

BUILD = ("tgflow", "torch", "python", "system")
"""What of the machine may change a result's last bits, beside the threads."""


Kept: TypeAlias = tuple[int, dict[str, Any]]
"""What a checkpoint holds: events learned, and the state of ingestion."""


class StrictResume(RuntimeError):
    """Bits could differ from an undisturbed run, and `strict_resume` forbids that."""


@dataclass(slots=True)
class Session:
    """A run's parts, ready to go."""

    config: Config
    place: RunDirectory
    notes: RunLog
    trainer: ContinualTrainer
    ingest: Ingest
    supply: PacedStream
    valve: FlowControl
    store: CheckpointStore
    writer: CheckpointWriter
    log: DurableLog | None
    letters: DeadLetterSink
    build: dict[str, Any]
    """What the checkpoint says of machine and threads."""
    resumed_at: int | None = None
    """Events that the checkpoint held from which the run goes on; None if it begins."""
    elapsed: float = 0.0
    """Seconds that the run took before."""
    kept: Kept | None = None
    """What the newest checkpoint holds, if another one now would be the same but for that."""

    def close(self) -> None:
        """End what still runs and close the files; the disk may refuse."""
        self.valve.stop()
        if self.supply.settle():
            self.ingest.close()
        with suppress(OSError):  # which was told, or the run ends by what matters more
            self.writer.wait()
        with suppress(OSError):
            self.letters.close()
        if self.log is not None:
            self.log.close()
        table = self.trainer.graph.edge_x
        if table is not None:
            with suppress(OSError):
                table.close()


@dataclass(frozen=True, slots=True)
class RunInputs:
    """What a session is made of that is not in its directory.

    Args:
        source: Where events come from, not started.
        direction: How they become edges.
        model: The model, its first parameters drawn by the seed.
        threads: CPU threads in use.
    """

    source: PartitionedSource
    direction: Direction
    model: TemporalModel
    threads: int


def open_session(
    place: RunDirectory, inputs: RunInputs, notes: RunLog, valve: FlowControl
) -> Session:
    """Start the run in `place`, or resume it.

    Args:
        place: Taken.
        inputs: What else it is made of.
        notes: Gets what was found.
        valve: Ends the stream; it may be stopped already.

    Raises:
        ConfigError: If the checkpoint that can be used has other settings than the newest had.
        NoValidCheckpoint: If there were checkpoints and all are damaged.
        LogCorrupt: If the log is damaged.
        CheckpointError: If a checkpoint cannot be trusted, or another tgflow wrote it.
        StrictResume: If bits could differ, and the settings forbid that.
        OSError: If the directory cannot be read or written.
    """
    for key in place.unknown:
        text = f"{place.path} has a setting that no longer exists, left out: {key}"
        notes.warning("settings", text)
    try:
        return _open(place, inputs, notes, valve)
    except (NoValidCheckpoint, LogCorrupt, RowsLost) as error:
        raise type(error)(
            f"{error}; bring files back from a copy, or start over with another --out"
        ) from None


def _open(place: RunDirectory, inputs: RunInputs, notes: RunLog, valve: FlowControl) -> Session:
    config = place.config
    source = inputs.source
    store = _open_store(place)
    found = store.newest()
    for problem in store.problems:
        notes.warning("checkpoint", problem)
    build = {name: describe()[name] for name in BUILD} | {"threads": inputs.threads}
    if found is None:
        start = _Start.at_the_beginning(inputs, place)
    else:
        place.compare(found[1].meta["run"].get("settings"))
        start = _Start.from_checkpoint(found[1], inputs, place, notes)
        _check_build(found[1].meta["run"]["build"], build, config, notes)
    log = _open_log(place, start.state, notes) if config.checkpoint.log else None
    place.rundir.cut_records(start.records_bytes)
    source.ids = start.ids
    if isinstance(source, Stoppable):
        source.stop = lambda: valve.stopped
    letters = _dead_letters(config, place)
    position = start.trainer.position
    ingest = Ingest(
        source,
        order_config(config),
        letters=letters,
        accounting=RowAccounting(),
        breaker=CircuitBreaker(source.name, config.checks.max_bad_ratio),
        log=log,
        state=start.state,
        skip_to=position,
        stop=lambda: valve.stopped,
    )
    limit = config.stream.limit
    left = None if limit is None else max(0, limit - position)
    return Session(
        config=config,
        place=place,
        notes=notes,
        trainer=start.trainer,
        ingest=ingest,
        supply=PacedStream(ingest, valve, source.unit, left, config.stream.speed),
        valve=valve,
        store=store,
        writer=CheckpointWriter(store),
        log=log,
        letters=letters,
        build=build,
        resumed_at=position if place.goes_on else None,
        elapsed=start.elapsed,
        kept=None if place.changed else start.kept(build),
    )


def _open_store(place: RunDirectory) -> CheckpointStore:
    c = place.config.checkpoint
    limit = c.max_checkpoint_bytes
    return CheckpointStore(
        place.path / "checkpoints",
        keep=c.keep,
        max_bytes=None if limit is None else parse_bytes(limit),
    )


@dataclass(frozen=True, slots=True)
class _Start:
    """Where a run goes on."""

    trainer: ContinualTrainer
    ids: NodeIds
    state: IngestState | None = None
    records_bytes: int = 0
    elapsed: float = 0.0
    build: dict[str, Any] = field(default_factory=dict)

    def kept(self, build: dict[str, Any]) -> Kept | None:
        """Return what the checkpoint holds, if `build` made it."""
        if self.state is None or self.build != build:
            return None
        return self.trainer.position, self.state.meta()

    @classmethod
    def at_the_beginning(cls, inputs: RunInputs, place: RunDirectory) -> _Start:
        table = open_table(place, inputs.source.x_dim)
        graph = TemporalGraph(inputs.direction, time_unit=inputs.source.unit, edge_x=table)
        trainer = ContinualTrainer(inputs.model, graph, place.config.continual)
        return cls(trainer, inputs.source.ids)

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, inputs: RunInputs, place: RunDirectory, notes: RunLog
    ) -> _Start:
        meta = checkpoint.meta
        keep_model = place.effect != "fixed_model"
        if not keep_model:
            notes.warning("other model", "model, optimizer and memory start afresh, as was allowed")
        trainer = ContinualTrainer.from_checkpoint(
            inputs.model,
            checkpoint,
            place.config.continual,
            keep_model=keep_model,
            edge_x=open_table(place, inputs.source.x_dim, checkpoint),
        )
        trainer.graph.check_time_unit(inputs.source)
        state = IngestState.from_checkpoint(checkpoint.sections["reorder"], meta["ingest"])
        ids = NodeIds.from_state(checkpoint.sections["ids"])
        run = meta["run"]
        return cls(trainer, ids, state, run["records_bytes"], run["elapsed"], run["build"])


def _open_log(place: RunDirectory, state: IngestState | None, notes: RunLog) -> DurableLog:
    """Return the log, all of which that will be read is sound.

    One that is gone, with a checkpoint there, begins anew where that leaves off: what it held comes
    from the source again, as without a log.

    Raises:
        LogCorrupt: If it is damaged, or does not go with the checkpoint.
    """
    config, needed = place.config, None if state is None else state.log
    path = place.path / "log"
    if needed is not None and not any(path.glob("*.log")):
        _say_gone(path, config, notes)
    log = DurableLog(path, needed=needed)
    try:
        for problem in log.problems:
            notes.warning("log", problem)
        if needed is None and not log.is_whole:
            raise LogCorrupt(
                f"{log.directory} has lost its beginning, and there is no checkpoint to go on from"
            )
        for _ in log.read(needed):
            pass  # here and now, not in the thread that reads the stream
    except BaseException:
        log.close()
        raise
    return log


def _say_gone(log: Path, config: Config, notes: RunLog) -> None:
    if config.order.idle_timeout is not None:
        raise LogCorrupt(f"{log} is gone, and only it knew whom idle_timeout no longer waited for")
    text = f"{log} is gone; what came after the checkpoint is read from the source again"
    notes.warning("log", text)


def _dead_letters(config: Config, place: RunDirectory) -> DeadLetterSink:
    """Return where dead letters go: to files, and to a topic if one is named."""
    files, topic = DeadLetterFiles(place.path / "dead-letters"), config.kafka.dead_letter_topic
    transport = find_transport(config.stream.path)
    if topic is None or transport is None or transport.dead_letters is None:
        return files
    url = config.stream.path.rpartition("/")[0] + f"/{topic}"
    return transport.dead_letters(files, url, config.kafka.options)


def _check_build(
    saved: dict[str, Any], build: dict[str, Any], config: Config, notes: RunLog
) -> None:
    differing = resume.differences(saved, build)
    if not differing:
        return
    text = f"{'; '.join(differing)}: results may differ in their last bits from an undisturbed run"
    if config.checkpoint.strict_resume:
        raise StrictResume(f"{text}, and strict_resume is set; go on as it was, or unset it")
    notes.warning("other build", text)


def order_config(config: Config) -> OrderConfig:
    """Return how events are put in order.

    To sort files is to let every event come late, and so to hold all back until the end.
    """
    if not config.stream.sort:
        return config.order
    return replace(
        config.order,
        allowed_lateness=INT64_MAX,
        late="dead_letter",
        buffer_events=INT64_MAX,
        buffer_bytes=INT64_MAX,
    )
