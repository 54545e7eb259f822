"""Models on a task that users do not measure, with the widths and neighbors that the task has."""

from __future__ import annotations

from tgflow.bench.train import Own, Task, model_of, tgn_of
from tgflow.models import JODIE, DyGFormer, GraphMixer, TPNet


def own_tgn_with_pairs(task: Task, num_threads: int = 1) -> Own:
    """Return tgflow's TGN on a task, with the exact history of each pair."""
    return Own(task, tgn_of(task, pair_features=True), num_threads)


def own_jodie(task: Task, num_threads: int = 1) -> Own:
    """Return tgflow's JODIE with the task's widths."""
    return Own(task, model_of(task, JODIE, memory_dim=task.dim), num_threads)


def own_graphmixer(task: Task, num_threads: int = 1) -> Own:
    """Return tgflow's GraphMixer with the task's widths and neighbors."""
    model = model_of(task, GraphMixer, embedding_dim=task.dim, neighbors=task.neighbors)
    return Own(task, model, num_threads)


def own_dygformer(task: Task, num_threads: int = 1) -> Own:
    """Return tgflow's DyGFormer with the task's widths; a sequence has the node and neighbors."""
    model = model_of(task, DyGFormer, embedding_dim=task.dim, length=1 + task.neighbors)
    return Own(task, model, num_threads)


def own_tpnet(task: Task, num_threads: int = 1) -> Own:
    """Return tgflow's TPNet with the task's widths and neighbors."""
    model = model_of(task, TPNet, embedding_dim=task.dim, neighbors=task.neighbors)
    return Own(task, model, num_threads)
