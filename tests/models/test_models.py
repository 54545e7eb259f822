"""Models that embed nodes, on batches made the slow, obvious way; and what TGN keeps."""

import re
import sys
from pathlib import Path

import pytest
import torch

from helpers.batches import made_batch
from helpers.made_models import made_events, made_model
from tgflow.batch import Batch
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.model import TemporalModel
from tgflow.models import MODELS, TGN, EdgeBank, Recency, TGATConfig, TGNConfig
from tgflow.plan import ExperienceReplay
from tgflow.streams import open_stream, playback
from tgflow.train import ContinualTrainer

EMBEDDING = [
    name
    for name, entry in MODELS.items()
    if "embed" in vars(entry.model) and not name.endswith("+pairs")
]
for_each_encoder = pytest.mark.parametrize("name", EMBEDDING)


def take_in(model: TemporalModel, batch: Batch) -> None:
    model.commit(batch, model(batch))


@for_each_encoder
def test_model_reads_node_features_and_nodes_beyond_them(name):
    model, events = made_model(name, node_x_dim=5).eval(), made_events(20)
    node_x = torch.randn(7, 5)
    scores = [
        model(made_batch(events, 0, 20, model.fanouts, node_x=x)).positive
        for x in (node_x, torch.cat([node_x, torch.zeros(5, 5)]), node_x[:3])
    ]
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])


@pytest.mark.parametrize("aggregator", ["last", "mean"])
def test_commit_leaves_mail_for_the_new_events_alone(aggregator):
    events = EventBatch(
        torch.tensor([0, 0, 3]), torch.tensor([1, 2, 4]), torch.tensor([5, 6, 9]), torch.eye(3)
    )
    model = made_model("tgn", edge_x_dim=3, aggregator=aggregator)
    take_in(model, made_batch(events, 0, 2, model.fanouts))
    rows = model.state.read(torch.arange(5), torch.full((5,), 2))
    assert rows.has_mail.tolist() == [True, True, True, False, False]
    assert rows.mail_t[:3].tolist() == [6, 5, 6]
    assert rows.last_update[:3].tolist() == [6, 5, 6]  # a first message is 0 s after it
    x = [0.0, 1.0, 0.0] if aggregator == "last" else [0.5, 0.5, 0.0]
    assert rows.mail[0, -3:].tolist() == x
    assert rows.memory.abs().sum() == 0  # lazily: only the next use takes the mail in


def test_replayed_events_read_memory_as_it_was_and_are_not_committed():
    events = made_events(60)
    model = made_model("tgn").eval()
    model.state.keep_past(1000)
    first = []
    for index in range(2):
        batch = made_batch(events, index, 20, model.fanouts)
        found = model(batch)
        first.append(found.positive)
        model.commit(batch, found)
    both = made_batch(events, 2, 20, model.fanouts, replay=ExperienceReplay(ratio=0.5))
    found = model(both)
    torch.testing.assert_close(found.positive[20:], torch.cat(first)[both.eid[20:]])
    model.commit(both, found)
    state = model.state.state_dict()
    alone = made_model("tgn").eval()
    alone.state.keep_past(1000)
    for index in range(3):
        take_in(alone, made_batch(events, index, 20, model.fanouts))
    for key, value in alone.state.state_dict().items():
        torch.testing.assert_close(state[key], value)


def test_a_model_takes_its_settings_by_name_or_as_a_config():
    assert TGN(memory_dim=32).config == TGN(TGNConfig(memory_dim=32)).config
    assert TGN().config == TGNConfig()
    with pytest.raises(TypeError, match="'memroy_dim'; did you mean memory_dim"):
        TGN(memroy_dim=32)
    with pytest.raises(TypeError, match="EdgeBankConfig has no setting 'window'"):
        EdgeBank(window=3)
    assert TGN(TGNConfig(memory_dim=32), time_dim=8).config == TGNConfig(memory_dim=32, time_dim=8)
    with pytest.raises(TypeError, match="config must be a TGNConfig, got TGATConfig"):
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
        (TGNConfig, {"memory_placement": "host", "memory_cache": "much"},
         "memory_cache: a size is bytes or text such as"),
        (TGNConfig, {"memory_updater": "lstm"}, "memory_updater must be one of gru, rnn, got"),
    ],
)  # fmt: skip
def test_configs_name_the_wrong_setting(config, settings, message):
    with pytest.raises(ValueError, match=message):
        config(**settings)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_cites_its_paper_and_states_the_differences(name):
    model = MODELS[name].model
    module = sys.modules[model.__module__]
    assert re.search(r"arXiv:\d{4}\.\d{5}|, 20\d\d\.", module.__doc__)
    assert "\n\nDiffers from the paper:\n    * " in module.__doc__


@pytest.mark.slow
def test_pairs_history_beats_the_rule_that_it_starts_from() -> None:
    stream = Path(__file__).parents[2] / "examples" / "data" / "collegemsg.csv.gz"
    found = []
    for make in (lambda: Recency(rule="LR>GR"), TGN):
        torch.manual_seed(0)
        model = make()
        events = playback(open_stream(stream, time_unit="s"), limit=6000)
        found.append(ContinualTrainer(model, TemporalGraph()).run(events)["prequential.ap"])
    rule, with_pairs = found
    assert with_pairs > rule + 0.02
