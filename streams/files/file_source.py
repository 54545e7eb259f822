"""Files as a source that can be trusted: positions to resume at, and every bad row reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from threading import Event

from tgflow.ids import NodeIds
from tgflow.streams.files.reader import Reader
from tgflow.streams.prefetch import Ended, Prefetcher
from tgflow.streams.rows.row_batch import PolledRows, Position, RowBatch

PARTITION = 0
DEPTH = 2


class FileSource:
    """Files one after another, or a table: one partition, that of number 0.

    A `PartitionedSource`. Files are read in a thread of their own, at most three blocks ahead.
    A position names the file and the byte (or row) in it, with an anchor: the file's size and the
    digest of what stood before. A file to which lines were appended, and files of a folder that
    sort after the last one, resume too.

    Args:
        name: What messages and reports call it.
        reader: What reads the files.
        ids: The map that node ids go through; a new one where the order of events is its own.
    """

    def __init__(self, name: str, reader: Reader, ids: NodeIds) -> None:
        self.name = name
        self.unit = reader.time.tick
        self.time_unit = reader.time.unit
        """What numbers in the files count."""
        self.notes: Sequence[str] = reader.notes
        """What the first rows have shown that nobody said, in sentences."""
        self.x_dim = sum(reader.widths)
        self.id_kind = reader.id_kind
        self.ids = ids
        self.num_events = reader.num_events
        self._reader = reader
        self._ahead: Prefetcher[tuple[RowBatch, float]] | None = None
        self._progress = 0.0
        self._stop = Event()
        self._has_ended = False

    def start(self, positions: Mapping[int, Position]) -> None:
        """Start, or resume, at `positions[0]`; without it the files are read from the beginning.

        Raises:
            SourceExpired: If the file of the position is gone.
            SourceTruncated: If it ends before the position, or is shorter than it was.
            SourceMismatch: If it is not the file that was read up to the position.
            SourceCorrupt: If it is damaged.
        """
        self.close()
        self._stop = Event()
        rows = self._reader.read(positions.get(PARTITION), self._stop)
        self._progress, self._has_ended = 0.0, False
        self._ahead = Prefetcher(rows, DEPTH)

    def partitions(self) -> Sequence[int]:
        """Return partition 0."""
        return [PARTITION]

    def look_for_partitions(self) -> Sequence[int]:
        """Return none: there is only the one."""
        return []

    def poll(self, wanted: Set[int], timeout: float) -> list[PolledRows]:
        """Return the next block of rows, waiting for it up to `timeout` seconds.

        Raises:
            StreamError: If a file cannot be read on; the rows before that have come then.
        """
        if PARTITION not in wanted or self._has_ended or self._ahead is None:
            return []
        try:
            read = self._ahead.take(timeout)
        except Ended:
            self._has_ended, self._progress = True, 1.0
            return []
        if read is None:
            return []
        rows, self._progress = read
        return [PolledRows(PARTITION, rows)]

    def ended(self) -> Set[int]:
        """Return partition 0 once all files have been read to their ends."""
        return {PARTITION} if self._has_ended else set()

    def lag(self) -> Mapping[int, int]:
        """Return nothing: how many rows are left is not known."""
        return {}

    def progress(self) -> float:
        """Return which share of the files' bytes has been polled, 0 to 1."""
        return self._progress

    def counters(self) -> Mapping[str, float]:
        """Return nothing."""
        return {}

    def committed(self, positions: Mapping[int, Position]) -> None:
        """Do nothing: nobody else keeps positions of files."""

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
