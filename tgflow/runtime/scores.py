"""Rows of scores: formatted, written before the events are learned, truncated on resume."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from torch import Tensor

from tgflow._id_columns import list_array
from tgflow.batch import HostEvents
from tgflow.checkpoint import Checkpoint
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.config import ConfigError
from tgflow.durable.fs import AppendedFile
from tgflow.ids import NodeIds
from tgflow.runtime.checkpoints import Component
from tgflow.runtime.directory import RunDirectory
from tgflow.runtime.files import DamagedJson
from tgflow.runtime.ingestion import section_of
from tgflow.streams.files.formats import format_of
from tgflow.streams.files.text import COMPRESSION
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.transports import find_transport, scheme_of
from tgflow.streams.write import encode_rows, write_rows
from tgflow.tasks.targets import NO_LABEL
from tgflow.train.event_scores import EventScores
from tgflow.train.stream_trainer import StreamTrainer
from tgflow.units import ticks_per_unit

OWNER, ROWS = "scores.json", "scores.arrows"
"""In a run's directory: which file is its own, and the rows of a Parquet file not made yet."""


class ScoresLost(RuntimeError):
    """A file of scores has not the rows that the run has written."""


@dataclass(frozen=True, slots=True)
class ScoreMark:
    """How much was written, as a checkpoint notes it.

    Args:
        num_rows: Rows.
        num_bytes: Bytes of the file that they are in; 0 for a topic.
        crc32: Of these bytes, if a run reads them again; None: unknown.
    """

    num_rows: int = 0
    num_bytes: int = 0
    crc32: int | None = None


class ScoreSink(Protocol):
    """Takes rows of scores, and takes them back."""

    @property
    def num_bytes(self) -> int:
        """Bytes that it has taken; 0 where nothing can be taken back."""

    @property
    def crc32(self) -> int | None:
        """Of the bytes that it has taken; None where they are not read again."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Write rows, which whoever reads along sees at once; raises `OSError` if that fails."""

    def sync(self) -> None:
        """Return once all rows are safe; raises `OSError` if that is not certain."""

    def rewind(self, mark: ScoreMark) -> None:
        """Take back what was written after `mark`.

        Raises:
            ScoresLost: If there is less than that, or something else.
            OSError: If it cannot be taken back.
        """

    def finish(self) -> None:
        """Make what readers want of all rows so far; raises `OSError` if that fails."""

    def close(self) -> None:
        """Give back what is held."""


class TextScores:
    """Rows at the end of a text file.

    Args:
        path: The file.
        kind: "csv", "tsv" or "jsonl".
    """

    crc32 = None

    def __init__(self, path: Path, kind: str) -> None:
        self._file, self._kind = AppendedFile(path), kind

    @property
    def num_bytes(self) -> int:
        """Bytes of the file."""
        return self._file.size

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows, after the names of the columns if the format has them."""
        self._file.write(encode_rows(rows, self._kind, header=not self._file.size))

    def sync(self) -> None:
        """Return once all rows are on the disk."""
        self._file.sync()

    def rewind(self, mark: ScoreMark) -> None:
        """Cut the file back to `mark`; it is there afterwards, also if it is empty."""
        _cut(self._file, mark)

    def finish(self) -> None:
        """Do nothing: readers have all rows."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ParquetScores:
    """A Parquet file, which ends in a table of its contents: it is written whenever a run ends.

    Until then rows are in a file that can be cut back, as an Arrow stream.

    Args:
        path: The Parquet file.
        rows: The file of the rows.
    """

    def __init__(self, path: Path, rows: Path) -> None:
        self._path, self._file = path, AppendedFile(rows)
        self.crc32 = 0
        """Of the file of the rows."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the file of the rows."""
        return self._file.size

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows as a message of the stream, which their schema begins."""
        if not self._file.size:
            self._add(rows.schema.serialize())
        self._add(rows.serialize())

    def _add(self, message: pa.Buffer) -> None:
        data = message.to_pybytes()
        self._file.write(data)
        self.crc32 = zlib.crc32(data, self.crc32)

    def sync(self) -> None:
        """Return once all rows are on the disk."""
        self._file.sync()

    def rewind(self, mark: ScoreMark) -> None:
        """Cut the file of the rows back to `mark`, and make sure that they are what was written."""
        _cut(self._file, mark)
        self.crc32 = _crc32_of(self._file.path)
        if mark.crc32 not in (None, self.crc32):
            raise ScoresLost(
                f"{self._file.path} is damaged: its checksum differs, so rows of scores are lost; "
                "bring the file back from a copy, or name another one for those to come: --scores"
            )

    def finish(self) -> None:
        """Write the Parquet file, which takes the place of an earlier one once it is complete."""
        if not self._file.size:
            return
        with pa.memory_map(str(self._file.path)) as source, pa.ipc.open_stream(source) as stream:
            write_rows(self._path, _joined(stream), stream.schema)

    def close(self) -> None:
        """Close the file of the rows."""
        self._file.close()


class TopicScores:
    """Rows as JSON records of a topic, the position as key, by which a reader keeps one of each.

    A run that resumes sends those again that came after its checkpoint: a topic takes nothing back.

    Args:
        topic: Where to.
    """

    num_bytes, crc32 = 0, None

    def __init__(self, topic: Any) -> None:
        self._topic = topic

    def write(self, rows: pa.RecordBatch) -> None:
        """Send rows soon."""
        for row in rows.to_pylist():
            self._topic.send(json.dumps(row).encode(), None, str(row["position"]).encode())

    def sync(self) -> None:
        """Return once the broker has all rows."""
        self._topic.flush()

    def rewind(self, mark: ScoreMark) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Return once the broker has all rows."""
        self._topic.flush()

    def close(self) -> None:
        """Give the connections back."""
        self._topic.close()


