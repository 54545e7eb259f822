"""Memory and messages on a device: the bits of the CPU's, and nothing is waited for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.devices import apart, cuda, place_of
from helpers.effort import tries
from helpers.emulator.tensors import watching
from tgflow.nn import NodeMemory, aggregate

PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12)
for_each_place = pytest.mark.parametrize("device", [apart, cuda])


def mail_of(pairs, aggregator, at):
    src, dst = torch.tensor(pairs).t()
    t = torch.arange(len(pairs)) // 2
    x = torch.rand(2 * len(pairs), 3, generator=torch.Generator().manual_seed(len(pairs)))
    columns = (column.to(at, non_blocking=True) for column in (src, dst, t, x))
    return aggregate(*columns, aggregator)


@for_each_place
@settings(max_examples=tries(40), deadline=None)
@given(pairs=PAIRS, aggregator=st.sampled_from(["last", "mean"]))
def test_messages_of_a_node_are_one_on_a_device_too(device, pairs, aggregator):
    expected = mail_of(pairs, aggregator, "cpu")
    found = mail_of(pairs, aggregator, place_of(device))
    assert expected.is_last is None
    last = found.is_last.cpu()
    for name in ("row", "node", "t"):
        assert torch.equal(getattr(found, name).cpu()[last], getattr(expected, name)), name
    torch.testing.assert_close(found.x.cpu()[last], expected.x)
    for node in expected.node.tolist():  # all rows of a node are alike
        rows = found.node.cpu() == node
        assert len(found.x.cpu()[rows].unique(dim=0)) == 1


def step(memory: NodeMemory, pairs, position: int) -> None:
    """Read the nodes of some events, and write them mail."""
    at = memory.clock.device
    mail = mail_of(pairs, "last", at)
    rows = memory.read(mail.node, torch.full_like(mail.node, position))
    where = torch.tensor([position]).to(at, non_blocking=True)
    new = rows.memory + position
    memory.write(mail.node, new, mail.t, mail.x[:, :1], mail.t, where, mail.is_last)


@for_each_place
@settings(max_examples=tries(20), deadline=None)
@given(steps=st.lists(PAIRS, max_size=12), history=st.sampled_from([0, 3, 50]))
def test_memory_of_a_device_has_the_states_of_the_cpus(device, steps, history):
    plain, placed = NodeMemory(2, 1), NodeMemory(2, 1).to(place_of(device))
    for memory in (plain, placed):
        memory.keep_past(history)
    for position, pairs in enumerate(steps, start=1):
        step(plain, pairs, position)
        with placed.covering(100):
            step(placed, pairs, position)
    for name, x in plain.state_dict().items():
        assert torch.equal(placed.state_dict()[name].cpu(), x), name


@pytest.mark.parametrize("device", [apart])
@pytest.mark.parametrize("history", [0, 50])
def test_a_step_of_memory_waits_for_nothing(device, history):
    memory = NodeMemory(2, 1).to(place_of(device))
    memory.keep_past(history)
    with watching() as watch, memory.covering(10):
        for position in range(1, 5):
            step(memory, [(1, 2), (1, 3)], position)
    assert not watch.waits


@for_each_place
@pytest.mark.parametrize("history", [3, 50])
def test_a_moved_memory_continues_with_its_past(device, history):
    plain, moved = NodeMemory(2, 1), NodeMemory(2, 1)
    for position, pairs in enumerate([[(1, 2)], [(1, 3), (2, 3)], [(0, 1)], [(9, 1)]], start=1):
        for memory in (plain, moved):
            memory.keep_past(history)
            step(memory, pairs, position)
        moved.to(place_of(device if position % 2 else None))
    for name, x in plain.state_dict().items():
        assert torch.equal(moved.state_dict()[name].cpu(), x), name
