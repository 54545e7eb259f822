"""How fast JODIE, TGN with pairs, GraphMixer, TPNet and DyGFormer train, beside TGN or TGM's.

`make bench ARGS="train-models --data wikipedia.csv.gz --events 20000"`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks import peers
from benchmarks.own_models import (
    own_dygformer,
    own_graphmixer,
    own_jodie,
    own_tgn_with_pairs,
    own_tpnet,
)
from benchmarks.peers import Peer
from benchmarks.race import Laps, race
from benchmarks.train import OWN, contenders, speed_rows
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options, restored_threads
from tgflow.bench.train import TURN, Own, Task, named_task, own_tgn, set_threads

JODIE_TIMES_TGN = 2.0
WITH_PAIRS_TIMES_TGN = 1 / 1.1
"""A step of TGN with the history of pairs may take a tenth longer."""
GRAPHMIXER_TIMES_FASTER = 5.0
PAIRS_TIMES_FASTER = 3.0
TGN_PASSES = 4
"""Over the events beside our own TGN, which both are fast at: so there are many turns."""
PAIRS_TURN = 3
"""Batches of a model of pairs that tgflow trains when it is its turn."""


def run(options: Options) -> list[Row]:
    """Train each model once over the stream, tgflow and its peers turn by turn.

    The figures are medians of turns; `quick` trains on the stream's first 10,000 events only.
    """
    task, params = named_task(options)
    rows: list[Row] = []
    with restored_threads():
        set_threads()
        for of_model in (jodie_rows, tgn_with_pairs_rows, graphmixer_rows, rows_without_features):
            rows += of_model(task, params, options)
    return rows


def jodie_rows(task: Task, params: Params, options: Options) -> list[Row]:
    """JODIE in turns with TGN, which also samples neighbors and attends to them."""
    return rows_beside_tgn("JODIE", own_jodie(task), JODIE_TIMES_TGN, params, options)


def tgn_with_pairs_rows(task: Task, params: Params, options: Options) -> list[Row]:
    """TGN that reads the exact history of pairs, in turns with one that does not."""
    own = own_tgn_with_pairs(task)
    return rows_beside_tgn("TGN+pairs", own, WITH_PAIRS_TIMES_TGN, params, options)


def rows_beside_tgn(
    name: str, own: Own, times_tgn: float, params: Params, options: Options
) -> list[Row]:
    """A model of ours in turns with TGN: its speed, and how many times TGN's that is."""
    task = own.task
    beside = {name: own, "TGN": own_tgn(task)}
    laps = {each: Laps(model, TURN, task.batch_size) for each, model in beside.items()}
    for _ in range(TGN_PASSES):
        race(laps, task.num_batches, options)
        for model in beside.values():
            model.rewind()
    speed = laps[name].median
    return [
        Row(f"{name} training", speed, "events/s", params | {"library": OWN}),
        Row(f"{name} training, times TGN", speed / laps["TGN"].median, "x", params, times_tgn),
    ]


def graphmixer_rows(task: Task, params: Params, options: Options) -> list[Row]:
    """GraphMixer over the whole stream; a peer trains one batch a turn."""
    against = Rivals("GraphMixer training", own_graphmixer, peers.GRAPHMIXER)
    return peer_rows(against, task, params, options)


def rows_without_features(task: Task, params: Params, options: Options) -> list[Row]:
    """GraphMixer, TPNet and DyGFormer on events without features, with their papers' neighbors."""
    rows: list[Row] = []
    for rivals, neighbors in (
        (Rivals("GraphMixer training", own_graphmixer, peers.GRAPHMIXER), 20),
        (Rivals("TPNet training", own_tpnet, peers.TPNET, PAIRS_TIMES_FASTER, PAIRS_TURN), 20),
        (
            Rivals(
                "DyGFormer training",
                own_dygformer,
                peers.DYGFORMER,
                PAIRS_TIMES_FASTER,
                PAIRS_TURN,
            ),
            31,
        ),
    ):
        plain = replace(task, events=replace(task.events, x=None), neighbors=neighbors)
        named = params | {"features": 0, "neighbors": neighbors}
        rows += peer_rows(rivals, plain, named, options)
    return rows


class Rivals(NamedTuple):
    """A model of ours and those of others."""

    name: str
    """Of the rows."""
    own: Callable[[Task], Own]
    others: Sequence[Peer]
    times_faster: float = GRAPHMIXER_TIMES_FASTER
    turn: int = TURN
    """Batches of ours a turn; a peer trains one."""


def peer_rows(rivals: Rivals, task: Task, params: Params, options: Options) -> list[Row]:
    """Race a model against those of others."""
    laps, absent = contenders(rivals.own(task), rivals.others, turn=1, own_turn=rivals.turn)
    race(laps, task.num_batches, options)
    rows = speed_rows(rivals.name, laps, absent, params)
    others = [each.median for name, each in laps.items() if name != OWN]
    if others:
        times = laps[OWN].median / max(others)
        rows.append(Row(f"{rivals.name}, times the peer", times, "x", params, rivals.times_faster))
    return rows
