"""Training speed of the other models, beside TGN or beside TGM's implementation.

`make bench ARGS="train-models --data wikipedia.csv.gz --events 20000"`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks import peers
from benchmarks.own import Own, Task, model_of, named_task, own_tgn, tgn_of
from benchmarks.peers import Peer
from benchmarks.race import Laps, race
from benchmarks.train import OWN, contenders, speed_rows, times_rows
from tgflow.bench.row import Params, Row
from tgflow.bench.setup import Options, restored_threads
from tgflow.bench.train import TURN, set_threads
from tgflow.model import TemporalModel
from tgflow.models import JODIE, DyGFormer, GraphMixer, TPNet

JODIE_TIMES_TGN, WITH_PAIRS_TIMES_TGN = 2.0, 1 / 1.1
GRAPHMIXER_TIMES_FASTER, PAIRS_TIMES_FASTER = 5.0, 3.0
TGN_PASSES = 4
"""Passes over the events in turns with tgflow's TGN."""
PAIRS_TURN = 3
"""Batches of a turn of tgflow's TPNet and DyGFormer; a peer trains one."""


MODELS: dict[str, Callable[[Task], TemporalModel]] = {
    "TGN+pairs": lambda task: tgn_of(task, pair_features=True),
    "JODIE": lambda task: model_of(task, JODIE, memory_dim=task.dim),
    "GraphMixer": lambda task: model_of(
        task, GraphMixer, embedding_dim=task.dim, neighbors=task.neighbors
    ),
    "DyGFormer": lambda task: model_of(  # a sequence has the node and its neighbors
        task, DyGFormer, embedding_dim=task.dim, length=1 + task.neighbors
    ),
    "TPNet": lambda task: model_of(task, TPNet, embedding_dim=task.dim, neighbors=task.neighbors),
}
"""Models of tgflow with the widths and neighbors of a task."""


def run(options: Options) -> list[Row]:
    """Train each model once over the stream, tgflow and its peers turn by turn.

    The figures are medians of turns; `quick` trains on the stream's first 10,000 events only.
    """
    task, params = named_task(options)
    with restored_threads():
        set_threads()
        return rows_of(task, params, options)


def rows_of(task: Task, params: Params, options: Options) -> list[Row]:
    """Return the rows of all models; models of pairs train on events without features."""
    rows = rows_beside_tgn("JODIE", task, JODIE_TIMES_TGN, params, options)
    rows += rows_beside_tgn("TGN+pairs", task, WITH_PAIRS_TIMES_TGN, params, options)
    graphmixer = "GraphMixer", peers.GRAPHMIXER, GRAPHMIXER_TIMES_FASTER, TURN
    rows += rows_beside_peers(task, params, options, *graphmixer)
    tpnet = "TPNet", peers.TPNET, PAIRS_TIMES_FASTER, PAIRS_TURN
    dygformer = "DyGFormer", peers.DYGFORMER, PAIRS_TIMES_FASTER, PAIRS_TURN
    for rivals, neighbors in ((graphmixer, 20), (tpnet, 20), (dygformer, 31)):
        plain = replace(task, events=replace(task.events, x=None), neighbors=neighbors)
        named = params | {"features": 0, "neighbors": neighbors}
        rows += rows_beside_peers(plain, named, options, *rivals)
    return rows


def rows_beside_tgn(
    name: str, task: Task, times_tgn: float, params: Params, options: Options
) -> list[Row]:
    """Return the speed of a model in turns with TGN, and its ratio to TGN's."""
    beside = {name: Own(task, MODELS[name](task)), "TGN": own_tgn(task)}
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


def rows_beside_peers(
    task: Task,
    params: Params,
    options: Options,
    model: str,
    others: Sequence[Peer],
    times_faster: float,
    own_turn: int,
) -> list[Row]:
    """Return the speeds of a model of tgflow and of its peers, which train one batch a turn."""
    laps, absent = contenders(Own(task, MODELS[model](task)), others, turn=1, own_turn=own_turn)
    race(laps, task.num_batches, options)
    name = f"{model} training"
    rows = speed_rows(name, laps, absent, params)
    return rows + times_rows(f"{name}, times the peer", laps, params, times_faster)
