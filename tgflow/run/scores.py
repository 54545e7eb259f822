"""Rows of scores: formatted, written before the events are learned, truncated on resume."""

from __future__ import annotations

import csv
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from tgflow.base.units import ticks_in, ticks_per_unit
from tgflow.checkpoint import Checkpoint, Component
from tgflow.checkpoint.durable.fs import AppendedFile, crc32_of, writing
from tgflow.checkpoint.typed import read_as
from tgflow.graph.batch import HostEvents
from tgflow.graph.events import NO_LABEL
from tgflow.graph.id_columns import list_array
from tgflow.run.config import ConfigError, StreamConfig
from tgflow.run.context import RunContext
from tgflow.run.records import DamagedJson
from tgflow.serve.scored_pairs import label_column
from tgflow.streams.files.formats import format_of
from tgflow.streams.files.text import COMPRESSION
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.transports import find_transport, scheme_of
from tgflow.streams.write import encode_rows, write_rows
from tgflow.train.alerts import AlertBudget
from tgflow.train.continual import ContinualTrainer
from tgflow.train.event_scores import EventScores
from tgflow.train.tasks.config import TaskConfig

OWNER, ROWS, ROWS_OF_DAYS = "scores.json", "scores.arrows", "score-rows"
"""Files in a run's directory: the path of its file of scores, and the rows of a Parquet file, or of
those of some days."""
DAY = "{day}"
_NOTE = "score_rows"
_WRITTEN = ("csv", "tsv", "jsonl", "parquet")
_EPOCH = date(1970, 1, 1)
_PARQUET_ROWS = 1 << 16


class ScoresLost(RuntimeError):
    """Raised when a file of scores lacks rows that the run has written."""


@dataclass(frozen=True, slots=True)
class ScoreMark:
    """Length of the scores written, as stored in a checkpoint."""

    num_rows: int = 0
    num_bytes: int = 0
    crc32: int = 0
    """Of the file of the last row."""
    day: str = ""
    """Its day, where each has a file of its own."""


@dataclass(frozen=True, slots=True)
class _Noted:
    to: str
    columns: list[str]
    mark: ScoreMark


class _ScoreFile:
    """Rows at the end of a file of `kind` "csv", "tsv", "jsonl" or "parquet".

    A Parquet file ends in its index, so it is written whenever a run ends. Until then its rows are
    in the file `rows`, as an Arrow stream, which can be truncated.
    """

    def __init__(self, path: Path, rows: Path) -> None:
        self._path, self._kind = path, str(format_of(path))
        self._is_parquet = self._kind == "parquet"
        self._file, self.crc32 = AppendedFile(rows if self._is_parquet else path), 0
        self.is_settled = False

    @property
    def num_bytes(self) -> int:
        return self._file.size

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows, readable by others at once; the first follow a header or schema."""
        is_first = not self._file.size
        if self._is_parquet:
            schema = rows.schema.serialize().to_pybytes() if is_first else b""
            data = schema + rows.serialize().to_pybytes()
        else:
            data = encode_rows(rows, self._kind, header=is_first)
        self._file.write(data)
        self.crc32 = zlib.crc32(data, self.crc32)

    def sync(self) -> None:
        self._file.sync()

    def rewind(self, mark: ScoreMark) -> None:
        """Truncate to `mark` once what it counts is verified; a missing file is created."""
        file, left = self._file, mark.num_bytes
        way_out = "bring the file back from a copy, or name another one for new rows: --scores"
        if file.size < left:
            text = f"{file.path} has {file.size:,} bytes, and the run has written {left:,}: rows "
            raise ScoresLost(f"{text}of scores are missing; {way_out}")
        if mark.crc32 != (crc32 := crc32_of(file.path, left)):
            text = f"{file.path} is damaged: its checksum differs, so rows of scores are lost, and "
            raise ScoresLost(f"{text}nothing in it was changed; {way_out}")
        file.rewind(mark.num_bytes)
        file.write(b"")
        self.crc32 = crc32

    def finish(self) -> None:
        if not self._is_parquet or not self._file.size:
            return
        with pa.memory_map(str(self._file.path)) as source, pa.ipc.open_stream(source) as stream:
            write_rows(self._path, _joined(stream), stream.schema)

    def settle(self) -> None:
        """Complete it durably; any thread may call it."""
        self.sync()
        self.finish()
        self.is_settled = True

    def close(self) -> None:
        self._file.close()


def _joined(stream: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Merge many small batches of rows into few large ones."""
    waiting: list[pa.RecordBatch] = []
    for batch in stream:
        waiting.append(batch)
        if sum(map(len, waiting)) >= _PARQUET_ROWS:
            yield pa.concat_batches(waiting)
            waiting = []
    if waiting:
        yield pa.concat_batches(waiting)


