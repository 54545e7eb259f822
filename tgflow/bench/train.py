"""How fast TGN and TGAT train, beside the other libraries that are installed, in the same run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch

from tgflow import _core
from tgflow.bench import peers
from tgflow.bench.options import Options
from tgflow.bench.own import Own, own_tgat, own_tgn
from tgflow.bench.peers import Peer
from tgflow.bench.race import Entrant, Laps, Task, race
from tgflow.bench.row import Params, Row, skipped
from tgflow.events import EventBatch

X_DIM = 172
"""Width of the published features, which are not redistributed with the stream."""
TRAIN_SHARE = 0.85
TURN = 25
"""Batches that a contender trains when it is its turn."""
CURVE_POINTS = 5
QUICK_EVENTS = 10_000
THREADS = 2
OWN = "tgflow"

TGN_TIMES_FASTER = 3.0
TGAT_EVENTS_PER_SECOND = 6000.0
TORCH_SHARE = 0.85


def run(options: Options) -> list[Row]:
    """Train TGN and TGAT once over the stream, tgflow and its peers turn by turn.

    The figures are medians of turns; `quick` trains on the stream's first 10,000 events only.
    """
    name, events = options.wikipedia()
    task = task_of(events[: options.events or (QUICK_EVENTS if options.quick else None)])
    before = torch.get_num_threads(), _core.num_threads()
    torch.set_num_threads(THREADS)
    _core.set_num_threads(THREADS)
    try:
        params: Params = {
            "stream": name,
            "events": len(task.events),
            "threads": THREADS,
        }
        return [*tgn_rows(task, params), *tgat_rows(task, params)]
    finally:
        torch.set_num_threads(before[0])
        _core.set_num_threads(before[1])


def task_of(events: EventBatch) -> Task:
    """Return the task on a stream, with standard normal edge features."""
    src = torch.unique(events.src, return_inverse=True)[1]
    dst = torch.unique(events.dst, return_inverse=True)[1] + int(src.max()) + 1
    x = torch.randn(len(events), X_DIM, generator=torch.Generator().manual_seed(0))
    return Task(EventBatch(src, dst, events.t, x), int(TRAIN_SHARE * len(events)))


def tgn_rows(task: Task, params: Params) -> list[Row]:
    """TGN against all peers, batch by batch on the same events: speed, losses, held-out AP."""
    own = own_tgn(task)
    entries, absent = _entries(own, peers.TGN, task, turn=TURN)
    laps = race(entries, task, held_out=True, on_turn=_progress("tgn"))
    rows = _speed_rows("TGN training", laps, absent, params)
    others = [lap.median for name, lap in laps.items() if name != OWN]
    if others:
        times = laps[OWN].median / max(others)
        rows.append(
            Row("TGN training, times the faster peer", times, "x", params, TGN_TIMES_FASTER)
        )
    rows.append(share_row(task, params))
    for name, lap in laps.items():
        for point, loss in enumerate(lap.curve(CURVE_POINTS), 1):
            stretch = f"{point}/{CURVE_POINTS}"
            rows.append(Row("TGN loss", loss, "nats", params | {"library": name, "part": stretch}))
        rows.append(Row("TGN held-out AP", lap.held_out_ap, "", params | {"library": name}))
    return rows


def share_row(task: Task, params: Params) -> Row:
    """Return the share of a step in torch's forward, backward and optimizer, on one thread of ours.

    With nothing prepared ahead, so that all that a step takes is counted.
    """
    own = own_tgn(task, num_threads=0)
    own.train(TURN)
    own.seconds = own.torch_seconds = 0.0
    own.train(2 * TURN)
    share = own.torch_seconds / max(own.seconds, 1e-9)
    return Row("TGN training step, share in torch", share, "", params, TORCH_SHARE)


def tgat_rows(task: Task, params: Params) -> list[Row]:
    """TGAT over the whole stream; a peer trains one batch a turn, as it is far slower."""
    entries, absent = _entries(own_tgat(task), peers.TGAT, task, turn=1)
    laps = race(entries, task, on_turn=_progress("tgat"))
    return _speed_rows("TGAT training", laps, absent, params, TGAT_EVENTS_PER_SECOND)


def _entries(
    own: Own, others: Sequence[Peer], task: Task, turn: int
) -> tuple[dict[str, Entrant], dict[str, str]]:
    """Return who takes part, with `turn` batches a turn for the peers, and why others do not."""
    entries, absent = {OWN: Entrant(own, TURN)}, {}
    for peer in others:
        loaded = peers.load(peer, task)
        if isinstance(loaded, str):
            absent[peer.library] = loaded
        else:
            entries[peer.library] = Entrant(loaded, turn)
    return entries, absent


def _speed_rows(
    name: str,
    laps: dict[str, Laps],
    absent: dict[str, str],
    params: Params,
    target: float | None = None,
) -> list[Row]:
    rows = [
        Row(
            name,
            lap.median,
            "events/s",
            params | {"library": library},
            target if library == OWN else None,
        )
        for library, lap in laps.items()
    ]
    return rows + [
        skipped(name, "events/s", {"library": library}, reason)
        for library, reason in absent.items()
    ]


def _progress(model: str) -> Callable[[str, Laps], None]:
    """Tell of every turn on stderr, where it is a terminal."""

    def tell(library: str, laps: Laps) -> None:
        if sys.stderr.isatty():
            loss = sum(laps.losses[-TURN:]) / max(len(laps.losses[-TURN:]), 1)
            batch = len(laps.losses)
            print(f"{model} {library}: batch {batch}, loss {loss:.4f}", file=sys.stderr)

    return tell