_PARQUET_ROWS = 1 << 16
"""Rows of a group in a Parquet file."""


def _joined(stream: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the rows of many small batches in few large ones."""
    waiting: list[pa.RecordBatch] = []
    num_rows = 0
    for batch in stream:
        waiting.append(batch)
        num_rows += len(batch)
        if num_rows >= _PARQUET_ROWS:
            yield pa.concat_batches(waiting)
            waiting, num_rows = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


def _crc32_of(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            found = zlib.crc32(data, found)
    return found


def _cut(file: AppendedFile, mark: ScoreMark) -> None:
    if file.size < mark.num_bytes:
        raise ScoresLost(
            f"{file.path} has {file.size:,} bytes, and the run has written {mark.num_bytes:,}: "
            "rows of scores are missing; bring the file back from a copy, or name another one: "
            "--scores"
        )
    file.rewind(mark.num_bytes)
    file.write(b"")


EventIds = Callable[[int, int], pa.Array]
"""Returns the ids of the events from one log position to another, as text."""
LabelNames = Callable[[], Sequence[str] | None]
"""Returns what labels 0, 1, ... are called, if they have names."""


class ScoreRows:
    """Turns the scores of micro-batches into rows.

    Args:
        ids: Of the stream's nodes.
        tick: What a tick of the stream is.
        unit: What times are to be in.
        event_ids: Of the stream's events, if they have any.
        label_names: Of the stream's labels, if rows are to have them.
    """

    def __init__(
        self,
        ids: NodeIds,
        tick: str,
        unit: str,
        event_ids: EventIds | None = None,
        label_names: LabelNames | None = None,
    ) -> None:
        self._ids, self._event_ids, self._label_names = ids, event_ids, label_names
        known = "tick" not in (tick, unit)
        self._per_unit = ticks_per_unit(unit, tick) if known else ticks_per_unit(tick, tick)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        event_id = [] if self._event_ids is None else ["event_id"]
        labels = [] if self._label_names is None else ["predicted_label", "label_probability"]
        said = ["logit", "probability", "rank", "anomaly", "model_position"]
        return ["position", "src", "dst", "t", *event_id, *said, *labels]

    def of(self, events: HostEvents, scores: EventScores) -> pa.RecordBatch:
        """Return a row for each event of a micro-batch: null where nothing is known."""
        columns = {
            "position": _array(events.eid),
            "src": list_array(self._ids.decode(events.src)),
            "dst": list_array(self._ids.decode(events.dst)),
            "t": self._times(events.t),
        }
        if self._event_ids is not None:
            columns["event_id"] = self._event_ids(events.begin, events.end)
        columns |= {
            name: _array(getattr(scores, name).double())
            for name in ("logit", "probability", "rank", "anomaly")
        }
        position = pa.scalar(scores.model_position, pa.int64())
        columns["model_position"] = pa.repeat(position, len(events.eid))
        if scores.predicted_label is not None and scores.label_probability is not None:
            columns["predicted_label"] = self._labels(scores.predicted_label)
            columns["label_probability"] = _array(scores.label_probability)
        assert [*columns] == self.columns
        return pa.RecordBatch.from_pydict(columns)

    def _labels(self, label: Tensor) -> pa.Array:
        """Return labels as the stream has them; null for none."""
        names = None if self._label_names is None else self._label_names()
        if names is None:
            return pa.array(label.numpy(), mask=(label == NO_LABEL).numpy())
        texts = [None if each == NO_LABEL else names[each] for each in label.tolist()]
        return pa.array(texts, pa.string())

    def _times(self, ticks: Tensor) -> pa.Array:
        """Return times as whole numbers, or with decimals where ticks are finer than the unit."""
        if self._per_unit.denominator == 1 and self._per_unit > 1:
            return pa.array(ticks.numpy() / int(self._per_unit))
        return pa.array(ticks.numpy() * self._per_unit.denominator)


def rows_of(
    ingest: Ingest, unit: str, *, keep_event_ids: bool, says_labels: bool, has_names: bool
) -> ScoreRows:
    """Return the maker of a run's score rows.

    Args:
        ingest: Ingestion.
        unit: Unit of the stream's times.
        keep_event_ids: Whether rows name the stream's event ids.
        says_labels: Whether labels are predicted.
        has_names: Whether labels are named. Two classes are not: one may stand for several labels.
    """

    def names() -> Sequence[str] | None:
        return ingest.label_classes if has_names else None

    event_ids = ingest.event_ids if keep_event_ids else None
    return ScoreRows(ingest.ids, ingest.unit, unit, event_ids, names if says_labels else None)


def _array(column: Tensor) -> pa.Array:
    return pa.array(column.numpy(), from_pandas=True)


_WRITTEN = ("csv", "tsv", "jsonl", "parquet")


class SavedScores(Component):
    """The rows of scores that a run has written, of which a checkpoint counts those it stands for.

    Args:
        to: Where they go: the whole path of a file, or the address of a topic.
        sink: The same.
        rows: Makes them.
        trainer: Whose scores they are.
    """

    name = "score_rows"

    def __init__(self, to: str, sink: ScoreSink, rows: ScoreRows, trainer: StreamTrainer) -> None:
        self._to, self._sink, self._rows, self._trainer = to, sink, rows, trainer
        self._mark = ScoreMark()
        self._before: tuple[int, ScoreMark] | None = None
        """Where the latest micro-batch begins, and what was written before it."""

    def write(self, events: HostEvents, scores: EventScores) -> None:
        """Write the scores of a micro-batch.

        Raises:
            OSError: If they cannot be written.
        """
        self._before = events.begin, self._mark
        self._sink.write(self._rows.of(events, scores))
        num_rows = self._mark.num_rows + len(events.eid)
        self._mark = ScoreMark(num_rows, self._sink.num_bytes, self._sink.crc32)

    def rewind(self, mark: ScoreMark) -> None:
        """Take back what was written after `mark`.

        Raises:
            ScoresLost: If there is less than that, or something else.
            OSError: If it cannot be taken back.
        """
        self._mark = mark
        self._sink.rewind(mark)

    def save(self, writer: Checkpoint) -> None:
        """Note how much there is of what was learned; it is safe when this returns."""
        self._sink.sync()
        noted = {"to": self._to, "columns": self._rows.columns, "mark": asdict(self._learned())}
        writer.note(self.name, noted)

    def report(self) -> Mapping[str, Mapping[str, Any]]:
        """Complete the file with the rows of all events learned, and no others; return where."""
        self._mark = self._learned()
        self._sink.rewind(self._mark)
        self._sink.finish()
        return {"scores": {"to": self._to, "num_rows": self._mark.num_rows}}

    def close(self) -> None:
        """Give back what is held."""
        self._sink.close()

    def _learned(self) -> ScoreMark:
        """Return how much was written of micro-batches that were learned, too."""
        if self._before is not None and self._trainer.position <= self._before[0]:
            return self._before[1]
        return self._mark


def check_scores(to: str | None) -> None:
    """Refuse a place that scores cannot go to, before anything is made.

    Raises:
        ConfigError: If it is one.
    """
    if to is None:
        return
    try:
        transport = find_transport(to)
        if transport is not None:
            transport.config(url=to)
    except ValueError as error:
        raise ConfigError(f"--scores: {error}") from None
    if transport is not None:
        if transport.topic is None:
            raise ConfigError(f"--scores: {scheme_of(to)}:// takes no scores; name a file")
        return
    path = Path(to)
    if path.suffix in COMPRESSION or format_of(path) not in _WRITTEN:
        raise ConfigError(
            f"--scores: {to!r} has no ending that rows can be written to; end it in .parquet, "
            ".csv, .tsv or .jsonl, or name a topic: kafka://HOST/TOPIC"
        )
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--scores: there is no folder {path.parent} to write to; make it first")


def open_scores(
    directory: RunDirectory, rows: ScoreRows, trainer: StreamTrainer, checkpoint: Checkpoint | None
) -> SavedScores | None:
    """Return where the scores of a run go, at the place of its checkpoint; None if nowhere.

    Args:
        directory: The run's.
        rows: Makes the rows.
        trainer: Whose scores they are.
        checkpoint: What the run resumes from; None starts.

    Raises:
        UntrustedCheckpoint: If what it says of them is nothing that is ever noted.
        ConfigError: If the rows that the checkpoint counts have other columns.
        FileExistsError: If there is a file already that the checkpoint does not count, or that was
            left complete when the run was to go on with another.
        ScoresLost: If there are not the rows that the checkpoint counts.
        OSError: If they cannot be written.
    """
    to = directory.config.scores.to
    if to is None:
        return None
    is_file = scheme_of(to) is None
    to = str(Path(to).absolute()) if is_file else to
    noted = _Noted.of(checkpoint)
    owner = _claimed(directory).get("to", noted.to)
    if owner is not None and owner == noted.to != to:
        _complete(owner, noted.mark, directory)
    mark = noted.mark if noted.to == to else None
    if mark is not None and mark.num_rows and noted.columns not in (None, rows.columns):
        raise ConfigError(
            f"--scores: the rows in {to} have the columns {', '.join(noted.columns or ())}, and "
            f"those to come {', '.join(rows.columns)}: name another file"
        )
    if is_file and mark is not None and owner != to:
        raise FileExistsError(
            f"{to} was left complete when the run was to go on with {owner}; name that one, or a "
            "third: --scores"
        )
    if is_file and mark is None:
        _claim(directory, Path(to), trainer.position)
    sink = (
        _file(Path(to), directory.path / ROWS)
        if is_file
        else _topic(to, section_of(directory.config, to))
    )
    saved = SavedScores(to, sink, rows, trainer)
    saved.rewind(ScoreMark() if mark is None else mark)
    return saved


@dataclass(frozen=True, slots=True)
class _Noted:
    """What a checkpoint says of rows of scores.

    Args:
        to: Where they went; None: there are none.
        mark: How much there is.
        columns: Their columns; None: unknown.
    """

    to: str | None = None
    mark: ScoreMark = field(default_factory=ScoreMark)
    columns: list[str] | None = None

    @classmethod
    def of(cls, checkpoint: Checkpoint | None) -> _Noted:
        """Return it; of a checkpoint that says nothing, or of none, that there are none.

        Raises:
            UntrustedCheckpoint: If it is nothing that is ever noted.
        """
        name = SavedScores.name
        if checkpoint is None or name not in checkpoint.meta:
            return cls()
        noted = read_as(dict[str, Any], checkpoint.meta[name], name)
        mark = read_as(dict[str, int | None], noted.get("mark"), f"{name}.mark")
        num_rows, num_bytes = (read_natural(mark, key) for key in ("num_rows", "num_bytes"))
        return cls(
            read_as(str, noted.get("to"), f"{name}.to"),
            ScoreMark(num_rows, num_bytes, mark.get("crc32")),
            read_as(list[str] | None, noted.get("columns"), f"{name}.columns"),
        )


def _complete(to: str, counted: ScoreMark, directory: RunDirectory) -> None:
    """Let the file that rows went to before have all rows that a checkpoint counts, and no others.

    Only of the file that the rows in the directory are of: they are another's once that is claimed.

    Raises:
        OSError: If it cannot be written.
    """
    if scheme_of(to) is not None:
        return
    sink = _file(Path(to), directory.path / ROWS)
    try:
        with suppress(ScoresLost):  # whoever names another file may have taken this one away
            sink.rewind(counted)
            sink.finish()
    finally:
        sink.close()


def _claim(directory: RunDirectory, path: Path, position: int) -> None:
    """Note that a file begins with the scores of this run from `position` on.

    Raises:
        FileExistsError: If it has others already.
    """
    claimed = _claimed(directory)
    is_own = claimed.get("to") == str(path) and position <= claimed["from"]
    if path.exists() and not is_own:
        raise FileExistsError(
            f"{path} is there already, with other rows than this run is going to write; remove it, "
            "or name another file: --scores"
        )
    directory.files.write_json(OWNER, {"to": str(path), "from": position})


def _claimed(directory: RunDirectory) -> dict[str, Any]:
    """Return which file the rows in the directory are of, and from where on; empty if unknown."""
    with suppress(DamagedJson):
        return directory.files.read_json(OWNER) or {}
    return {}


def _file(path: Path, rows: Path) -> ScoreSink:
    kind = format_of(path)
    assert kind is not None
    return ParquetScores(path, rows) if kind == "parquet" else TextScores(path, kind)


def _topic(to: str, section: Any) -> ScoreSink:
    transport = find_transport(to)
    assert transport is not None
    assert transport.topic is not None
    return TopicScores(transport.topic(to, section.options))
