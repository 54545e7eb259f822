"""stream.json: what became of the rows of a run's stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tgflow.runtime.checked_json import DamagedJson
from tgflow.runtime.files import RunFiles
from tgflow.streams.ingest.ingest import Ingest
from tgflow.train.stream_trainer import StreamTrainer

FILE = "stream.json"


class StreamReport:
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

    def write(self) -> dict[str, Any]:
        """Write and return the report.

        A run that resumes with nothing left to learn polls nothing: its earlier report holds.

        Raises:
            OSError: If it cannot be written.
        """
        report = self._ingest.report()
        if not self._ingest.has_polled and (before := self._before()):
            return before
        learned = self._trainer.position
        report |= {"num_learned": learned, "num_waiting": max(0, report["num_released"] - learned)}
        self._files.write_json(FILE, report)
        return report

    def _before(self) -> dict[str, Any] | None:
        try:
            return self._files.read_json(FILE)
        except DamagedJson as error:
            self._warn(f"{FILE} is damaged, so rows before are not counted: {error}")
            return None
