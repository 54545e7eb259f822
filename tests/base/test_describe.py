"""Public objects have a one-line repr, a notebook table, and documented fields."""

import dataclasses
import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tgflow as tg
from helpers.made_streams import made_events, small_tgn
from tgflow.base.describe import MOST_CHARACTERS, Span, summary

CLASSES = {
    name: kind
    for name in tg.__all__
    if inspect.isclass(kind := getattr(tg, name))
    and not issubclass(kind, BaseException)
    and not getattr(kind, "_is_protocol", False)
    and not inspect.isabstract(kind)
}


@pytest.fixture(scope="module")
def trainer():
    made = tg.ContinualTrainer(
        small_tgn(), tg.TemporalGraph(edge_x_dim=2), tg.ContinualConfig(batch_size=20)
    )
    made.run([made_events(40, x_dim=2)])
    return made


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_class_has_a_repr_and_documents_its_fields(name):
    kind = CLASSES[name]
    assert kind.__repr__ is not object.__repr__
    assert hasattr(kind, "_repr_html_")
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    names = [field.name for field in fields] or getattr(kind, "_fields", ())
    text = inspect.getdoc(kind) or ""
    assert not [field for field in names if f"{field}:" not in text]


def test_reprs_have_counts_and_ranges_but_no_values(trainer):
    events = made_events(60, x_dim=2)
    graph = tg.TemporalGraph.from_events(events)
    checkpoint = trainer.checkpoint()
    ids = tg.NodeIds()
    ids.encode(["ann", "bob"], ["cy", "di"])
    expected = [
        (graph.log, f"EventLog(num_events=60, num_nodes={graph.num_nodes}, t={events.t[0]}.."),
        (graph, "undirected"),
        (trainer, "ContinualTrainer(model='TGN', position=40, num_steps=2, "),
        (checkpoint, "trainer='continual'"),
        (tg.counts.Count("pair"), "Count(of='pair', depth=1, half_life=None, clock='seconds')"),
        (tg.Sampler.window(width=60), "Sampler(strategy='window', span=60)"),
        (ids, "num_ids=4, kind='strings'"),
        (tg.TemporalGraph().log, "EventLog(num_events=0, num_nodes=0, t=None)"),
    ]
    for thing, text in expected:
        html = thing._repr_html_()
        assert text in repr(thing)
        assert html.startswith(f"<table><caption>{type(thing).__name__}</caption>")
        assert not [x for x in ("tensor(", "array(", " object at 0x") if x in repr(thing) + html]
        assert "\n" not in repr(thing)
    assert "num_tensors=" in repr(checkpoint)
    batch = tg.EventBatch(*torch.tensor([[0, 4, 2], [5, 6, 7], [10, 20, 30]]))
    columns = "src=int64[3] 0..4, dst=int64[3] 5..7, t=int64[3] 10..30"
    none = "x=None, label=None, weight=None, relation=None, new_nodes=None"
    assert repr(batch) == f"EventBatch({columns}, {none})"


def test_model_repr_has_its_size_above_its_layers(trainer):
    lines = repr(trainer.model).splitlines()
    size = sum(x.numel() for x in trainer.model.parameters())
    assert lines[0] == "TGN("
    assert f"num_parameters={size}, " in lines[1]
    assert any("(decoder): LinkDecoder" in line for line in lines)


def test_table_is_escaped():
    pairs = tg.serve.ScoredPairs(["<b>"], ["d"], torch.ones(1), *torch.rand(2, 1).double())
    assert "&lt;b&gt;" in pairs._repr_html_()
    assert "<b>" not in pairs._repr_html_()


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5))
def test_range_of_a_tensor_is_its_minimum_and_maximum(values):
    text = summary(torch.tensor(values))
    assert text == f"int64[{len(values)}] {min(values)}..{max(values)}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        (59_835, "59835"),
        (1e-4, "0.0001"),
        ("a\x1b\n", r"'a\x1b\n'"),
        ((20,), "(20,)"),
        ([20, 10], "[20, 10]"),
        ({"ap": 0.5}, "{'ap': 0.5}"),
        (list(range(21)), "21 items"),
        (["word" * 30, "more"], "2 items"),
        (Span(3, 7), "3..7"),
        (torch.tensor([True, False, True]), "bool[3] 2 true"),
        (torch.tensor(1.5), "float32[] 1.5..1.5"),
        (torch.tensor([1.0, float("nan")]), "float32[2] nan..nan"),
        (torch.empty(0, 4).numpy(), "float32[0, 4]"),
        (object(), "object"),
    ],
)
def test_summary_of_a_value(value, text):
    assert summary(value) == text


def test_long_text_is_cut():
    assert len(summary("x" * 1_000)) == MOST_CHARACTERS


def test_help_of_settings_matches_the_command_line():
    text = inspect.getdoc(tg.ContinualConfig) or ""
    assert (
        "\nFields:\n    seed: Seed of negatives, replay, sampled neighbors and dropout.\n" in text
    )
    assert "    batch_size: Events per batch.\n" in text