class FileScores:
    """Rows in a file; with `{day}` in its name, in one for each UTC day of the events.

    Late events are in the file of the day that was written when they arrived. Files of earlier days
    are complete with the next checkpoint, and removed, beyond `keep` of them, once no checkpoint
    needs them.
    """

    def __init__(self, to: str, directory: Path, keep: int | None = None) -> None:
        self._to, self._directory, self._keep = to, directory, keep
        self._ended: list[_ScoreFile] = []
        self._day = ""
        self._file = None if DAY in to else self._open("")

    def _open(self, day: str) -> _ScoreFile:
        rows = self._rows(day) if day else self._directory / ROWS
        return _ScoreFile(Path(self._to.replace(DAY, day)), rows)

    def _rows(self, day: str) -> Path:
        return self._directory / ROWS_OF_DAYS / f"{day}.arrows"

    def write(self, rows: pa.RecordBatch, days: Tensor) -> None:
        """Append rows of these days, int64 `[N]` as `date.toordinal`."""
        start = 0
        found = torch.unique_consecutive(days.cummax(0).values, return_counts=True)
        for number, size in zip(*(each.tolist() for each in found), strict=True):
            day = max(self._day, date.fromordinal(number).isoformat() if DAY in self._to else "")
            if self._file is None or day != self._day:
                if self._file is not None:
                    self._file.close()
                    self._ended.append(self._file)
                self._rows(day).parent.mkdir(exist_ok=True)
                self._file, self._day = self._open(day), day
            self._file.write(rows.slice(start, size))
            start += size

    def mark(self, num_rows: int) -> ScoreMark:
        if self._file is None:
            return ScoreMark(num_rows)
        return ScoreMark(num_rows, self._file.num_bytes, self._file.crc32, self._day)

    def save(self, writer: Checkpoint, oldest_day: Callable[[], str]) -> None:
        """Let a checkpoint sync the rows, complete the files of earlier days, and remove old ones.

        `oldest_day` returns the day of the oldest checkpoint.
        """
        self._ended = [each for each in self._ended if not each.is_settled]
        writer.outside.extend(each.settle for each in self._ended)
        if self._file is not None:
            writer.outside.append(self._file.sync)
        writer.committed.append(lambda path: self.drop_before(oldest_day()))

    def drop_before(self, day: str) -> None:
        """Remove what no run that continues on this day needs; any thread may call it."""
        files = score_files(self._to)
        old = [] if self._keep is None else [*files][: -self._keep]
        gone = [files[each] for each in old if each < day]
        gone += [each for each in self._rows("").parent.glob("*.arrows") if each.stem < day]
        with suppress(OSError):
            for path in gone:
                path.unlink()

    def rewind(self, mark: ScoreMark) -> None:
        """Truncate to `mark` once what it counts is verified."""
        self.close()
        self._ended.clear()
        self._file = None if DAY in self._to and not mark.day else self._open(mark.day)
        if self._file is not None:
            self._file.rewind(mark)
        self._day = mark.day
        later = [path for day, path in score_files(self._to).items() if day > mark.day]
        later += [each for each in self._rows("").parent.glob("*.arrows") if each.stem > mark.day]
        for path in later:
            path.unlink()

    def finish(self) -> None:
        for each in (*self._ended, self._file):
            if each is not None:
                each.finish()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def score_files(to: str) -> dict[str, Path]:
    """Return the existing files of scores by day, in order; by "" without days."""
    path = Path(to)
    if DAY not in path.name:
        return {"": path} if path.exists() else {}
    pattern = re.escape(path.name).replace(re.escape(DAY), r"(\d{4}-\d\d-\d\d)")
    there = path.parent.iterdir() if path.parent.exists() else ()
    found = ((re.fullmatch(pattern, each.name), each) for each in there)
    return dict(sorted((name[1], each) for name, each in found if name))


