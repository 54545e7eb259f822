"""TGN and TGAT on made streams."""

import subprocess
import sys

import pytest
import torch
from sklearn.metrics import average_precision_score
from torch.nn import functional as F

from helpers.batches import slow_batch
from helpers.effort import cases
from tgflow.batch import Batch
from tgflow.events import EventBatch
from tgflow.models import MODELS, TGAT, TGN, TGATConfig, TGNConfig

SMALL = {"time_dim": 8, "embedding_dim": 8, "neighbors": 4, "dropout": 0.0}


def made_events(size: int, x_dim: int = 0, num_nodes: int = 12, seed: int = 0) -> EventBatch:
    """A stream in which sources keep coming back to a few destinations, with ties in time."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(num_nodes // 2, (size,), generator=generator)
    dst = num_nodes // 2 + (src + torch.randint(2, (size,), generator=generator)) % (num_nodes // 2)
    t = torch.arange(size) // 3 * 7
    x = torch.randn(size, x_dim, generator=generator) if x_dim else None
    return EventBatch(src, dst, t, x)


def made_model(name: str, x_dim: int = 0, **settings: object) -> TGN | TGAT:
    torch.manual_seed(0)
    memory = {"memory_dim": 8} if name == "tgn" else {}
    entry = MODELS[name]
    return entry.model(entry.config(edge_x_dim=x_dim, **SMALL, **memory, **settings))


def take_in(model: TGN | TGAT, batch: Batch) -> None:
    model.commit(batch, model(batch))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("x_dim", cases([0, 3], [3]))
def test_model_overfits_a_tiny_stream(name, x_dim):
    events = made_events(60, x_dim)
    # With a regular clock and without features, no model could tell one node from another.
    model, node_x = made_model(name, x_dim, node_x_dim=12, layers=1), torch.eye(12)
    batches = [slow_batch(events, i, 20, model.fanouts, node_x=node_x) for i in range(3)]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        labels, scores = [], []
        if model.state is not None:
            model.state.reset()
        for batch in batches:
            result = model(batch)
            loss = F.softplus(-result.positive).mean() + F.softplus(result.negative).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.commit(batch, result)
            real = {(int(a), int(b)) for a, b in zip(events.src, events.dst, strict=True)}
            pairs = zip(batch.src.tolist(), batch.negative_dst[:, 0].tolist(), strict=True)
            false = torch.tensor([pair not in real for pair in pairs])  # else it may be true
            labels += [1] * len(batch) + [0] * int(false.sum())
            scores += result.positive.tolist() + result.negative[false, 0].tolist()
    assert average_precision_score(labels, scores) > 0.95


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layers", [1, 2])
def test_model_shapes_and_finite_gradients(name, layers):
    events, model = made_events(60, 2), made_model(name, 2, layers=layers)
    for index in range(3):
        batch = slow_batch(events, index, 20, model.fanouts, num_negatives=3)
        scores = model(batch)
        assert scores.positive.shape == (20,)
        assert scores.negative.shape == (20, 3)
        (scores.positive.sum() + scores.negative.sum()).backward()
        model.commit(batch, scores)
    for name_of, parameter in model.named_parameters():
        assert parameter.grad is not None, name_of
        assert bool(parameter.grad.isfinite().all()), name_of


@pytest.mark.parametrize("name", MODELS)
def test_model_reads_node_features_and_nodes_beyond_them(name):
    model, events = made_model(name, node_x_dim=5).eval(), made_events(20)
    node_x = torch.randn(7, 5)
    scores = [
        model(slow_batch(events, 0, 20, model.fanouts, node_x=x)).positive
        for x in (node_x, torch.cat([node_x, torch.zeros(5, 5)]), node_x[:3])
    ]
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])


@pytest.mark.parametrize("name", MODELS)
def test_model_refuses_node_features_of_another_width(name):
    events = made_events(20)
    for dim, node_x, found in ((5, None, 0), (5, torch.ones(7, 4), 4), (0, torch.ones(7, 4), 4)):
        model = made_model(name, node_x_dim=dim)
        batch = slow_batch(events, 0, 20, model.fanouts, node_x=node_x)
        with pytest.raises(ValueError, match=f"of width {dim}, the graph has {found}"):
            model(batch)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dim", [0, 5])
def test_model_of_no_events(name, dim):
    model = made_model(name, node_x_dim=dim)
    node_x = torch.ones(0, dim) if dim else None
    batch = slow_batch(made_events(0), 0, 20, model.fanouts, node_x=node_x)
    scores = model(batch)
    model.commit(batch, scores)
    assert scores.positive.shape == (0,)
    assert scores.negative.shape == (0, 1)


@pytest.mark.parametrize("name", MODELS)
def test_forward_is_deterministic_and_changes_no_state(name):
    events, model = made_events(60, 2), made_model(name, 2).eval()
    for index in range(2):
        take_in(model, slow_batch(events, index, 20, model.fanouts))
    batch = slow_batch(events, 2, 20, model.fanouts)
    assert torch.equal(model(batch).positive, model(batch).positive)


@pytest.mark.parametrize("name", MODELS)
def test_what_comes_later_changes_nothing(name):
    events = made_events(80, 2)
    other = EventBatch(events.src, events.dst.clone(), events.t.clone(), events.x.clone())
    other.dst[60:] = events.dst[60:].roll(1)
    other.x[60:] += 1
    other.t[60:] += 1000
    runs = []
    for stream in (events, other):
        model, scores = made_model(name, 2).eval(), []
        for index in range(3):  # up to event 60
            batch = slow_batch(stream, index, 20, model.fanouts)
            found = model(batch)
            scores.append(found.positive)
            model.commit(batch, found)
        runs.append(torch.cat(scores))
    assert torch.equal(*runs)


@pytest.mark.parametrize("aggregator", ["last", "mean"])
def test_commit_leaves_mail_for_the_new_events_alone(aggregator):
    events = EventBatch(
        torch.tensor([0, 0, 3]), torch.tensor([1, 2, 4]), torch.tensor([5, 6, 9]), torch.eye(3)
    )
    model = made_model("tgn", 3, aggregator=aggregator)
    take_in(model, slow_batch(events, 0, 2, model.fanouts))
    rows = model.state.read(torch.arange(5), torch.full((5,), 2))
    assert rows.has_mail.tolist() == [True, True, True, False, False]
    assert rows.mail_t[:3].tolist() == [6, 5, 6]
    assert rows.last_update[:3].tolist() == [6, 5, 6]  # a first message is 0 s after it
    x = [0.0, 1.0, 0.0] if aggregator == "last" else [0.5, 0.5, 0.0]
    assert rows.mail[0, -3:].tolist() == x
    assert rows.memory.abs().sum() == 0  # lazily: only the next use takes the mail in


def test_mail_holds_the_other_ends_updated_memory():
    events = EventBatch(torch.tensor([0, 0, 0]), torch.tensor([1, 1, 2]), torch.tensor([1, 2, 3]))
    model = made_model("tgn")
    for index in range(3):
        batch = slow_batch(events, index, 1, model.fanouts)
        model.commit(batch, model(batch))
    rows = model.state.read(torch.arange(3), torch.full((3,), 3))
    assert torch.equal(rows.mail[2], rows.memory[0])
    assert rows.memory[0].abs().sum() > 0
    assert rows.last_update[:2].tolist() == [2, 1]
    assert rows.mail_t.tolist() == [3, 2, 3]


def test_replayed_events_read_memory_as_it_was_and_are_not_committed():
    events = made_events(60)
    model = made_model("tgn").eval()
    model.state.keep_past(1000)
    first = []
    for index in range(2):
        batch = slow_batch(events, index, 20, model.fanouts)
        found = model(batch)
        first.append(found.positive)
        model.commit(batch, found)
    both = slow_batch(events, 2, 20, model.fanouts, replayed=[3, 25, 39])
    found = model(both)
    torch.testing.assert_close(found.positive[20:], torch.cat(first)[[3, 25, 39]])
    model.commit(both, found)
    state = model.state.state_dict()
    alone = made_model("tgn").eval()
    alone.state.keep_past(1000)
    for index in range(3):
        take_in(alone, slow_batch(events, index, 20, model.fanouts))
    for key, value in alone.state.state_dict().items():
        torch.testing.assert_close(state[key], value)


def test_only_replayed_events_change_no_memory():
    events = made_events(40)
    model = made_model("tgn")
    model.state.keep_past(100)
    take_in(model, slow_batch(events, 0, 20, model.fanouts))
    before = model.state.state_dict()
    take_in(model, slow_batch(events, 2, 20, model.fanouts, replayed=[3, 4]))
    assert all(torch.equal(before[key], value) for key, value in model.state.state_dict().items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 3}, "heads must divide embedding_dim, got 3 and 100"),
        ({"neighbors": 0}, "neighbors must be at least 1, got 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
        ({"edge_x_dim": -1}, "edge_x_dim must be at least 0, got -1"),
        ({"node_x_dim": -1}, "node_x_dim must be at least 0, got -1"),
    ],
)
def test_configs_name_the_wrong_setting(settings, message):
    for config in (TGNConfig, TGATConfig):
        with pytest.raises(ValueError, match=message):
            config(**settings)


def test_configs_check_their_own_settings():
    with pytest.raises(ValueError, match="aggregator must be one of last, mean, got 'sum'"):
        TGNConfig(aggregator="sum")
    with pytest.raises(ValueError, match="strategy must be one of recent, uniform, "):
        TGATConfig(strategy="newest")
    with pytest.raises(ValueError, match="memory_dim must be at least 1, got 0"):
        TGNConfig(memory_dim=0)
    with pytest.raises(ValueError, match="memory_cache: a size is bytes or text such as"):
        TGNConfig(memory_placement="host", memory_cache="much")
    with pytest.raises(ValueError, match="memory_updater must be one of gru, rnn, got 'lstm'"):
        TGNConfig(memory_updater="lstm")


def test_a_model_is_imported_when_it_is_first_used():
    script = "import sys, tgflow.models as m; print('tgflow.models.tgn' in sys.modules); m.TGN"
    script += "; print('tgflow.models.tgn' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("name", MODELS)
def test_an_encoder_serves_any_decoder(name):
    events, model = made_events(60, 2), made_model(name, 2).eval()
    batch = slow_batch(events, 0, 20, model.fanouts)
    embeddings, scores = model.embed(batch), model(batch)
    assert embeddings.z.shape[1] == 8
    assert torch.equal(model.decoder(embeddings.z, batch).positive, scores.positive)
    model.commit(batch, embeddings)  # for a task that has no scores
