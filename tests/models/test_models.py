"""Embedding models on batches built slowly and obviously, and the state of TGN."""

import re
import sys
from pathlib import Path

import pytest
import torch

from helpers.made_models import made_events, made_model
from helpers.plans import made_batch
from tgflow.graph import TemporalGraph
from tgflow.graph.events import EventBatch
from tgflow.models import MODELS, TGN, EdgeBank, Recency, TGATConfig, TGNConfig
from tgflow.streams import open_stream, playback
from tgflow.train import ContinualTrainer


def take_in(model, batch):
    model.commit(batch, model(batch))


@pytest.mark.parametrize("name", ["tgn", "tgat", "jodie", "graphmixer"])
def test_node_features_are_read_and_zeros_for_nodes_beyond_them(name):
    model, events = made_model(name, node_x_dim=5).eval(), made_events(20)
    node_x = torch.randn(7, 5)
    scores = [
        model(made_batch(events, 0, 20, model.fanouts, node_x=x)).positive
        for x in (node_x, torch.cat([node_x, torch.zeros(5, 5)]), node_x[:3])
    ]
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])


@pytest.mark.parametrize("aggregator", ["last", "mean"])
def test_mail_of_an_event_has_its_features_and_the_memory_of_the_other_node(aggregator):
    events = EventBatch(
        torch.tensor([0, 0, 1]), torch.tensor([1, 2, 3]), torch.tensor([5, 6, 9]), torch.eye(3)
    )
    model = made_model("tgn", edge_x_dim=3, aggregator=aggregator)
    take_in(model, made_batch(events, 0, 2, model.fanouts))
    rows = model.state.read(torch.arange(4), torch.full((4,), 2))
    assert rows.has_mail.tolist() == [True, True, True, False]
    assert rows.mail_t[:3].tolist() == [6, 5, 6]
    assert rows.last_update[:3].tolist() == [6, 5, 6]  # a first message is 0 s after it
    assert rows.mail[0, -3:].tolist() == ([0, 1, 0] if aggregator == "last" else [0.5, 0.5, 0])
    assert not rows.memory.any(), "only the next use takes the mail in"
    updated = model.updater(rows, 1.0).detach()
    take_in(model, made_batch(events, 1, 2, model.fanouts))
    after = model.state.read(torch.arange(4), torch.full((4,), 3))
    torch.testing.assert_close(after.memory[1], updated[1])
    assert (int(after.last_update[1]), int(after.mail_t[1])) == (5, 9)
    torch.testing.assert_close(after.mail[3], torch.cat([updated[1], events.x[2]]))
    torch.testing.assert_close(after.mail[1], torch.cat([updated[3], events.x[2]]))


def test_model_takes_its_settings_by_name_or_as_a_config():
    assert TGN(memory_dim=32).config == TGN(TGNConfig(memory_dim=32)).config
    assert TGN().config == TGNConfig()
    with pytest.raises(TypeError, match="'memroy_dim'; did you mean memory_dim"):
        TGN(memroy_dim=32)
    with pytest.raises(TypeError, match="EdgeBankConfig has no setting 'window'"):
        EdgeBank(window=3)
    assert TGN(TGNConfig(memory_dim=32), time_dim=8).config == TGNConfig(memory_dim=32, time_dim=8)
    with pytest.raises(TypeError, match="config must be of type TGNConfig, got TGATConfig"):
        TGN(TGATConfig())


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (TGNConfig, {"heads": 3}, "heads must divide embedding_dim, got 3 and 100"),
        (TGATConfig, {"neighbors": 0}, "neighbors must be at least 1, got 0"),
        (TGATConfig, {"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
        (TGNConfig, {"edge_x_dim": -1}, "edge_x_dim must be at least 0, got -1"),
        (TGATConfig, {"node_x_dim": -1}, "node_x_dim must be at least 0, got -1"),
        (TGNConfig, {"aggregator": "sum"}, "aggregator must be one of last, mean, got 'sum'"),
        (TGATConfig, {"strategy": "newest"}, "strategy must be one of recent, uniform, "),
        (TGNConfig, {"memory_dim": 0}, "memory_dim must be at least 1, got 0"),
        (TGNConfig, {"memory_updater": "lstm"}, "memory_updater must be one of gru, rnn, got"),
    ],
)  # fmt: skip
def test_configs_name_the_invalid_setting(config, settings, message):
    with pytest.raises(ValueError, match=message):
        config(**settings)


@pytest.mark.parametrize("name", MODELS)
def test_model_cites_its_paper_and_states_the_differences(name):
    model = MODELS[name].model
    module = sys.modules[model.__module__]
    assert re.search(r"arXiv:\d{4}\.\d{5}|, 20\d\d\.", module.__doc__)
    assert "\n\nDiffers from the paper:\n    * " in module.__doc__


@pytest.mark.slow
def test_pair_history_beats_its_initial_heuristic():
    stream = Path(__file__).parents[2] / "examples" / "data" / "collegemsg.csv.gz"
    found = []
    for make in (lambda: Recency(rule="LR>GR"), TGN):
        torch.manual_seed(0)
        model = make()
        events = playback(open_stream(stream, time_unit="s"), limit=6000)
        found.append(ContinualTrainer(model, TemporalGraph()).run(events)["prequential.ap"])
    rule, with_pairs = found
    assert with_pairs > rule + 0.02
