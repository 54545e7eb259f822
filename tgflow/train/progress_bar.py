"""Progress bar of training on a terminal or in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

from tgflow.base.choices import METRIC_TITLES
from tgflow.graph.event_stream import EventStream
from tgflow.train.observe import BatchRecord, Callback, EpochRecord, StepRecord

if TYPE_CHECKING:
    from rich.console import Console


class ProgressBar(Callback):
    """Context manager that shows training progress, with the loss of a model that learns."""

    def __init__(
        self,
        stream: EventStream | None = None,
        console: Console | None = None,
        metrics: Sequence[str] = (),
        *,
        learns: bool = True,
    ) -> None:
        from rich.progress import Progress, TextColumn

        columns = *Progress.get_default_columns(), TextColumn("{task.fields[figures]}")
        self._bar = Progress(*columns, console=console or _console())
        self._metrics, self._learns = metrics, learns
        self._stream = EventStream() if stream is None else stream
        self._has_share = self._stream.num_events is None and self._stream.progress is not None
        self._done = 0
        total = 1 if self._has_share else self._stream.num_events
        self._task = self._bar.add_task("reading", total=total, figures="")
        self._pass: tuple[int, str] | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def on_step(self, record: StepRecord) -> None:
        names = ("ap", *(["loss"] if self._learns else []), *self._metrics)
        shown = [f"{name} {x:.3f}" for name, x in record.running.items() if name in names]
        self._done += record.stop - record.start
        self._bar.update(
            self._task,
            completed=self._stream.progress if self._has_share else self._done,
            description=f"{record.stop:,} events",
            figures="  ".join([*shown, f"{record.events_per_second:,.0f} events/s"]),
        )

    def on_batch(self, record: BatchRecord) -> None:
        if self._pass != (record.epoch, record.stage):
            self._pass = record.epoch, record.stage
            text = f"epoch {record.epoch + 1} {record.stage}"
            self._bar.reset(self._task, total=record.num_batches, description=text)
        self._bar.update(self._task, advance=1)

    def on_epoch(self, record: EpochRecord) -> None:
        shown = [
            f"val {METRIC_TITLES.get(name, name)} {record.val.get(name, float('nan')):.3f}"
            for name in dict.fromkeys((*self._metrics, "ap"))
        ]
        loss = [f"loss {record.loss:.3f}"] if self._learns else []
        self._bar.update(self._task, figures="  ".join([*loss, *shown]))


def progress_bar(
    wanted: bool | None,
    stream: EventStream | None = None,
    metrics: Sequence[str] = (),
    *,
    learns: bool = True,
) -> AbstractContextManager[Callback]:
    """Return a progress bar to enter, or a callback that does nothing."""
    if wanted is None:
        console = _console()
        has_widgets = console.is_jupyter and find_spec("ipywidgets") is not None
        wanted = console.is_interactive or has_widgets
    return (
        ProgressBar(stream, metrics=metrics, learns=learns) if wanted else nullcontext(Callback())
    )


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True)
