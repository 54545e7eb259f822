"""Rows of scores: formatted, written before the events are learned, truncated on resume."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from torch import Tensor

from tgflow._id_columns import list_array
from tgflow.batch import HostEvents
from tgflow.checkpoint import Checkpoint
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.config import Config, ConfigError
from tgflow.durable.fs import AppendedFile
from tgflow.runtime.checkpoints import Component
from tgflow.runtime.directory import RunDirectory
from tgflow.runtime.files import DamagedJson
from tgflow.runtime.ingestion import keeps_event_ids, section_of
from tgflow.streams.files.formats import format_of
from tgflow.streams.files.text import COMPRESSION
from tgflow.streams.ingest.ingest import Ingest
from tgflow.streams.transports import find_transport, scheme_of
from tgflow.streams.write import encode_rows, write_rows
from tgflow.tasks.targets import NO_LABEL
from tgflow.train.continual import ContinualTrainer
from tgflow.train.event_scores import EventScores
from tgflow.train.stream_trainer import StreamTrainer
from tgflow.units import ticks_per_unit

OWNER, ROWS = "scores.json", "scores.arrows"
"""Files in a run's directory: the path of its file of scores, and the rows of a Parquet file."""
_NOTE = "score_rows"
_WRITTEN = ("csv", "tsv", "jsonl", "parquet")
_PARQUET_ROWS = 1 << 16
"""Rows of a group in a Parquet file."""


class ScoresLost(RuntimeError):
    """A file of scores has not the rows that the run has written."""


@dataclass(frozen=True, slots=True)
class ScoreMark:
    """How much was written, as a checkpoint notes it."""

    num_rows: int = 0
    num_bytes: int = 0
    crc32: int | None = None


class TextScores:
    """Rows at the end of a text file of `kind` "csv", "tsv" or "jsonl"."""

    crc32: int | None = None

    def __init__(self, path: Path, kind: str) -> None:
        self._file, self._kind = AppendedFile(path), kind

    @property
    def num_bytes(self) -> int:
        return self._file.size

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows, which others can read at once; the first ones after a header."""
        self._file.write(encode_rows(rows, self._kind, header=not self._file.size))

    def sync(self) -> None:
        self._file.sync()

    def rewind(self, mark: ScoreMark) -> None:
        """Cut off what was written after `mark`; the file exists afterwards, even if empty."""
        file = self._file
        if file.size < mark.num_bytes:
            raise ScoresLost(
                f"{file.path} has {file.size:,} bytes, and the run has written {mark.num_bytes:,}: "
                "rows of scores are missing; bring the file back from a copy, or name another one: "
                "--scores"
            )
        file.rewind(mark.num_bytes)
        file.write(b"")

    def finish(self) -> None:
        """Make the file that readers want of all rows so far."""

    def close(self) -> None:
        self._file.close()


class ParquetScores(TextScores):
    """A Parquet file, which ends in its index, so it is written whenever a run ends.

    Until then rows are in the file `rows`, as an Arrow stream, which can be cut back.
    """

    crc32: int

    def __init__(self, path: Path, rows: Path) -> None:
        super().__init__(rows, "arrow")
        self._path, self.crc32 = path, 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows as a message of the stream, which their schema begins."""
        schema = [] if self._file.size else [rows.schema.serialize()]
        for message in [*schema, rows.serialize()]:
            data = message.to_pybytes()
            self._file.write(data)
            self.crc32 = zlib.crc32(data, self.crc32)

    def rewind(self, mark: ScoreMark) -> None:
        """Cut off what was written after `mark`, and check the rest."""
        super().rewind(mark)
        self.crc32 = 0
        with self._file.path.open("rb") as file:
            while data := file.read(1 << 20):
                self.crc32 = zlib.crc32(data, self.crc32)
        if mark.crc32 not in (None, self.crc32):
            raise ScoresLost(
                f"{self._file.path} is damaged: its checksum differs, so rows of scores are lost; "
                "bring the file back from a copy, or name another one for those to come: --scores"
            )

    def finish(self) -> None:
        """Write the Parquet file, which replaces an earlier one once it is complete."""
        if not self._file.size:
            return
        with pa.memory_map(str(self._file.path)) as source, pa.ipc.open_stream(source) as stream:
            write_rows(self._path, _joined(stream), stream.schema)


