"""Micro-batches that end where the time changes: none has events of two time steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from tgflow.events import MICRO_BATCH_END, EventBatch


class SteppedStream:
    """A stream that ends micro-batches with its time steps.

    A step of more events than a micro-batch takes is several, of which only the last may not be
    full. Where steps end is a function of the events alone, so a run that resumes repeats it.

    Args:
        stream: Batches of any size, in order of time.
    """

    def __init__(self, stream: Iterable[EventBatch]) -> None:
        self.unit = getattr(stream, "unit", None)
        """What a tick is, if the stream says so."""
        self._stream = stream

    def __iter__(self) -> Iterator[EventBatch]:
        """Yield the stream's events, and `MICRO_BATCH_END` between those of two times.

        A step has ended when the first event of the next one comes.
        """
        last: int | None = None
        for events in self._stream:
            if not len(events):
                yield events
                continue
            if last is not None and int(events.t[0]) != last:
                yield MICRO_BATCH_END
            last = int(events.t[-1])
            changes = (events.t[1:] != events.t[:-1]).nonzero().flatten() + 1
            for begin, end in pairwise([0, *changes.tolist(), len(events)]):
                if begin:
                    yield MICRO_BATCH_END
                yield events[begin:end]
