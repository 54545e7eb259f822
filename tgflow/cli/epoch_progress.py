"""What `tgflow train` shows and logs while it goes from epoch to epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Self

from rich.console import Console

from tgflow.report.formatting import compact, duration, score
from tgflow.report.label_figures import label_score
from tgflow.runtime.files import RunFiles, read_records
from tgflow.runtime.loggers import RunLoggers
from tgflow.runtime.table_stats import HitRates
from tgflow.train.observe import BatchRecord, Callback, EpochRecord


class EpochProgress(Callback):
    """Says what training does: a line an epoch, and on a terminal the batch in between."""

    def __init__(self, console: Console, epochs: int, rundir: RunFiles, rates: HitRates) -> None:
        self._console, self._epochs, self._rundir = console, epochs, rundir
        self._status = console.status("reading") if console.is_terminal else None
        self.seed = 0
        self._rates = rates
        self.records = read_records(rundir.records).kept
        """Of all epochs, also of those before a resume."""
        self._logs = True
        self._loggers: RunLoggers | None = None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._status is not None:
            self._status.stop()

    @contextmanager
    def unlogged(self) -> Iterator[None]:
        """Enclose what is shown and leaves no record."""
        self._logs = False
        yield
        self._logs = True

    @contextmanager
    def logging_to(self, loggers: RunLoggers) -> Iterator[None]:
        """Enclose epochs that are logged there too."""
        self._loggers = loggers
        with closing(loggers):
            yield
        self._loggers = None

    def on_batch(self, record: BatchRecord) -> None:
        """Show where training is."""
        if self._status is not None:
            self._status.update(
                f"seed {self.seed}  epoch {record.epoch + 1}/{self._epochs}  {record.stage}"
                f"  batch {record.index + 1}/{record.num_batches}"
            )

    def on_epoch(self, record: EpochRecord) -> None:
        """Print a line and log a record."""
        if self._logs:
            self.records.append({"seed": self.seed, **record.to_json(), **self._rates.lately()})
            self._rundir.log(self.records[-1])
            if self._loggers is not None:
                self._loggers.log(record.epoch + 1, self.records[-1])
                self._loggers.flush()
        self._console.print(
            f"seed {self.seed}  epoch {record.epoch + 1:>3}/{self._epochs}"
            f"  loss {record.loss:.4f}  val AP {score(record.val['ap'])}{label_score(record.val)}"
            f"{' *' if record.is_best else '  '}  {duration(record.seconds)}"
            f"  {compact(record.events_per_second)} events/s",
            highlight=False,
        )