def _joined(stream: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the rows of many small batches in few large ones."""
    waiting: list[pa.RecordBatch] = []
    for batch in stream:
        waiting.append(batch)
        if sum(map(len, waiting)) >= _PARQUET_ROWS:
            yield pa.concat_batches(waiting)
            waiting = []
    if waiting:
        yield pa.concat_batches(waiting)


class TopicScores:
    """Rows as JSON records of a topic, keyed by position, so that readers can deduplicate them.

    A resumed run sends those after its checkpoint again: a topic cannot be cut back.
    """

    num_bytes, crc32 = 0, None

    def __init__(self, topic: Any) -> None:
        self._topic = topic

    def write(self, rows: pa.RecordBatch) -> None:
        """Send rows soon."""
        for row in rows.to_pylist():
            self._topic.send(json.dumps(row).encode(), None, str(row["position"]).encode())

    def sync(self) -> None:
        self._topic.flush()

    def rewind(self, mark: ScoreMark) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Return once the broker has all rows."""
        self._topic.flush()

    def close(self) -> None:
        self._topic.close()


class ScoreRows:
    """Formats the scores of micro-batches as rows."""

    def __init__(self, ingest: Ingest, config: Config, *, has_labels: bool) -> None:
        self._ingest, self._has_labels = ingest, has_labels
        self._has_event_ids = keeps_event_ids(config)
        # with two classes the labels have no names: one class may stand for several labels
        self._has_names = config.task.classes not in (None, 2)
        tick, unit = ingest.unit, config.stream.unit
        self._per_unit = ticks_per_unit(tick if "tick" in (tick, unit) else unit, tick)

    @property
    def columns(self) -> list[str]:
        event_id = ["event_id"] if self._has_event_ids else []
        labels = ["predicted_label", "label_probability"] if self._has_labels else []
        scores = ["logit", "probability", "rank", "anomaly", "model_position"]
        return ["position", "src", "dst", "t", *event_id, *scores, *labels]

    def of(self, events: HostEvents, scores: EventScores) -> pa.RecordBatch:
        """Return a row for each event of a micro-batch: null where nothing is known."""
        ids = self._ingest.ids
        columns = {
            "position": _array(events.eid),
            "src": list_array(ids.decode(events.src)),
            "dst": list_array(ids.decode(events.dst)),
            "t": self._times(events.t),
        }
        if self._has_event_ids:
            columns["event_id"] = self._ingest.event_ids(events.begin, events.end)
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
        names: Sequence[str] | None = self._ingest.label_classes if self._has_names else None
        if names is None:
            return pa.array(label.numpy(), mask=(label == NO_LABEL).numpy())
        texts = [None if each == NO_LABEL else names[each] for each in label.tolist()]
        return pa.array(texts, pa.string())

    def _times(self, ticks: Tensor) -> pa.Array:
        """Return times as whole numbers, or with decimals where ticks are finer than the unit."""
        if self._per_unit.denominator == 1 and self._per_unit > 1:
            return pa.array(ticks.numpy() / int(self._per_unit))
        return pa.array(ticks.numpy() * self._per_unit.denominator)


def _array(column: Tensor) -> pa.Array:
    return pa.array(column.numpy(), from_pandas=True)


class SavedScores(Component):
    """Rows of scores that a run has written; checkpoints note how many."""

    def __init__(
        self,
        to: str,
        sink: TextScores | TopicScores,
        rows: ScoreRows,
        trainer: StreamTrainer,
        mark: ScoreMark,
    ) -> None:
        self._to, self._sink, self._rows, self._trainer = to, sink, rows, trainer
        self._mark = mark
        self._before: tuple[int, ScoreMark] | None = None
        """Position of the latest micro-batch, and what was written before it."""
        sink.rewind(mark)

    def write(self, events: HostEvents, scores: EventScores) -> None:
        self._before = events.begin, self._mark
        self._sink.write(self._rows.of(events, scores))
        num_rows = self._mark.num_rows + len(events.eid)
        self._mark = ScoreMark(num_rows, self._sink.num_bytes, self._sink.crc32)

    def save(self, writer: Checkpoint) -> None:
        """Note how many rows are of learned events; they are on the disk when this returns."""
        self._sink.sync()
        noted = {"to": self._to, "columns": self._rows.columns, "mark": asdict(self._learned())}
        writer.note(_NOTE, noted)

    def report(self) -> Mapping[str, Mapping[str, Any]]:
        """Complete the file with the rows of all learned events, and no others."""
        self._mark = self._learned()
        self._sink.rewind(self._mark)
        self._sink.finish()
        return {"scores": {"to": self._to, "num_rows": self._mark.num_rows}}

    def close(self) -> None:
        self._sink.close()

    def _learned(self) -> ScoreMark:
        """Return how much was written of micro-batches that were learned."""
        if self._before is not None and self._trainer.position <= self._before[0]:
            return self._before[1]
        return self._mark


def check_scores(to: str | None) -> None:
    """Refuse a place that scores cannot go to, before anything is made."""
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
    directory: RunDirectory, ingest: Ingest, trainer: StreamTrainer, checkpoint: Checkpoint | None
) -> SavedScores | None:
    """Return the scores of a run at its checkpoint; None if none are written.

    Raises ScoresLost if the rows that the checkpoint counts are gone, ConfigError if they have
    other columns, and FileExistsError if the file has rows that the checkpoint does not count, or
    was left complete when the run continued with another file.
    """
    to = directory.config.scores.to
    if not isinstance(trainer, ContinualTrainer) or trainer.scorer is None or to is None:
        return None
    rows = ScoreRows(ingest, directory.config, has_labels=trainer.scorer.says_labels)
    is_file = scheme_of(to) is None
    to = str(Path(to).absolute()) if is_file else to
    noted_to, counted, columns = _noted(checkpoint)
    owner = _owner(directory).get("to", noted_to)
    if owner is not None and owner == noted_to != to and scheme_of(owner) is None:
        # the file that the rows went to before gets all rows that the checkpoint counts
        before = _file(Path(owner), directory)
        try:
            with suppress(ScoresLost):  # a user who names another file may have removed this one
                before.rewind(counted)
                before.finish()
        finally:
            before.close()
    mark = counted if noted_to == to else None
    if mark is not None and mark.num_rows and columns not in (None, rows.columns):
        raise ConfigError(
            f"--scores: the rows in {to} have the columns {', '.join(columns or ())}, and "
            f"those to come {', '.join(rows.columns)}: name another file"
        )
    if is_file and mark is not None and owner != to:
        raise FileExistsError(
            f"{to} was left complete when the run was to go on with {owner}; name that one, or a "
            "third: --scores"
        )
    if is_file and mark is None:
        _claim(directory, Path(to), trainer.position)
    sink = _file(Path(to), directory) if is_file else _topic(to, directory.config)
    saved = SavedScores(to, sink, rows, trainer, mark or ScoreMark())
    trainer.scorer.hear = saved.write
    return saved


