"""What records and the result of an offline training say beside its metrics."""

from __future__ import annotations

from typing import Any

from tgflow.graph import TemporalGraph
from tgflow.train.config import OfflineConfig
from tgflow.train.observe import EpochRecord
from tgflow.train.offline_progress import OfflineProgress, PassTotals
from tgflow.train.protocols import offline_line


def protocol_figures(
    config: OfflineConfig, graph: TemporalGraph, select: str | None
) -> dict[str, Any]:
    """Return what figures of a training are to be compared by; `select` as `offline_line`."""
    tied = graph.log.tied_share(graph.num_events)
    is_published = (config.val_ratio, config.test_ratio) == (0.15, 0.15)
    return {
        "protocol": config.protocol or ("offline 70/15/15" if is_published else "offline"),
        "protocol_line": offline_line(config, tied, select),
        "tied_share": tied,
        "visibility": config.visibility,
        "negatives": "fixed" if config.fixed_negatives else config.negatives[0],
        "seed": config.seed,
    }


def epoch_record(
    epoch: int, loss: float, val: dict[str, float], took: PassTotals, *, is_best: bool
) -> EpochRecord:
    """Return the record of an epoch, whose training pass took this."""
    return EpochRecord(
        epoch=epoch,
        loss=loss,
        val=val,
        is_best=is_best,
        seconds=took.seconds,
        events_per_second=took.events / took.seconds,
        overhead_share=1 - took.compute_seconds / took.seconds,
    )


def pass_figures(progress: OfflineProgress) -> dict[str, Any]:
    """Return what the passes over the training part took."""
    totals, best = progress.totals, progress.best
    assert best is not None
    figures = {
        "best_epoch": best.epoch,
        "num_epochs": totals.epochs,
        "epoch_seconds": totals.seconds / totals.epochs,
        "events_per_second": totals.events / totals.seconds,
        "overhead_share": 1 - totals.compute_seconds / totals.seconds,
    }
    if totals.preparation_seconds:
        figures["preparation_share"] = totals.preparation_seconds / totals.seconds
    return figures
