"""Node labels predicted from embeddings of nodes excluded from training."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from helpers.made_streams import made_events, small_tgn
from tgflow import EventBatch, NodeIds, OfflineConfig, OfflineTrainer, TemporalGraph
from tgflow.train.tasks.node_labels import (
    LabeledNodes,
    fitted_logits,
    node_label_figures,
    stratified_folds,
)


@pytest.mark.slow
def test_nodes_with_different_features_are_classified():
    """The first 20 of 40 sources have large features, visible in memory and not in degrees."""
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(40, (600,), generator=generator)
    x = torch.randn(600, 2, generator=generator)
    x[:, 0] += 4 * (src < 20)
    dst = 40 + torch.randint(10, (600,), generator=generator)
    graph = TemporalGraph.from_events(EventBatch(src, dst, torch.arange(600) * 60, x))
    trainer = OfflineTrainer(small_tgn(), graph, OfflineConfig(epochs=1, batch_size=50))
    trainer.fit()
    nodes = LabeledNodes(torch.arange(40), (torch.arange(40) < 20).long(), 2, 0)
    result = node_label_figures(trainer.model, graph, nodes)
    assert result["node.auc"] > 0.9
    assert result["node.auc_low"] <= result["node.auc"] <= result["node.auc_high"] <= 1
    assert 0.2 < result["node.degrees.auc"] < 0.8
    assert result["node.num_nodes"] == result["node.num_positives"] + 20 == 40
    assert result == node_label_figures(trainer.model, graph, nodes)


def ids_of(*names, bipartite=False):
    ids = NodeIds(bipartite)
    ids.encode(list(names), list(names))
    return ids


def table_of(nodes, label):
    return pa.table({"node": nodes, "label": label})


def test_label_table_uses_the_node_ids_of_the_stream():
    """Two labels need a positive one; those that are not known are left out."""
    names = [f"n{i}" for i in range(14)]
    table = table_of([*names[::-1], "stranger"], ["?", None, *["yes", "no"] * 6, "no"])
    found = LabeledNodes.of(table, ids_of(*names), "x.csv", "yes", ["?"])
    assert found.nodes.tolist() == list(range(12))[::-1]
    assert found.label.tolist() == [1, 0] * 6
    assert (found.num_classes, found.num_unknown, found.positive) == (2, 1, "yes")
    found = LabeledNodes.of(table, ids_of(*names), "x.csv", "no", ["?"])
    assert found.label.tolist() == [0, 1] * 6
    with pytest.raises(ValueError, match=r"'no' \(7 of 13 rows\) and 'yes'.*positive_label='yes'"):
        LabeledNodes.of(table, ids_of(*names), "x.csv", unknown=["?"])
    numbers = table_of(names[:10], [10, 2] * 5)
    assert LabeledNodes.of(numbers, ids_of(*names), "x", "2").label.tolist() == [0, 1] * 5
    three = table_of([*names, "n14"], [10, 2, 9] * 5)
    found = LabeledNodes.of(three, ids_of(*names, "n14"), "x")
    assert found.label.tolist() == [2, 0, 1] * 5, "as the numbers are ordered"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"id": [1], "label": [1]}), "x has no column 'node'; the columns are id, label"),
        (table_of([0, 0], [1, 1]), "a node has several labels"),
        (table_of([0, 1, 2], [1, 0, 1]), r"5 folds need as many nodes.*\[1, 2\]"),
    ],
)
def test_invalid_label_tables_raise_readable_errors(table, message):
    with pytest.raises(ValueError, match=message):
        LabeledNodes.of(table, ids_of(*range(5)), "x")


def test_model_without_embeddings_is_refused():
    from helpers.made_models import made_model

    graph = TemporalGraph.from_events(made_events(50))
    nodes = LabeledNodes(torch.arange(10), torch.arange(10) % 2, 2, 0)
    with pytest.raises(ValueError, match="defines no embed"):
        node_label_figures(made_model("dygformer"), graph, nodes)


def test_logistic_regression_matches_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(3, (90,), generator=generator)
    x = torch.randn(90, 4, generator=generator, dtype=torch.float64)
    x[:, 0] += 2 * label
    x[:, 3] = 7.0  # constant, without deviation
    learned, new = slice(0, 60), slice(60, 90)
    scaler = StandardScaler().fit(x[learned].numpy())
    reference = LogisticRegression(tol=1e-8, max_iter=2000)
    reference.fit(scaler.transform(x[learned].numpy()), label[learned].numpy())
    expected = reference.predict_proba(scaler.transform(x[new].numpy()))
    found = fitted_logits(x[learned], label[learned], x[new], 3).softmax(1)
    assert np.abs(found.numpy() - expected).max() < 1e-3


def test_folds_are_stratified_and_partition_the_rows():
    label = torch.tensor([0] * 50 + [1] * 10)
    folds = list(stratified_folds(label, 5, seed=3))
    assert torch.stack(folds).sum(0).tolist() == [1] * 60
    assert [int(label[fold].sum()) for fold in folds] == [2] * 5
    again = list(stratified_folds(label, 5, seed=3))
    other = list(stratified_folds(label, 5, seed=4))
    assert all(map(torch.equal, folds, again))
    assert not all(map(torch.equal, folds, other))
