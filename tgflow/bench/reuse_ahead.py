"""What rows that threads compute ahead are worth to a training beside them, on the same cores.

NeutronOrch's layered orchestration has the CPU compute rows of the bottom layer while a GPU trains.
On one machine of a few cores both want the same ones: what that gives is measured here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tgflow.bench.reuse_training import BATCH, TURN, TimedTraining, contender_of, graph_of
from tgflow.bench.row import Params, Row
from tgflow.bench.train import THREADS
from tgflow.events import EventBatch
from tgflow.train.config import Reuse

AHEAD = Reuse(staleness=8, producer="cpu")


def ahead_rows(events: EventBatch, params: Params) -> Iterator[Row]:
    """Yield what a producer gives beside reuse without one, each with a thread that prepares.

    Rows are computed ahead by threads beside the training, always; or all by whoever trains.
    """
    graph = graph_of(events)
    inline = contender_of(graph, replace(AHEAD, producer="inline"), num_threads=1)
    ahead = {"threads": True, "the training": False}
    contenders = {by: contender_of(graph, AHEAD, 1) for by in ahead}
    for by, contender in contenders.items():
        assert contender.reuse is not None
        assert contender.reuse.producer is not None
        contender.reuse.producer.help = FixedHelp(ahead[by])
    for _ in range(len(inline.plan) // TURN):
        for contender in (inline, *contenders.values()):
            for _ in range(TURN):
                contender.step()
    baseline = BATCH / inline.seconds_of_turns
    for by, contender in contenders.items():
        yield ahead_row(contender, by, baseline, params)
    for contender in (inline, *contenders.values()):
        contender.close()


def ahead_row(contender: TimedTraining, by: str, baseline: float, params: Params) -> Row:
    """Return the speed of a training whose rows are computed ahead."""
    assert contender.reuse is not None
    stats, num_batches = contender.reuse.stats, len(contender.seconds)
    of: Params = {"staleness": contender.staleness, "threads": THREADS, "by": by}
    return Row(
        "reuse, computed ahead, beside inline",
        BATCH / contender.seconds_of_turns,
        "events/s",
        params
        | of
        | {"hot rows of a batch": round(stats.produced / num_batches)}
        | {"in time": round(1 - stats.late / max(stats.produced, 1), 3)},
        baseline=baseline,
    )


class FixedHelp:
    """Threads that always compute ahead, or never.

    Args:
        is_on: Which.
    """

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on

    def took(self, seconds: float) -> None:
        """Take no notice."""