class TopicScores:
    """Rows as JSON records of a topic, keyed by position, so that readers can deduplicate them.

    A resumed run sends those after its checkpoint again, as a topic cannot be truncated.
    """

    def __init__(self, topic: Any) -> None:
        self._topic = topic

    def write(self, rows: pa.RecordBatch, days: Tensor) -> None:
        for row in rows.to_pylist():
            self._topic.send(json.dumps(row).encode(), str(row["position"]).encode())

    def mark(self, num_rows: int) -> ScoreMark:
        return ScoreMark(num_rows)

    def finish(self) -> None:
        """Block until the broker has acknowledged all rows."""
        self._topic.flush()

    def save(self, writer: Checkpoint, oldest_day: Callable[[], str]) -> None:
        self.finish()

    def rewind(self, mark: ScoreMark) -> None:
        """Do nothing."""

    def close(self) -> None:
        self._topic.close()


class ScoreRows:
    """Formats the scores of micro-batches as rows."""

    def __init__(
        self,
        ingest: Ingest,
        stream: StreamConfig,
        label_columns: Mapping[str | int, int],
        labels: list[str],
    ) -> None:
        self._ingest, self._labels = ingest, labels
        self._has_event_ids = stream.event_id is not None
        self._names, self._label_columns = stream.label_shown, label_columns
        tick, unit = ingest.unit, stream.unit
        self._per_unit = ticks_per_unit(tick if "tick" in (tick, unit) else unit, tick)
        self._per_day = int(ticks_in("1d", tick))

    @property
    def columns(self) -> list[str]:
        event_id = ["event_id"] if self._has_event_ids else []
        own = [label_column(name) for name in self._label_columns]
        scores = ["logit", "probability", "rank", "anomaly", "model_position"]
        return ["position", "src", "dst", "t", *event_id, *scores, *self._labels, *own]

    def of(self, events: HostEvents, scores: EventScores) -> pa.RecordBatch:
        """Return a row for each event of a micro-batch; unknown values are null."""
        ids = self._ingest.ids
        columns = {
            "position": _array(events.eid),
            "src": list_array(ids.decode(events.src)),
            "dst": list_array(ids.decode(events.dst)),
            "t": self._times(events.t),
        }
        if self._has_event_ids:
            columns["event_id"] = self._ingest.event_ids(events.begin, events.end)
        for name in ("logit", "probability", "rank", "anomaly"):
            columns[name] = _array(getattr(scores, name).double())
        position = pa.scalar(scores.model_position, pa.int64())
        columns["model_position"] = pa.repeat(position, len(events.eid))
        if scores.predicted_label is not None and scores.label_probability is not None:
            columns["predicted_label"] = self._label_texts(scores.predicted_label)
            columns["label_probability"] = _array(scores.label_probability)
        if scores.alert is not None:
            columns["alert"] = _array(scores.alert)
        if scores.label_probabilities is not None:
            for label, share in zip(self._label_columns, scores.label_probabilities.T, strict=True):
                columns[label_column(label)] = _array(share)
        assert [*columns] == self.columns
        return pa.RecordBatch.from_pydict(columns)

    def days(self, ticks: Tensor) -> Tensor:
        """Return the UTC day of each time, int64 as `date.toordinal`."""
        days = torch.div(ticks, self._per_day, rounding_mode="floor") + _EPOCH.toordinal()
        return days.clamp(1, date.max.toordinal())

    def _label_texts(self, label: Tensor) -> pa.Array:
        if not (names := self._names):
            return pa.array(label.numpy(), mask=(label == NO_LABEL).numpy())
        found = [None if each == NO_LABEL else names[max(0, each)] for each in label.tolist()]
        return pa.array(found, pa.string() if isinstance(names[0], str) else pa.int64())

    def _times(self, ticks: Tensor) -> pa.Array:
        """Return times as whole numbers, or with decimals where ticks are finer than the unit."""
        if self._per_unit.denominator == 1 and self._per_unit > 1:
            return pa.array(ticks.numpy() / int(self._per_unit))
        return pa.array(ticks.numpy() * self._per_unit.denominator)


