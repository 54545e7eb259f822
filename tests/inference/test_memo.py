"""A memo of rows: the same answers with less work, and none of a world that is gone."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tgflow as tg
from helpers.effort import tries
from helpers.made_models import X_DIM, changed, made_events, made_model
from tgflow.inference._native import RowMemo
from tgflow.model import TemporalModel
from tgflow.models.tgat import TGAT
from tgflow.tables import FeatureTable
from tgflow.units import parse_bytes

STREAM = made_events(240)
MEMO = "1MiB"


def graph_of(events):
    graph = tg.TemporalGraph(edge_x=FeatureTable(X_DIM))
    graph.append(events)
    return graph


def engines(graph, name="tgat", fanouts=None, memo=MEMO, **settings):
    """An engine with a memo, and one without."""
    model = made_model(name, **settings)
    return tg.Inference(model, graph, fanouts, memo=memo), tg.Inference(model, graph, fanouts)


def questions(seed=0, size=12):
    generator = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(12, (2, size), generator=generator)
    return src, dst, torch.randint(1, 560, (size,), generator=generator)


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def ask_both(engine, plain, asked, as_of=None):
    assert_close(engine.score(*asked, as_of=as_of), plain.score(*asked, as_of=as_of))


def num_found(engine, ask):
    before = engine.memo_use.num_found
    ask()
    return engine.memo_use.num_found - before


@settings(max_examples=tries(8), deadline=None)
@given(data=st.data())
def test_answers_are_those_without_a_memo_whatever_happens(data):
    """Appends, late events, deletions, retention, steps of an optimizer, at any position."""
    graph, size = graph_of(STREAM[:60]), 60
    engine, plain = engines(graph)
    acts = ("ask",) * 5 + ("append", "late", "delete", "retain", "compact", "learn", "set")
    for act in data.draw(st.lists(st.sampled_from(acts), min_size=6, max_size=12)):
        if act == "append":
            graph.append(STREAM[size : size + 12])
            size += 12
        elif act == "late":
            graph.append(made_events(5, seed=size), allow_late=True)
        elif act == "delete":
            graph.delete(torch.tensor([data.draw(st.integers(0, graph.num_events - 1))]))
        elif act == "retain":
            graph.retain(max_count=data.draw(st.integers(3, 9)))
        elif act == "compact":
            graph.compact()
        elif act == "learn":
            with torch.no_grad():
                next(engine.model.parameters()).mul_(0.9)
        elif act == "set":
            parameters = engine.model.state_dict()
            engine.model.load_state_dict({name: x * 0.99 for name, x in parameters.items()})
        position = data.draw(st.sampled_from([None, graph.num_events, size // 2, 0]))
        ask_both(engine, plain, questions(data.draw(st.integers(0, 3))), position)


@pytest.mark.parametrize("fanouts", [(7, 2), "all", ("all", 3), (2, "all")])
@pytest.mark.parametrize("name", ["tgat", "tgat+pairs"])
def test_fanouts_of_all_kinds_have_a_memo(name, fanouts):
    engine, plain = engines(graph_of(STREAM), name, fanouts)
    for seed in (0, 0, 1):
        ask_both(engine, plain, questions(seed))
        src, _, t = questions(seed)
        assert_close(engine.embed(src, t), plain.embed(src, t))
    assert engine.memo_use.num_found > 0


@pytest.mark.parametrize("layers", [1, 3])
def test_every_number_of_layers_has_a_memo(layers):
    engine, plain = engines(graph_of(STREAM), layers=layers)
    for seed in (0, 1):
        ask_both(engine, plain, questions(seed))


def test_node_features_are_read_below_the_lowest_layer():
    x = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    graph = tg.TemporalGraph(edge_x=FeatureTable(X_DIM), node_x=FeatureTable.from_tensor(x))
    graph.append(STREAM)
    engine, plain = engines(graph, node_x_dim=3)
    for seed in (0, 0):
        ask_both(engine, plain, questions(seed))


def test_each_query_may_have_a_position_of_its_own():
    engine, plain = engines(graph_of(STREAM))
    for seed in (0, 1, 1):
        positions = torch.randint(241, (12,), generator=torch.Generator().manual_seed(seed))
        ask_both(engine, plain, questions(0), positions)


def test_what_was_computed_is_found_again_while_events_are_appended():
    graph = graph_of(STREAM[:120])
    engine, plain = engines(graph)
    t_last = int(STREAM.t[119])
    src, dst, _ = questions()
    settled, ahead = torch.full((12,), t_last), torch.full((12,), t_last + 50)
    engine.score(src, dst, settled)
    engine.score(src, dst, ahead)
    rows = len({*src.tolist(), *dst.tolist()})
    assert num_found(engine, lambda: engine.score(src, dst, settled)) == rows
    assert num_found(engine, lambda: engine.score(src, dst, ahead)) == rows
    graph.append(STREAM[120:])
    assert num_found(engine, lambda: engine.score(src, dst, settled)) == rows
    used = engine.memo_use.num_asked
    ask_both(engine, plain, (src, dst, ahead))  # what was ahead has come to be
    assert engine.memo_use.num_asked > used + rows


def test_a_change_of_the_past_or_of_a_parameter_forgets_all_rows():
    graph = graph_of(STREAM[:120])
    engine, plain = engines(graph)
    optimizer = torch.optim.Adam(engine.model.parameters(), fused=True)

    def learn():
        sum(parameter.sum() for parameter in engine.model.parameters()).backward()
        optimizer.step()

    def behind_the_back():
        with engine.changing():
            next(engine.model.parameters()).data.mul_(1.1)

    acts = (
        lambda: graph.append(made_events(5, seed=7), allow_late=True),
        lambda: graph.delete(torch.tensor([100])),
        lambda: graph.delete_node(3),
        lambda: graph.retain(max_count=6),
        graph.compact,
        learn,
        lambda: engine.model.load_state_dict(engine.model.state_dict()),
        behind_the_back,
        lambda: engine.model.encoder.layers[0].merge.register_parameter(
            "extra", torch.nn.Parameter(torch.ones(1))
        ),
    )
    asked = questions()
    for act in acts:
        ask_both(engine, plain, asked)
        assert num_found(engine, lambda: engine.score(*asked)) > 0
        before = engine.memo_use
        act()
        ask_both(engine, plain, asked)
        nodes, times = torch.cat(asked[:2]), asked[2].repeat(2)
        rows = len(torch.unique(torch.stack([nodes, times]), dim=1).T)
        assert engine.memo_use.num_asked > before.num_asked + rows, act  # the lower layer, too


def test_an_earlier_past_is_answered_without_rows_of_the_present():
    graph = graph_of(STREAM)
    engine, plain = engines(graph)
    asked = questions()
    before = plain.score(*asked)
    graph.delete(torch.arange(0, 240, 3))
    ask_both(engine, plain, asked)
    assert_close(engine.score(*asked, as_of=239), plain.score(*asked, as_of=239))
    assert not torch.allclose(engine.score(*asked), before)


def test_a_changed_later_event_changes_no_row():
    dst, x = STREAM.dst.clone(), STREAM.x.clone()
    dst[120:], x[120:] = 7, 5.0
    other = changed(STREAM, dst=dst, x=x)
    src, to, _ = questions()
    t = torch.full((12,), int(STREAM.t[120]))
    found = [engines(graph_of(each))[0].score(src, to, t) for each in (STREAM, other)]
    assert torch.equal(*found)


@pytest.mark.parametrize("memo", [600, "2KiB", "20KiB"])
def test_a_memo_keeps_its_budget(memo):
    engine, plain = engines(graph_of(STREAM), memo=memo)
    for seed in range(4):
        ask_both(engine, plain, questions(seed))
        assert 0 < engine.memo_use.nbytes <= parse_bytes(memo)
    used = engine.memo_use
    assert 0 < used.num_rows <= used.nbytes // (8 * 4)


def test_what_is_asked_for_stays_where_room_is_short():
    memo = RowMemo(2, 128 + 10 * (8 + 40 + 32))

    def keys(*nodes):
        nodes = torch.tensor(nodes)
        return nodes, nodes * 3, torch.full_like(nodes, -1)

    def rows(*nodes):
        return torch.tensor(nodes).float().unsqueeze(1).expand(-1, 2)

    memo.add(1, 0, *keys(7), rows(7))
    for node in range(100, 200):
        memo.add(1, 0, *keys(node), rows(node))
        found, missing = memo.find(1, 0, *keys(7, 5))
        assert missing.tolist() == [1]
        assert found[0].tolist() == [7.0, 7.0]
    found, missing = memo.find(1, 0, *keys(*range(185, 200)))
    assert missing.tolist() == list(range(6))
    assert torch.equal(found[6:], rows(*range(191, 200)))
    assert len(memo) == 10


class OwnForward(TGAT):
    """Scores in a way of its own."""

    def forward(self, batch):
        return super().forward(batch)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tgn", {}, "TGN keeps a state that moves on with each event"),
        ("recency", {}, "Recency keeps a state"),
        ("graphmixer", {}, "GraphMixer names no layers whose rows could be kept"),
        ("tgat", {"memo": 100}, "a memo of 100 bytes has no room for a row"),
        ("tgat", {"memo": "much"}, "much"),
        ("tgat", {"strategy": "uniform"}, "a memo is for strategy recent"),
    ],
)
def test_a_memo_where_it_is_of_no_use(name, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        tg.Inference(made_model(name), graph_of(STREAM), **{"memo": MEMO} | options)


def test_a_model_with_a_forward_of_its_own_has_no_memo():
    model = OwnForward(made_model("tgat").config)
    assert type(model).forward is not TemporalModel.forward
    with pytest.raises(ValueError, match="OwnForward defines a forward of its own"):
        tg.Inference(model, graph_of(STREAM), memo=MEMO)
