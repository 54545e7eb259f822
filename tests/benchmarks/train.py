"""Training speed of TGN and TGAT, beside the other libraries that are installed, in turns."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch

from benchmarks import peers
from benchmarks.own import Own, Task, named_task, own_tgat, own_tgn
from benchmarks.peers import Peer
from benchmarks.race import Laps, race
from benchmarks.results import skipped
from benchmarks.train_device import device_rows
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options, restored_threads
from tgflow.bench.train import TURN, set_threads

OWN = "tgflow"
TGN_TIMES_FASTER, TORCH_SHARE_TARGET, TGAT_TARGET = 3.0, 0.85, 6000.0
CURVE_POINTS = 5


def run(options: Options) -> list[Row]:
    """Train the models once over the stream, tgflow and its peers turn by turn.

    The figures are medians of turns; `quick` trains on the stream's first 10,000 events only.
    """
    task, params = named_task(options)
    with restored_threads():
        set_threads()
        rows: list[Row] = []
        device = options.devices[-1]
        if device != "cpu":
            rows += device_rows(task, params, device, options)
        if options.only_device:
            return rows
        return rows + tgn_rows(task, params, options) + tgat_rows(task, params, options)


def tgn_rows(task: Task, params: Params, options: Options) -> list[Row]:
    """TGN against all peers, batch by batch on the same events: speed, losses, held-out AP."""
    laps, absent = contenders(own_tgn(task), peers.TGN, TURN)
    race(laps, task.num_batches, options)
    for each in laps.values():
        each.evaluate()
    rows = speed_rows("TGN training", laps, absent, params)
    rows += times_rows("TGN training, times the faster peer", laps, params, TGN_TIMES_FASTER)
    rows.append(share_row(task, params))
    for library, each in laps.items():
        rows += quality_rows(each, params | {"library": library})
    return rows


def share_row(task: Task, params: Params) -> Row:
    """Return the share of a step in torch's forward, backward and optimizer, without prefetch."""
    own = own_tgn(task, num_threads=0)
    own.train(TURN)
    begin, computed = time.perf_counter(), own.learner.compute_seconds
    own.train(2 * TURN)
    elapsed = time.perf_counter() - begin
    share = (own.learner.compute_seconds - computed) / elapsed
    return Row("TGN training step, share in torch", share, "", params, TORCH_SHARE_TARGET)


def quality_rows(laps: Laps, params: Params) -> Iterator[Row]:
    """Return mean losses by fifths of the batches, and the average precision of held-out events."""
    parts = torch.tensor(laps.losses, dtype=torch.float64).tensor_split(CURVE_POINTS)
    for point, part in enumerate(parts, 1):
        named = params | {"part": f"{point}/{CURVE_POINTS}"}
        yield Row("TGN loss", float(part.mean()), "nats", named)
    yield Row("TGN held-out AP", laps.held_out_ap, "", params)


def tgat_rows(task: Task, params: Params, options: Options) -> list[Row]:
    """TGAT over the whole stream; a peer trains one batch a turn, as it is far slower."""
    laps, absent = contenders(own_tgat(task), peers.TGAT, turn=1)
    race(laps, task.num_batches, options)
    return speed_rows("TGAT training", laps, absent, params, TGAT_TARGET)


def contenders(
    own: Own, others: Sequence[Peer], turn: int, own_turn: int = TURN
) -> tuple[dict[str, Laps], dict[str, str]]:
    """Return tgflow and its peers, with `turn` batches a turn for peers, and why others are not."""
    size = own.task.batch_size
    present, absent = peers.load_all(others, own.task)
    laps = {library: Laps(peer, turn, size) for library, peer in present.items()}
    return {OWN: Laps(own, own_turn, size), **laps}, absent


def speed_rows(
    name: str,
    laps: dict[str, Laps],
    absent: dict[str, str],
    params: Params,
    target: float | None = None,
) -> list[Row]:
    """Return a row per library, also of those that did not take part."""
    rows = []
    for library, each in laps.items():
        named = params | {"library": library}
        rows.append(Row(name, each.median, "events/s", named, target if library == OWN else None))
    return rows + [
        skipped(name, "events/s", {"library": library}, reason)
        for library, reason in absent.items()
    ]


def times_rows(name: str, laps: dict[str, Laps], params: Params, target: float) -> list[Row]:
    """Return the row of how many times faster than the fastest peer tgflow is, if there is one."""
    others = [each.median for library, each in laps.items() if library != OWN]
    return [Row(name, laps[OWN].median / max(others), "x", params, target)] if others else []
