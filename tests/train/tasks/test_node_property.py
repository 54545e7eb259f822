"""Node properties: forecasters by hand, visibility of queries, and a head that beats them."""

import pyarrow as pa
import pytest
import torch

from helpers.made_streams import made_events, small_tgat, small_tgn
from tgflow import NodeIds, OfflineConfig, TemporalGraph
from tgflow.base.metrics import ndcg_at_k
from tgflow.train.node_property import (
    Asked,
    PropertyLabels,
    PropertyTime,
    asked_at_times,
    node_property_figures,
)
from tgflow.train.split import chronological_split


def ids_of(num):
    ids = NodeIds()
    ids.encode(list(range(num)), list(range(num)))
    return ids


def test_table_is_grouped_into_properties_by_time():
    table = pa.table(
        {
            "t": [20, 10, 10, 10, 20],
            "node": [1, 1, 0, 1, 99],
            "label": ["b", "a", "b", "c", "a"],
            "weight": [1.0, 0.25, 1.0, 0.75, 1.0],
        }
    )
    labels = PropertyLabels.of(table, ids_of(3), 1000, "x")
    assert [each.t for each in labels.times] == [10_000, 20_000]
    assert labels.num_items == 3
    first = labels.times[0]
    assert first.nodes.tolist() == [0, 1]
    assert first.dense(3).tolist() == [[1, 0, 0], [0, 0.25, 0.75]]  # b, a, c in order of the rows
    assert labels.times[1].nodes.tolist() == [1]  # 99 is unknown
    with pytest.raises(ValueError, match="x has no column 'weight'"):
        PropertyLabels.of(table.drop_columns(["weight"]), ids_of(3), 1, "x")


def labels_at(*times):
    nodes, item = torch.arange(6), torch.arange(6) % 2
    return PropertyLabels(
        [PropertyTime(t, nodes, torch.arange(6), item, torch.ones(6)) for t in times], 2
    )


def asked_of(model, labels, events):
    split, config = chronological_split(events), OfflineConfig(batch_size=20)
    graph = TemporalGraph.from_events(events)
    return [each.z for each in asked_at_times(model, graph, config, split, labels)]


@pytest.mark.parametrize("make", [small_tgn, small_tgat])
def test_query_reads_only_earlier_events_and_changes_nothing(make):
    events, model = made_events(200), make()
    before = {} if model.state is None else model.state.state_dict()
    labels = labels_at(*(int(events.t[i]) for i in (60, 150)))
    asked, less = (asked_of(model, labels, each) for each in (events, events[: 150 + 1]))
    assert all(map(torch.equal, asked, less))
    assert not torch.equal(*asked)
    after = {} if model.state is None else model.state.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def made_asked(num_times=60, seed=0):
    """Embeddings that predict the next item, unlike averages and the last item."""
    generator = torch.Generator().manual_seed(seed)
    asked = []
    for t in range(num_times):
        item = torch.randint(12, (20,), generator=generator)
        z = torch.nn.functional.one_hot(item, 12).float()
        of = PropertyTime(t, torch.arange(20), torch.arange(20), item, torch.ones(20))
        part = "train" if t < 40 else "val" if t < 50 else "test"
        asked.append(Asked(of, z, part))
    return asked


@pytest.mark.slow
def test_trained_head_beats_the_forecasters():
    result = node_property_figures(made_asked(), 12, epochs=15, learning_rate=1e-2, seed=0)
    assert result["property.ndcg"] > 0.9
    assert result["property.ndcg_low"] <= result["property.ndcg"] <= result["property.ndcg_high"]
    assert max(result["property.last.ndcg"], result["property.average.ndcg"]) < 0.6


def test_forecaster_metrics_are_means_over_times():
    asked = made_asked()
    result = node_property_figures(asked, 12, epochs=1, seed=0)
    found = []
    for number, each in enumerate(asked):
        if each.part == "test":
            last = asked[number - 1].of.dense(12)
            found.append(ndcg_at_k(last, each.of.dense(12), 10))
    assert result["property.last.ndcg"] == pytest.approx(sum(found) / len(found))
    assert result["property.num_times"] == 10
    ends = result["property.ndcg_low"], result["property.ndcg_high"]
    assert 0 < ends[0] < result["property.ndcg"] < ends[1] < 1
