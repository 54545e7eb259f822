"""Node memory in tables matches the plain tensor for any row placement."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.devices import apart, cuda, place_of
from helpers.effort import tries
from helpers.emulator.device import EmulatedDevice
from helpers.made_tables import for_each_memory_table, memory_table_of, with_past
from tgflow.cuda.device import register_device
from tgflow.graph.tables import FeatureTable
from tgflow.nn import NodeMemory, memory
from tgflow.nn.memory_table import PlacedTable

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sets(st.integers(0, 150), max_size=6)),
        st.tuples(st.just("read"), st.lists(st.integers(0, 200), max_size=8)),
        st.just(("reset", ())),
        st.just(("save", ())),
        st.just(("load", ())),
    ),
    max_size=15,
)


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch):
    monkeypatch.setattr(memory, "_PAGE_BYTES", 12 * 20)


def write(to, nodes, step):
    generator = torch.Generator().manual_seed(step)
    n, t = len(nodes), torch.full((len(nodes),), step)
    own, mail = (torch.randn(n, dim, generator=generator) for dim in (to.dim, to.mail_dim))
    columns = (torch.tensor(nodes, dtype=torch.int64), own, t - 1, mail, t)
    to.write(*(column.to(to.clock.device) for column in columns), step)


def assert_same(state, expected):
    assert state.keys() == expected.keys()
    for name, x in expected.items():
        assert torch.equal(state[name].cpu(), x), name


@for_each_memory_table
@settings(max_examples=tries(25, 8))
@given(steps=STEPS, data=st.data())
def test_memory_in_a_table_matches_plain_memory(placement, device, steps, data):
    plain = with_past(NodeMemory(2, 1), 7)
    table = memory_table_of(placement, device, 3)
    placed = with_past(NodeMemory(2, 1, table), 7).to(place_of(device))
    saved = [plain.state_dict(), placed.state_dict()]
    for step, (what, nodes) in enumerate(steps, start=1):
        if what == "save":
            saved = [plain.state_dict(), placed.state_dict()]
        for i, each in enumerate((plain, placed)):
            if what == "write":
                write(each, sorted(nodes), step)
            elif what == "reset":
                each.reset()
            elif what == "load":
                each.load_state_dict(saved[1 - i])  # the other's
        if what == "read":
            at = data.draw(st.lists(st.integers(0, step), min_size=len(nodes), max_size=len(nodes)))
            asked = torch.tensor([nodes, at], dtype=torch.int64)
            expected, found = plain.read(*asked), placed.read(*asked.to(placed.clock.device))
            assert torch.equal(found.state.cpu(), expected.state)
            assert torch.equal(found.clock.cpu(), expected.clock)
        assert_same(placed.state_dict(), plain.state_dict())


def test_incompatible_memory_table_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r'on disk, whose rows are immutable; use placement="uva"'):
        NodeMemory(2, 1, FeatureTable(3, placement="disk"))
    used = FeatureTable(3)
    used.append(torch.zeros(2, 3))
    for table, told in (
        (used, "got 2 rows of 3 float32"),
        (FeatureTable(4), "got 0 rows of 4 float32"),
        (FeatureTable(3, torch.float64), "got 0 rows of 3 float64"),
    ):
        with pytest.raises(ValueError, match=rf"must be empty and of 3 float32.*{told}"):
            NodeMemory(2, 1, table)


@pytest.mark.parametrize("device", [apart, cuda])
@pytest.mark.parametrize("placement", ["host", "uva"])
def test_table_must_be_on_the_device_of_the_model(device, placement, monkeypatch):
    if placement == "uva" and device != "apart":
        pytest.skip("needs a GPU for the table, too")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    if device == "apart":
        register_device(EmulatedDevice.apart())
    placed = NodeMemory(2, 1, PlacedTable(3, placement)).to(place_of(device))
    write(placed, [3], 1)
    assert placed.table.placement == placed.table.table.placement == placement
    asked = torch.tensor([[3], [5]], device=place_of(device))
    assert placed.read(*asked).state.device.type == place_of(device).type


@pytest.mark.parametrize("device", [apart, cuda])
@pytest.mark.parametrize("history", [3, 50])
def test_moved_memory_keeps_its_history(device, history):
    plain, moved = (with_past(NodeMemory(2, 1), history) for _ in range(2))
    for step, nodes in enumerate([[1, 2], [1, 2, 3], [0, 1], [1, 9]], start=1):
        for each in (plain, moved):
            write(each, nodes, step)
        moved.to(place_of(device if step % 2 else None))
    assert_same(moved.state_dict(), plain.state_dict())
