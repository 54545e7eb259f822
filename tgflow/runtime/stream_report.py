"""stream.json: what became of the rows of a run's stream."""

from __future__ import annotations

from typing import Any

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
    """

    def __init__(self, ingest: Ingest, trainer: StreamTrainer, files: RunFiles) -> None:
        self._ingest, self._trainer, self._files = ingest, trainer, files

    def write(self) -> dict[str, Any]:
        """Write and return the report.

        A run that resumes with nothing left to learn polls nothing: its earlier report holds.

        Raises:
            OSError: If it cannot be written.
        """
        report = self._ingest.report()
        if not self._ingest.has_polled and (before := self._files.read_json(FILE)):
            return before
        learned = self._trainer.position
        report |= {"num_learned": learned, "num_waiting": max(0, report["num_released"] - learned)}
        self._files.write_json(FILE, report)
        return report
