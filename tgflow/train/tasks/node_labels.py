"""Static node labels: how well a model's embeddings predict them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tgflow.base.keys import derive_key
from tgflow.base.units import exact_decimal, seconds_of
from tgflow.graph import EventLog, TemporalGraph
from tgflow.graph.ids import NodeIds
from tgflow.nn.model import TemporalModel
from tgflow.streams.rows.validate import label_text, label_values
from tgflow.train.inference import Inference
from tgflow.train.tasks.figures import LabelFigures

NUM_FOLDS = 5


@dataclass(frozen=True, slots=True, eq=False)
class LabeledNodes:
    """Nodes with one label each."""

    nodes: Tensor
    label: Tensor
    """int64 `[N]`: classes, from 0; of two 1 is the positive one, more are in order of labels."""
    num_classes: int
    num_unknown: int
    """Omitted nodes, with labels but without events."""
    positive: str | None = None
    """The label of class 1 of two."""

    @classmethod
    def of(
        cls,
        table: pa.Table,
        ids: NodeIds,
        path: str,
        positive: str | None = None,
        unknown: Sequence[str] = (),
        classes: int | None = None,
    ) -> LabeledNodes:
        """Return the nodes of a table of columns node and label whose labels are known.

        `positive` is the label of class 1, as in `label_values`, and `unknown` are labels that mean
        not known, beside empty, null and NaN. Without `classes` there are at most `MOST_LABELS`.
        """
        check_columns(table, ("node", "label"), path)
        texts = [label_text(value) for value in table["label"].to_pylist()]
        left_out = {None, *map(label_text, unknown)}
        rows = [row for row, text in enumerate(texts) if text not in left_out]
        counts = Counter(texts[row] for row in rows)
        kinds = {str(kind): counts[kind] for kind in sorted(counts, key=_by_number)}
        try:
            order = label_values("label", kinds, positive, classes) or (*kinds,)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        nodes = found_nodes(ids, table["node"].take(pa.array(rows, pa.int64())), path)
        known = nodes >= 0
        label = torch.tensor([order.index(str(texts[row])) for row in rows], dtype=torch.int64)
        label, nodes = label[known], nodes[known]
        _check(path, nodes, label, len(order))
        shown = order[1] if len(order) == 2 else None
        return cls(nodes, label, len(order), int((~known).sum()), shown)


def _by_number(text: str | None) -> tuple[bool, float, str]:
    number = exact_decimal(str(text))
    return number is None, float(number or 0), str(text)


def check_columns(table: pa.Table, names: Sequence[str], path: str) -> None:
    """Raise ValueError if a table lacks a column."""
    for name in names:
        if name not in table.column_names:
            listed = ", ".join(table.column_names)
            raise ValueError(f"{path} has no column {name!r}; the columns are {listed}")


def found_nodes(ids: NodeIds, column: pa.ChunkedArray, path: str) -> Tensor:
    """Return dense ids, -1 for unknown nodes; in a bipartite stream sources come first."""
    try:
        known = ids.read(column)
    except ValueError as error:
        raise ValueError(f"{path}, column node, {error}") from None
    found = ids.find(known)
    return found.where(found >= 0, ids.find(known, "dst")) if ids.bipartite else found


def _check(path: str, nodes: Tensor, label: Tensor, num_classes: int) -> None:
    if len(torch.unique(nodes)) < len(nodes):
        raise ValueError(f"{path}: a node has several labels")
    counts = torch.bincount(label, minlength=num_classes)
    if num_classes < 2 or int(counts.min()) < NUM_FOLDS:
        raise ValueError(
            f"{path}: {NUM_FOLDS} folds need as many nodes with events of each of two labels or "
            f"more, and there are {counts.tolist()}"
        )


def node_label_figures(
    model: TemporalModel, graph: TemporalGraph, labeled: LabeledNodes, seed: int = 0
) -> dict[str, float]:
    """Return how well embeddings predict the static labels of held-out nodes.

    Each node is embedded right after its last event. A logistic regression is trained on four
    fifths of the nodes and predicts the others; two more read degrees and age alone, and both.
    """
    last, simple = _history(graph.log, labeled.nodes, graph.seconds_per_tick)
    embedded = Inference(model, graph).embed(labeled.nodes, last + 1).cpu().double()
    inputs = {
        "": embedded,
        "degrees.": simple,
        "with_degrees.": torch.cat([embedded, simple], dim=1),
    }
    out: dict[str, float] = {"node.num_nodes": len(labeled.nodes)}
    for name, x in inputs.items():
        figures = LabelFigures(labeled.num_classes, pooled=True)
        for fold in stratified_folds(labeled.label, NUM_FOLDS, seed):
            learned = x[~fold], labeled.label[~fold]
            said = fitted_logits(*learned, x[fold], labeled.num_classes)
            figures.add(labeled.label[fold], said)
        result = figures.result(with_intervals=not name)
        out |= {f"node.{name}{key}": value for key, value in result.items()}
    return out


def _history(log: EventLog, nodes: Tensor, seconds_per_tick: float) -> tuple[Tensor, Tensor]:
    """Return the last time of each node, and log degrees out and in, and log age, float64."""
    events = log.read(0, len(log))
    size = log.num_nodes
    degrees = [torch.bincount(end, minlength=size)[nodes] for end in (events.src, events.dst)]
    both, t = torch.cat([events.src, events.dst]), events.t.repeat(2)
    none = torch.zeros(size, dtype=torch.int64)
    first, last = (
        none.scatter_reduce(0, both, t, how, include_self=False)[nodes] for how in ("amin", "amax")
    )
    age = seconds_of(last - first, seconds_per_tick)
    return last, torch.stack([each.double().log1p() for each in (*degrees, age)], dim=1)


def fitted_logits(x: Tensor, label: Tensor, new: Tensor, num_classes: int) -> Tensor:
    """Fit mean cross-entropy + |W|^2 / (2 N) by L-BFGS, and return the logits of new rows."""
    mean, deviation = x.mean(0), x.std(0, correction=0)
    deviation = deviation.where(deviation > 0, 1.0)
    x, new = ((each - mean) / deviation for each in (x, new))
    weight = torch.zeros(x.shape[1], num_classes, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(num_classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = cross_entropy(x @ weight + bias, label) + weight.square().sum() / (2 * len(x))
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return (new @ weight + bias).detach()


def stratified_folds(label: Tensor, num_folds: int, seed: int) -> Iterator[Tensor]:
    """Yield the rows of each fold, bool `[N]`, stratified by class."""
    fold = torch.empty_like(label)
    for each in torch.unique(label).tolist():
        rows = (label == each).nonzero().flatten()
        generator = torch.Generator().manual_seed(derive_key(seed, each) >> 1)
        fold[rows[torch.randperm(len(rows), generator=generator)]] = (
            torch.arange(len(rows)) % num_folds
        )
    return (fold == number for number in range(num_folds))
