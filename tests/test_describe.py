"""Public objects show themselves in a line, in a notebook as a table, and their fields in help."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tgflow as tg
from helpers.public_objects import public_classes, public_objects
from tgflow.describe import MOST_CHARACTERS, Span, summary

VALUES = ("tensor(", "array(", " object at 0x")
"""What a line has that shows values, or nothing."""


@pytest.fixture(scope="module")
def objects():
    return public_objects()


def test_there_is_an_object_of_every_public_class(objects):
    assert public_classes().keys() <= objects.keys()
    for name, kind in public_classes().items():
        assert isinstance(objects[name], kind), name


def test_every_object_shows_itself_in_a_line_without_values(objects):
    for name, thing in objects.items():
        text = repr(thing)
        assert text.startswith(f"{type(thing).__name__}("), name
        assert not [each for each in VALUES if each in text], text
        if not isinstance(thing, torch.nn.Module):
            assert "\n" not in text, text
            assert len(text) < 1_000, text


def test_every_object_shows_itself_as_a_table(objects):
    for name, thing in objects.items():
        html = thing._repr_html_()
        assert html.startswith(f"<table><caption>{type(thing).__name__}</caption>"), name
        assert not [each for each in VALUES if each in html], html


def test_lines_have_counts_and_ranges(objects):
    log = objects["EventLog"]
    first, last = int(log.read(0, 1).t), log.t_last
    assert f"num_events=60, num_nodes={log.num_nodes}, t={first}..{last}" in repr(log)
    assert "undirected" in repr(objects["TemporalGraph"])
    assert "position=40, num_steps=2, " in repr(objects["ContinualTrainer"])
    assert repr(objects["Count"]) == "Count(of='pair', depth=1, half_life=None, clock='seconds')"
    assert repr(objects["Sampler"]) == "Sampler(strategy='window', span=60)"
    assert "num_ids=4, kind='strings'" in repr(objects["NodeIds"])
    batch = tg.EventBatch(*torch.tensor([[0, 4, 2], [5, 6, 7], [10, 20, 30]]))
    columns = "src=int64[3] 0..4, dst=int64[3] 5..7, t=int64[3] 10..30"
    assert repr(batch) == f"EventBatch({columns}, x=None, label=None, weight=None, new_nodes=None)"


def test_a_checkpoint_says_what_it_holds(objects):
    text = repr(objects["Checkpoint"])
    assert "trainer='continual'" in text
    assert "num_tensors=" in text
    assert "num_bytes=" in text


def test_a_model_says_its_size_above_its_layers(objects):
    model = objects["TGN"]
    lines = repr(model).splitlines()
    size = sum(x.numel() for x in model.parameters())
    assert lines[0] == "TGN("
    assert lines[1].strip().startswith(f"num_parameters={size}, fanouts=(3,), edge_x_dim=2")
    assert any("(decoder): LinkDecoder" in line for line in lines)


def test_a_table_is_escaped(objects):
    html = objects["ScoredPairs"]._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html


def test_empty_things_show_themselves():
    assert repr(tg.TemporalGraph().log) == "EventLog(num_events=0, num_nodes=0, t=None)"
    none = torch.empty(0, dtype=torch.int64)
    assert repr(tg.EventBatch(none, none, none)).startswith("EventBatch(src=int64[0], dst=int64[0]")


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5))
def test_the_range_of_a_tensor_is_from_its_least_to_its_largest(values):
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
def test_a_value_in_a_few_words(value, text):
    assert summary(value) == text


def test_a_long_text_is_cut():
    assert len(summary("x" * 1_000)) == MOST_CHARACTERS


def test_help_explains_every_field():
    for name, kind in public_classes().items():
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        names = [field.name for field in fields] or getattr(kind, "_fields", ())
        text = inspect.getdoc(kind) or ""
        assert not [field for field in names if f"{field}:" not in text], name


def test_help_of_settings_says_what_the_command_line_says():
    text = inspect.getdoc(tg.ContinualConfig) or ""
    assert (
        "\nFields:\n    seed: Seed of negatives, replay, sampled neighbors and dropout.\n" in text
    )
    assert "    batch_size: Events per batch.\n" in text
