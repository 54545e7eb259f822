"""Prequential evaluation in one call, and installed data sets."""

import os
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import tgflow as tg
from helpers.made_streams import made_events, small_tgn


def test_evaluate_matches_a_continual_trainer():
    events, config = made_events(120), tg.ContinualConfig(batch_size=20)
    found = tg.evaluate([events], small_tgn(), config=config)
    graph = tg.TemporalGraph(edge_x_dim=2, feature_scale=tg.graph.FeatureScale())
    trainer = tg.ContinualTrainer(small_tgn(), graph, config)
    expected = trainer.run([events])
    for name in ("prequential.ap", "prequential.mrr", "test.ap", "num_events"):
        assert found[name] == expected[name]


def test_what_is_no_model_or_no_batch_is_refused_by_a_sentence():
    rows, graph = {"src": [1], "dst": [2], "t": [3]}, tg.TemporalGraph()
    calls = {
        "'recency'": lambda: tg.evaluate(rows, "recency"),
        "<class 'dict'>": lambda: tg.evaluate(rows, dict),
        "<class 'tgflow.models.tgn.TGN'>": lambda: tg.ContinualTrainer(tg.TGN, graph),
        "'tgn'": lambda: tg.compare.Comparison([tg.compare.Entrant("tgn", 0, "tgn")], graph),
    }
    for name, call in calls.items():
        with pytest.raises(TypeError, match=r"^model must be a .*Model such as") as of:
            call()
        assert str(of.value).endswith(f"got {name}")
    with pytest.raises(TypeError, match=r"events must be a tgflow.EventBatch, .*, got tuple"):
        graph.append((torch.tensor([1]), torch.tensor([2]), torch.tensor([3])))


def test_evaluate_builds_a_model_for_the_features_of_the_stream():
    rows = {"u": [1, 2, 1] * 40, "v": [7, 8, 8] * 40, "t": [*range(120)], "x": [0.5, 1.5, 2.5] * 40}
    stream = tg.open_stream(rows, src="u", dst="v", t="t", features=["x"], time_unit="s")
    torch.manual_seed(0)
    assert tg.evaluate(stream, tg.JODIE)["num_events"] == 120


def test_a_frame_is_learned_like_the_stream_opened_from_it():
    frame = pd.DataFrame({"user": ["a", "b", "c"] * 40, "item": ["x", "y"] * 60})
    frame["time"] = pd.date_range("2024-01-01", periods=120, freq="min")
    config = tg.ContinualConfig(batch_size=20)
    stream = tg.open_stream(frame, src="user", dst="item", t="time", bipartite=True)
    expected = tg.evaluate(stream, tg.EdgeBank, config=config)
    found = tg.evaluate(frame, tg.EdgeBank, config=config, bipartite=True)
    trainer = tg.ContinualTrainer(tg.EdgeBank(), tg.TemporalGraph("bipartite"), config)
    trained = trainer.run(frame)
    for name in ("prequential.ap", "prequential.mrr", "num_events", "num_nodes"):
        assert found[name] == trained[name] == expected[name]
    assert tg.open_run(trainer).top_k("b", k=1).src == ["b"]
    later = frame.assign(time=frame["time"] + pd.Timedelta("1D"), user=["d", "b", "c"] * 40)
    assert trainer.run(later)["num_events"] == 240
    assert trainer.graph.num_nodes == 6


@pytest.mark.parametrize(
    "kind", ["path", "paths", "tuple", "records", "object", "batch", "tuple of batches", "steps"]
)
def test_any_kind_of_data_is_learned_like_an_open_stream(kind, tmp_path):
    rows = {"src": [1, 2, 3, 2] * 10, "dst": [7, 8] * 20, "t": [*range(40)]}
    stream, path = tg.open_stream(rows, time_unit="s"), tmp_path / "rows.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    [batch] = stream
    columns = tuple(map(np.array, rows.values()))
    records = pd.DataFrame(rows).to_dict("records")
    tensors = SimpleNamespace(**{name: torch.tensor(column) for name, column in rows.items()})
    data = {
        "path": path,
        "paths": [path],
        "records": records,
        "object": tensors,
        "tuple": columns,
        "batch": batch,
        "tuple of batches": (batch,),
    }
    expected, found = (tg.ContinualTrainer(tg.EdgeBank(), tg.TemporalGraph()) for _ in range(2))
    expected.run(stream)
    if kind == "steps":
        assert sum(step.stop - step.start for step in found.steps(columns)) == 40
    else:
        found.run(data[kind])
    assert found.result()["prequential.mrr"] == expected.result()["prequential.mrr"]
    assert found.graph.num_nodes == 5


def test_a_path_keeps_the_name_spaces_that_its_format_declares(tmp_path):
    path = tmp_path / "jodie.csv"
    rows = "".join(f"{i % 3},{i % 2},{i},0,0.5\n" for i in range(60))
    path.write_text(
        "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n" + rows
    )
    trainer = tg.ContinualTrainer(tg.EdgeBank(), tg.TemporalGraph(edge_x_dim=1))
    trainer.run(path)
    assert trainer.ids.bipartite
    assert trainer.graph.num_nodes == 5


def test_options_are_refused_for_a_stream_that_is_open():
    for odd in (5, None, [[0, 1], [1, 2], [3, 4]]):
        with pytest.raises(TypeError, match=r"cannot read events from [A-Za-z]+; pass"):
            tg.evaluate(odd, tg.EdgeBank())
    with pytest.raises(TypeError, match=r"time_unit: give these to tg\.open_stream"):
        tg.evaluate([made_events(4)], tg.EdgeBank(), time_unit="s")


@pytest.mark.parametrize("delay", [None, "60s"])
def test_evaluate_learns_labels_with_a_delay(delay):
    count = 160
    rows = {"src": [i % 8 for i in range(count)], "dst": [i % 5 for i in range(count)]}
    rows |= {"t": [10 * i for i in range(count)], "fraud": [int(i % 8 < 2) for i in range(count)]}
    torch.manual_seed(0)
    task = tg.tasks.TaskConfig(kind="edge", target="fraud", label_delay=delay)
    config = tg.ContinualConfig(batch_size=20, task=task)
    found = tg.evaluate(rows, tg.TGN(memory_dim=8), config=config, time_unit="s")
    assert 0 <= found["prequential.edge.auc"] <= 1


def test_data_set_is_read_from_any_folder(tmp_path):
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        stream = tg.datasets.collegemsg()
        first = next(iter(stream))
    finally:
        os.chdir(before)
    assert first.t[0] == 1082040961
    assert stream.unit == "s"