def _array(column: Tensor) -> pa.Array:
    return pa.array(column.numpy(), from_pandas=True)


class SavedScores(Component):
    """Rows of scores written by a run; checkpoints store their number."""

    def __init__(
        self,
        to: str,
        sink: FileScores | TopicScores,
        rows: ScoreRows,
        run: RunContext,
        mark: ScoreMark,
    ) -> None:
        self._to, self._sink, self._rows, self._trainer = to, sink, rows, run.trainer
        self._store = run.store
        self._mark = mark
        self._before: tuple[int, ScoreMark] | None = None
        """Position of the latest micro-batch, and the length written before it."""
        sink.rewind(mark)

    def write(self, events: HostEvents, scores: EventScores) -> None:
        self._before = events.begin, self._mark
        self._sink.write(self._rows.of(events, scores), self._rows.days(events.t))
        self._mark = self._sink.mark(self._mark.num_rows + len(events.eid))

    def save(self, writer: Checkpoint) -> None:
        """Save the number of rows of learned events; they are on disk before the checkpoint is."""
        self._sink.save(writer, self._oldest_day)
        writer.note(_NOTE, asdict(_Noted(self._to, self._rows.columns, self._learned())))

    def _oldest_day(self) -> str:
        noted = (self._store.oldest_kept() or {}).get(_NOTE)
        return str(noted["mark"]["day"]) if noted and noted["to"] == self._to else ""

    def report(self) -> Mapping[str, Mapping[str, Any]]:
        """Complete the file with the rows of all learned events, and no others."""
        if self._mark != self._learned():
            self._mark = self._learned()
            self._sink.rewind(self._mark)
        self._sink.finish()
        return {"scores": {"to": self._to, "num_rows": self._mark.num_rows}}

    def close(self) -> None:
        self._sink.close()

    def _learned(self) -> ScoreMark:
        """Return the length of the rows of learned micro-batches."""
        if self._before is not None and self._trainer.position <= self._before[0]:
            return self._before[1]
        return self._mark


def check_alerts(budget: int | None, task: TaskConfig) -> None:
    """Raise `ConfigError` for alerts without labels of two classes, once these are counted."""
    if budget and not (task.has_decoder and task.classes in (None, 2)):
        text = "--alert-budget requires labels of two classes, as of --task edge --target is_fraud"
        found = f"{task.classes} classes" if task.has_decoder else f"--task {task.kind}"
        raise ConfigError(f"{text}, got {found}")


def open_alerts(run: RunContext) -> AlertBudget | None:
    """Return the alerts of a run at its checkpoint; None without --alert-budget."""
    trainer, most = run.trainer, run.config.scores.alert_budget
    if not isinstance(trainer, ContinualTrainer) or trainer.scorer is None or most is None:
        return None
    assert trainer.labels is not None
    history = trainer.labels.history

    def classes(eid: Tensor) -> Tensor:
        eid = eid[eid >= trainer.graph.since(trainer.position)]
        return history.classes(eid, trainer.position - 1)

    trainer.scorer.alerts = AlertBudget(most, run.unit, lambda: trainer.position, classes)
    if run.newest is not None:
        trainer.scorer.alerts.load(run.newest)
    return trainer.scorer.alerts


def check_scores(to: str | None, unit: str) -> None:
    """Raise `ConfigError` for an invalid target of scores of events whose times have this unit."""
    if to is None:
        return
    try:
        if (transport := find_transport(to)) is not None:
            transport.config(url=to)
    except ValueError as error:
        raise ConfigError(f"--scores: {error}") from None
    if transport is not None:
        if transport.topic is None:
            raise ConfigError(f"--scores: {scheme_of(to)}:// does not accept scores; name a file")
        return
    path = Path(to)
    if DAY in to and (unit == "tick" or path.name.count(DAY) != 1 or DAY in str(path.parent)):
        raise ConfigError(
            f"--scores: {to!r} names files by day: {DAY} belongs into the name of the file, once, "
            "and needs times of a unit; give --time-unit, or another name"
        )
    if path.suffix in COMPRESSION or format_of(path) not in _WRITTEN:
        text = f"--scores: {to!r} has an unsupported ending; use .parquet, .csv, .tsv or .jsonl, "
        raise ConfigError(f"{text}or name a topic: kafka://HOST/TOPIC")