def _noted(checkpoint: Checkpoint | None) -> tuple[str | None, ScoreMark, list[str] | None]:
    """Return the place, number and columns of the rows that a checkpoint counts."""
    if checkpoint is None or _NOTE not in checkpoint.meta:
        return None, ScoreMark(), None
    noted = read_as(dict[str, Any], checkpoint.meta[_NOTE], _NOTE)
    mark = read_as(dict[str, int | None], noted.get("mark"), f"{_NOTE}.mark")
    num_rows, num_bytes = (read_natural(mark, key) for key in ("num_rows", "num_bytes"))
    return (
        read_as(str, noted.get("to"), f"{_NOTE}.to"),
        ScoreMark(num_rows, num_bytes, mark.get("crc32")),
        read_as(list[str] | None, noted.get("columns"), f"{_NOTE}.columns"),
    )


def _claim(directory: RunDirectory, path: Path, position: int) -> None:
    """Note that a file begins with the scores of this run from `position` on."""
    owner = _owner(directory)
    is_own = owner.get("to") == str(path) and position <= owner["from"]
    if path.exists() and not is_own:
        raise FileExistsError(
            f"{path} is there already, with other rows than this run is going to write; remove it, "
            "or name another file: --scores"
        )
    directory.files.write_json(OWNER, {"to": str(path), "from": position})


def _owner(directory: RunDirectory) -> dict[str, Any]:
    """Return the file that the rows in the directory are of, and its first position, if known."""
    with suppress(DamagedJson):
        return directory.files.read_json(OWNER) or {}
    return {}


def _file(path: Path, directory: RunDirectory) -> TextScores:
    kind = format_of(path)
    assert kind is not None
    return (
        ParquetScores(path, directory.path / ROWS) if kind == "parquet" else TextScores(path, kind)
    )


def _topic(to: str, config: Config) -> TopicScores:
    transport = find_transport(to)
    assert transport is not None
    assert transport.topic is not None
    return TopicScores(transport.topic(to, section_of(config, to).options))
