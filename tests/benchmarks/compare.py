"""What a comparison takes beside what its models compute, and beside a run of each alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial

import torch

from tgflow import _core
from tgflow.bench.options import Options
from tgflow.bench.row import Params, Row
from tgflow.bench.turns import restored_threads, seconds_of
from tgflow.compare.comparison import Comparison
from tgflow.compare.lineup import Entrant
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel
from tgflow.models import MODELS
from tgflow.train.continual import ContinualTrainer

LINEUPS: Mapping[str, Sequence[str]] = {
    "edgebank-tw, poptrack, recency, counts": ("edgebank-tw", "poptrack", "recency", "counts"),
    "recency, jodie, tgn, tgn+pairs": ("recency", "jodie", "tgn", "tgn+pairs"),
}
EVENTS, QUICK_EVENTS = 20_000, 1_000
OF_THEIRS = 1.15
"""How many times as long as its models compute a comparison may take."""
PAIRS = "+pairs"


def run(options: Options) -> list[Row]:
    """Compare the models of each line-up over the beginning of the stream; medians of rounds."""
    name, events = options.wikipedia()
    events = events[: options.events or (QUICK_EVENTS if options.quick else EVENTS)]
    rows: list[Row] = []
    with restored_threads():
        torch.set_num_threads(1)
        _core.set_num_threads(1)
        for models, names in LINEUPS.items():
            options.say(f"compare: {models}")
            rounds = [measured(names, events) for _ in range(options.rounds)]
            params: Params = {"stream": name, "events": len(events), "models": models}
            of_theirs, of_runs = (statistics.median(each) for each in zip(*rounds, strict=True))
            rows += rows_of(of_theirs, of_runs, params)
    return rows


def rows_of(of_theirs: float, of_runs: float, params: Params) -> list[Row]:
    """Return the rows of a line-up."""
    return [
        Row("compare, of what its models compute", of_theirs, "of theirs", params, OF_THEIRS),
        Row("compare, of runs one by one", of_runs, "of theirs", params, 1.0),
    ]


def measured(names: Sequence[str], events: EventBatch) -> tuple[float, float]:
    """Return what a comparison takes: of its models' compute and store, and of runs of them."""
    comparison = Comparison([Entrant(name, 0, made(name)) for name in names], graph())
    seconds = seconds_of(partial(comparison.run, [events]))
    each = [found["microseconds"] for found in comparison.result()["participants"].values()]
    theirs = sum(own["compute"] + own["commit"] for own in each) * len(events) / 1e6
    alone = sum(
        seconds_of(partial(ContinualTrainer(made(name), graph()).run, [events])) for name in names
    )
    return seconds / theirs, seconds / alone


def graph() -> TemporalGraph:
    """Return an empty graph."""
    return TemporalGraph("undirected")


def made(name: str) -> TemporalModel:
    """Return a model by its name, with its own settings."""
    entry = MODELS[name.removesuffix(PAIRS)]
    changes = {"pair_features": True} if name.endswith(PAIRS) else {}
    torch.manual_seed(0)
    model: TemporalModel = entry.model(entry.config(**changes))
    return model