def _columns_of(path: Path) -> list[str] | None:
    """Return the columns of a file of scores; None if it is another file."""
    with suppress(OSError, TypeError, ValueError):  # pyarrow's errors are ValueErrors
        if format_of(path) == "parquet":
            return list(pq.read_schema(path).names)
        with path.open("rb") as file:
            first = file.readline(1 << 16).decode()
        if format_of(path) == "jsonl":
            return list(json.loads(first))
        return next(csv.reader([first], delimiter="\t" if "\t" in first else ","), None)
    return None


def open_scores(run: RunContext) -> SavedScores | None:
    """Return the scores of a run at its checkpoint; None if none are written.

    Raises ScoresLost if the rows that the checkpoint counts are gone, ConfigError if they have
    other columns, and FileExistsError if the file has rows that the checkpoint does not count, or
    was completed when the run continued with another file.
    """
    config, directory, trainer, checkpoint = run.config, run.directory, run.trainer, run.newest
    to = config.scores.to
    if not isinstance(trainer, ContinualTrainer) or trainer.scorer is None or to is None:
        return None
    labels, columns = trainer.scorer.label_columns, config.label_columns
    rows = ScoreRows(run.ingest, config.stream, columns if labels else {}, labels)
    trainer.scorer.columns = [*columns.values()] if labels else ()
    noted, owner = None, {}
    if checkpoint is not None and _NOTE in checkpoint.meta:
        noted = read_as(_Noted, checkpoint.meta[_NOTE], _NOTE)
    with suppress(DamagedJson):
        owner = directory.files.read_json(OWNER) or {}
    is_file = scheme_of(to) is None
    if is_file:
        with writing():
            Path(to).absolute().parent.mkdir(parents=True, exist_ok=True)
    to = str(Path(to).absolute()) if is_file else to
    owned = owner.get("to", None if noted is None else noted.to)
    if noted is not None and owned == noted.to != to and scheme_of(noted.to) is None:
        # the previous file gets all rows that the checkpoint counts
        with closing(FileScores(noted.to, directory.path)) as before, suppress(ScoresLost):
            before.rewind(noted.mark)  # fails if a user has removed it
            before.finish()
    is_counted = noted is not None and noted.to == to
    mark = noted.mark if noted is not None and is_counted else ScoreMark()
    if noted is not None and mark.num_rows and noted.columns != rows.columns:
        text = f"--scores: the rows in {to} have the columns {', '.join(noted.columns)}, and those "
        raise ConfigError(f"{text}to come {', '.join(rows.columns)}: name another file")
    if is_file and is_counted and owned != to:
        text = f"{to} was completed when the run continued with {owned}; name that one, or a "
        raise FileExistsError(f"{text}third: --scores")
    is_own = is_counted or (owner.get("to") == to and trainer.position <= owner["from"])
    # a checksum shows whose rows a file has, but a Parquet file or uncounted rows have none
    if is_file and (not mark.num_bytes or format_of(Path(to)) == "parquet" or DAY in to):
        there = [path for path in score_files(to).values() if path.stat().st_size]
        if there and not (is_own and all(_columns_of(path) == rows.columns for path in there)):
            text = f"{to} exists already, with rows that are not this run's; remove it, or name "
            raise FileExistsError(f"{text}another file: --scores")
    if is_file and not is_counted:
        directory.files.write_json(OWNER, {"to": to, "from": trainer.position})
    sink: Any = FileScores(to, directory.path, config.scores.keep_days) if is_file else None
    if (transport := find_transport(to)) is not None and transport.topic is not None:
        sink = TopicScores(transport.topic(to, config.section_of(scheme_of(to))))
    saved = SavedScores(to, sink, rows, run, mark)
    trainer.scorer.on_scores = saved.write
    return saved
