"""Training speed of the other models against TGM's implementations.

`make bench ARGS="train-models --data wikipedia.csv.gz --events 20000"`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks import peers
from benchmarks.own import Own, Task, model_of, named_task, tgn_of
from benchmarks.peers import Peer
from benchmarks.race import contenders, race, rows_beside, speed_rows
from tgflow.cli.benchmarks.row import Params, Row
from tgflow.cli.benchmarks.setup import Options, restored_threads
from tgflow.cli.benchmarks.train import TURN, set_threads
from tgflow.models import JODIE, DyGFormer, GraphMixer, TPNet
from tgflow.nn.groups import PAIR_GROUPS
from tgflow.nn.model import TemporalModel

GRAPHMIXER_TIMES_FASTER, PAIRS_TIMES_FASTER = 5.0, 3.0
PAIRS_TURN = 3
"""Batches of a turn of tgflow's TPNet and DyGFormer; a peer trains one."""


MODELS: dict[str, Callable[[Task], TemporalModel]] = {
    "TGN+pairs": lambda task: tgn_of(task, PAIR_GROUPS),
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

    tgflow trains at each visibility. The figures are medians of turns; `quick` trains on the
    stream's first 10,000 events only.
    """
    task, params = named_task(options)
    with restored_threads():
        set_threads()
        return rows_of(task, params, options)


def rows_of(task: Task, params: Params, options: Options) -> list[Row]:
    """Return the rows of all models; models of pairs train on events without features."""
    rows: list[Row] = []
    for name in ("JODIE", "TGN+pairs"):
        rows += rows_beside_peers(task, params, options, name, (), 0.0, TURN)
    graphmixer = "GraphMixer", peers.GRAPHMIXER, GRAPHMIXER_TIMES_FASTER, TURN
    rows += rows_beside_peers(task, params, options, *graphmixer)
    tpnet = "TPNet", peers.TPNET, PAIRS_TIMES_FASTER, PAIRS_TURN
    dygformer = "DyGFormer", peers.DYGFORMER, PAIRS_TIMES_FASTER, PAIRS_TURN
    for rivals, neighbors in ((graphmixer, 20), (tpnet, 20), (dygformer, 31)):
        plain = replace(task, events=replace(task.events, x=None), neighbors=neighbors)
        named = params | {"features": 0, "neighbors": neighbors}
        rows += rows_beside_peers(plain, named, options, *rivals)
    return rows


def rows_beside_peers(
    task: Task,
    params: Params,
    options: Options,
    model: str,
    others: Sequence[Peer],
    times_faster: float,
    own_turn: int,
) -> list[Row]:
    """Return the speeds of a tgflow model and of its peers, which train one batch a turn."""
    laps, absent = contenders(
        lambda task: Own(task, MODELS[model](task)), task, others, turn=1, own_turn=own_turn
    )
    race(laps, task.num_batches, options)
    name = f"{model} training"
    rows = speed_rows(name, laps, absent, params)
    targets = {peer.library: times_faster for peer in others}
    return rows + rows_beside(name, laps, params, targets)
