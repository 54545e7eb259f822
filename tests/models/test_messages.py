"""Messages of events to a model's state: computed without side effects, sliced, stored."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.made_models import made_events, made_model, plan_for
from tgflow.models import MODELS
from tgflow.nn.messages import Messages, NewEvents, last_rows
from tgflow.plan import ExperienceReplay

STATEFUL = [
    *((name, {}) for name in MODELS if made_model(name).state is not None),
    ("tgn", {"aggregator": "mean"}),
    ("tgn+pairs", {"layers": 2}),
]


def batches_of(model, replayed=0.5):
    """Three batches, the last one with replayed events if the model has parameters."""
    learns = any(True for _ in model.parameters())
    replay = ExperienceReplay(replayed, half_life=50) if learns and replayed else None
    plan = plan_for(model, made_events(60), batch_size=20, replay=replay)
    return [plan.batch(1, index) for index in range(3)]


@torch.no_grad()
def stored(name, settings, change, replayed=0.5):
    """Return the state after batches whose messages go through `change(batch, messages)`."""
    model = made_model(name, **settings).eval()
    model.state.keep_past(60)
    for batch in batches_of(model, replayed):
        messages = model.messages(batch, model(batch))
        model.store(NewEvents.of(batch), change(batch, messages))
    return model.state.state_dict()


@pytest.mark.parametrize(("name", "settings"), STATEFUL)
def test_only_message_rows_that_are_read_are_required(name, settings):
    def only_read(batch, messages):
        read = messages.rows_read(batch.host, batch.num_new)
        columns = []
        for column in messages.columns:
            other = column.new_full(column.shape, math.nan if column.is_floating_point() else -9)
            columns.append(other.index_copy(0, read, column.index_select(0, read)))
        return Messages(tuple(columns), messages.per_event, messages.last_only)

    found = stored(name, settings, only_read)
    expected = stored(name, settings, lambda batch, messages: messages)
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key


@pytest.mark.parametrize(("name", "settings"), STATEFUL)
def test_replayed_events_are_not_stored(name, settings):
    found, expected = (
        stored(name, settings, lambda batch, messages: messages, replayed) for replayed in (0.5, 0)
    )
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20))
def test_last_message_row_of_each_node_follows_from_the_events(pairs):
    last = {}
    for number, node in enumerate(node for pair in pairs for node in pair):
        last[node] = number
    src, dst = (torch.tensor([pair[i] for pair in pairs], dtype=torch.int64) for i in (0, 1))
    assert last_rows(src, dst).tolist() == sorted(last.values())
