"""Node property prediction: NDCG@10 of a head on embeddings and earlier properties."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from tgflow.base.metrics import ndcg_at_k
from tgflow.base.resampling import Interval, Resampling
from tgflow.graph import TemporalGraph
from tgflow.graph.ids import NodeIds
from tgflow.nn.linear import Linear
from tgflow.nn.model import TemporalModel, device_of_model
from tgflow.plan.loader import Loader
from tgflow.plan.negatives import NegativeSampler
from tgflow.train.config import OfflineConfig
from tgflow.train.inference import Inference
from tgflow.train.plans import make_plan
from tgflow.train.split import Split
from tgflow.train.tasks.baselines import WINDOW
from tgflow.train.tasks.node_labels import check_columns, found_nodes

COLUMNS = ("t", "node", "label", "weight")
TOP = 10
PATIENCE = 10
_SKIP = 20.0
"""Initial weight of the moving average in a logit: the head starts from its ranking."""


@dataclass(frozen=True, slots=True, eq=False)
class PropertyTime:
    """The properties that nodes have at one time."""

    t: int
    nodes: Tensor
    """int64 `[N]`: dense ids, each once."""
    row: Tensor
    """int64 `[R]`: node of each weight, as an index into `nodes`."""
    item: Tensor
    weight: Tensor
    """float32 `[R]`, at least 0."""

    def dense(self, num_items: int) -> Tensor:
        y = torch.zeros(len(self.nodes), num_items)
        return y.index_put_((self.row, self.item), self.weight, accumulate=True)


@dataclass(frozen=True, slots=True, eq=False)
class PropertyLabels:
    """The properties of all times, in order."""

    times: list[PropertyTime]
    num_items: int

    @classmethod
    def of(cls, table: pa.Table, ids: NodeIds, ticks_per_unit: int, path: str) -> PropertyLabels:
        check_columns(table, COLUMNS, path)
        for name in COLUMNS:
            if table[name].null_count:
                raise ValueError(f"{path}: {table[name].null_count} values of {name} are missing")
        nodes = found_nodes(ids, table["node"], path)
        t = torch.from_numpy(table["t"].to_numpy().astype(np.int64)) * ticks_per_unit
        weight = torch.from_numpy(table["weight"].to_numpy().astype(np.float32))
        if not bool((weight >= 0).all()):
            raise ValueError(f"{path}: weights must be at least 0, got {float(weight.min())}")
        codes = table["label"].combine_chunks().dictionary_encode()
        item = torch.from_numpy(codes.indices.to_numpy().astype(np.int64))
        known = nodes >= 0
        order = torch.sort(t[known], stable=True)
        rows = known.nonzero().flatten()[order.indices]
        sizes = torch.unique_consecutive(order.values, return_counts=True)[1].tolist()
        columns = (torch.split(each[rows], sizes) for each in (t, nodes, item, weight))
        times = []
        for own_t, own_nodes, own_item, own_weight in zip(*columns, strict=True):
            distinct, row = torch.unique(own_nodes, return_inverse=True)
            times.append(PropertyTime(int(own_t[0]), distinct, row, own_item, own_weight))
        return cls(times, len(codes.dictionary))


class PropertyHead(nn.Module):
    """W2 relu(W1 [z | last | average] + b1) + b2 + a last + b average, for a node at a time."""

    def __init__(self, dim: int, num_items: int) -> None:
        super().__init__()
        self.hidden = Linear(dim + 2 * num_items, dim)
        self.out = Linear(dim, num_items)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.skip = nn.Parameter(torch.tensor([0.0, 1.0]))

    def forward(self, z: Tensor, last: Tensor, average: Tensor) -> Tensor:
        hidden = self.hidden(torch.cat([z, last, average], dim=1)).relu()
        logits: Tensor = self.out(hidden)
        return logits + _SKIP * (self.skip[0] * last + self.skip[1] * average)


class Asked(NamedTuple):
    """Nodes with properties at one time, and their embeddings then."""

    of: PropertyTime
    z: Tensor
    """float `[N, dim]` on the host: from events before that time."""
    part: str


@torch.no_grad()
def asked_at_times(
    model: TemporalModel,
    graph: TemporalGraph,
    config: OfflineConfig,
    split: Split,
    labels: PropertyLabels,
) -> Iterator[Asked]:
    """Yield node embeddings at the times of their properties, in one pass over the log.

    A query at time T sees only events before T, in memory too: the state starts empty, and events
    are stored up to T, in batches that end there; it is restored afterwards. A time is of the
    test if it is not before the first test event; under `tgbn/1`, as in TGB, if there is no later
    event of validation, and it is left out if there is none at all.
    """
    engine, position = Inference(model, graph), 0
    t = graph.log.read(0, graph.num_events).t
    is_tgb = config.protocol == "tgbn/1"
    val_t, test_t = (int(t[each - is_tgb]) for each in (split.val_start, split.test_start))
    before = None if model.state is None else model.state.state_dict()
    if model.state is not None:
        model.state.reset()
    try:
        for each in labels.times:
            if is_tgb and each.t >= int(t[-1]):
                return
            stop = graph.log.position(each.t)
            if model.state is not None and stop > position:
                plan = make_plan(
                    graph, model, config, NegativeSampler(random=1),
                    seed=config.seed, start=position, stop=stop,
                )  # fmt: skip
                model.eval()
                for batch in Loader(plan, num_threads=0, device=device_of_model(model)):
                    model.commit(batch, model(batch))
                position = stop
            part = "train" if each.t < val_t else "val" if each.t < test_t else "test"
            yield Asked(each, engine.embed(each.nodes, each.t, as_of=stop).cpu(), part)
    finally:
        if model.state is not None and before is not None:
            model.state.load_state_dict(before)


def node_property_figures(
    asked: list[Asked], num_items: int, *, epochs: int = 50, learning_rate: float = 1e-3, seed: int
) -> dict[str, float]:
    """Train a head on the embeddings, and return its test metrics beside those of baselines.

    Soft-target cross-entropy; at T the labels of all nodes before T are visible, in each part.
    Validation chooses the epoch, the untrained head included.
    """
    for part in ("val", "test"):
        if not any(each.part == part for each in asked):
            raise ValueError(f"no property time falls into the {part} part of the events")
    nodes = torch.unique(torch.cat([each.of.nodes for each in asked]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = PropertyHead(asked[0].z.shape[1], num_items)
    optimizer = torch.optim.Adam(head.parameters(), lr=learning_rate)
    best: tuple[float, int, dict[str, Tensor]] | None = None
    for epoch in range(epochs + 1):
        found = _pass(head, optimizer if epoch else None, asked, nodes, num_items)
        ndcg = _mean(found["val"]["head"])
        if best is None or ndcg > best[0]:
            best = ndcg, epoch, copy.deepcopy(head.state_dict())
        elif epoch - best[1] >= PATIENCE:
            break
    assert best is not None
    head.load_state_dict(best[2])
    test = _pass(head, None, asked, nodes, num_items)["test"]
    ndcgs, mean = np.array([test["head"]]), _mean(test["head"])
    interval = Interval.of(mean, Resampling(ndcgs.shape[1], 1, seed=seed).means(ndcgs))
    return {
        "property.ndcg": mean,
        "property.val_ndcg": best[0],
        "property.num_parameters": float(sum(x.numel() for x in head.parameters())),
        "property.ndcg_low": interval.low,
        "property.ndcg_high": interval.high,
        "property.last.ndcg": _mean(test["last"]),
        "property.average.ndcg": _mean(test["average"]),
        "property.num_times": float(len(test["head"])),
        "property.best_epoch": float(best[1]),
    }


def _pass(
    head: PropertyHead,
    optimizer: torch.optim.Optimizer | None,
    asked: list[Asked],
    nodes: Tensor,
    num_items: int,
) -> dict[str, dict[str, list[float]]]:
    """Iterate over all times; train on the training part if requested, measure the others."""
    last, average = torch.zeros(2, len(nodes), num_items)
    is_known = torch.zeros(len(nodes), dtype=torch.bool)
    found: dict[str, dict[str, list[float]]] = {
        part: {name: [] for name in ("head", "last", "average")} for part in ("val", "test")
    }
    for of, z, part in asked:
        own, y = torch.searchsorted(nodes, of.nodes), of.dense(num_items)
        before = last[own], average[own]
        if part == "train" and optimizer is not None:
            shares = y / y.sum(1, keepdim=True).clamp(min=1e-12)
            loss = -(shares * log_softmax(head(z, *before), dim=1)).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        elif part != "train":
            with torch.no_grad():
                scores = {"head": head(z, *before), "last": before[0], "average": before[1]}
            for name, each in scores.items():
                found[part][name].append(ndcg_at_k(each, y, TOP))
        moved = ((WINDOW - 1) * before[1] + y) / WINDOW
        average[own] = moved.where(is_known[own].unsqueeze(1), y)
        last[own] = y
        is_known[own] = True
    return found


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)
