"""The rows of scores of a run: written before events are learned, cut back when it resumes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tgflow.batch import HostEvents
from tgflow.checkpoint import Checkpoint
from tgflow.checkpoint.parts import SectionWriter
from tgflow.checkpoint.typed import read_as, read_natural
from tgflow.config import Config, ConfigError
from tgflow.runtime.checked_json import DamagedJson
from tgflow.runtime.directory import RunDirectory
from tgflow.runtime.score_rows import ScoreRows
from tgflow.runtime.score_sinks import (
    OWNER,
    ROWS,
    ParquetScores,
    ScoreMark,
    ScoreSink,
    ScoresLost,
    TextScores,
    TopicScores,
)
from tgflow.runtime.transports import section_of
from tgflow.streams.files.blocks import COMPRESSION
from tgflow.streams.files.formats import format_of
from tgflow.streams.transports import find_transport, scheme_of
from tgflow.train.event_scores import EventScores
from tgflow.train.stream_trainer import StreamTrainer

_WRITTEN = ("csv", "tsv", "jsonl", "parquet")


class SavedScores:
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

    def after_step(self) -> None:
        """Do nothing."""

    def changed(self) -> bool:
        """Return False: what has no micro-batch has no rows."""
        return False

    def save(self, writer: SectionWriter) -> None:
        """Note how much there is of what was learned; it is safe when this returns."""
        self._sink.sync()
        noted = {"to": self._to, "columns": self._rows.columns, "mark": asdict(self._learned())}
        writer.note(self.name, noted)

    def saved(self) -> None:
        """Do nothing."""

    def finish(self) -> dict[str, Any]:
        """Have readers find the rows of all that was learned, and of nothing else; say where."""
        self._mark = self._learned()
        self._sink.rewind(self._mark)
        self._sink.finish()
        return {"to": self._to, "num_rows": self._mark.num_rows}

    def close(self) -> None:
        """Give back what is held."""
        self._sink.close()

    def _learned(self) -> ScoreMark:
        """Return how much was written of micro-batches that were learned, too."""
        if self._before is not None and self._trainer.position <= self._before[0]:
            return self._before[1]
        return self._mark


def check_scores(config: Config) -> None:
    """Refuse a place that scores cannot go to, before anything is made.

    Raises:
        ConfigError: If it is one.
    """
    to = config.scores.to
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
    sink = _file(Path(to), directory.path / ROWS) if is_file else _topic(directory.config, to)
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


def _topic(config: Config, to: str) -> ScoreSink:
    transport = find_transport(to)
    assert transport is not None
    assert transport.topic is not None
    return TopicScores(transport.topic(to, section_of(config, to).options))
