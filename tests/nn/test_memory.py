"""Memory versions against a dict of all writes, in partitions and after saving."""

import sys
from itertools import islice

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.effort import cases, tries
from helpers.made_tables import with_past
from tgflow.base.peers import PARTS
from tgflow.nn import NodeMemory
from tgflow.nn.memory_table import memory_table

WRITES = st.lists(st.tuples(st.sets(st.integers(0, 9), max_size=6), st.integers(0, 3)), max_size=25)


class DictMemory:
    """Every version written, and the start position of the write that replaced it."""

    def __init__(self, history):
        self.versions = {}
        self.overwritten = {}
        self.history = history
        self.position = 0

    def write(self, nodes, value, position):
        for node in nodes:
            versions = self.versions.setdefault(node, [])
            if versions:
                self.overwritten[node, versions[-1][0]] = self.position
            versions.append((position, value))
        self.position = position

    def read(self, node, position):
        versions = self.versions.get(node, [])
        for i, (at, value) in reversed(list(enumerate(versions))):
            if at <= position:
                current = i == len(versions) - 1
                return value if current or self.keeps(node, at) else 0.0
        return 0.0

    def keeps(self, node, at):
        return self.overwritten[node, at] >= self.position - self.history


def write(memory, nodes, value, position):
    n = len(nodes)
    t = torch.full((n,), position)
    memory.write(
        torch.tensor(nodes, dtype=torch.int64),
        torch.full((n, memory.dim), value),
        t - 1,
        torch.full((n, memory.mail_dim), -value),
        t,
        position,
    )


def numbered(writes):
    """Yield nodes, values and positions of writes; an event has two nodes."""
    position = 0
    for value, (nodes, step) in enumerate(writes, start=1):
        position += max(step, 1, (len(nodes) + 1) // 2)
        yield sorted(nodes), float(value), position


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name, x in left.items():
        assert torch.equal(x, right[name]), name


@settings(max_examples=tries(80), deadline=None)
@given(writes=WRITES, history=st.sampled_from([1, 3, 7, 30, 1000]))
def test_versions_match_a_dict_and_round_trip_through_partitions(writes, history):
    memory, expected, last = with_past(NodeMemory(2, 1), history), DictMemory(history), 0
    for nodes, value, last in numbered(writes):
        write(memory, nodes, value, last)
        expected.write(nodes, value, last)
    queries = [(node, at) for node in range(11) for at in range(last + 2)]
    nodes, position = torch.tensor(queries).t()
    take, again = memory.parted(), NodeMemory(2, 1)
    again.load_parted([take(part) for part in range(PARTS)].__getitem__)
    assert_equal(again.state_dict(), memory.state_dict())
    for each in (memory, again):
        rows = each.read(nodes, position)
        values = [expected.read(*query) for query in queries]
        assert rows.memory[:, 1].tolist() == values
        assert rows.mail[:, 0].tolist() == [-v for v in values]
        assert rows.has_mail.tolist() == [v != 0 for v in values]
        assert bool((rows.clock[:, -1] <= position).all())


@pytest.mark.parametrize("placement", ["model", "host"])
@settings(max_examples=tries(60), deadline=None)
@example([({0, 1, 2, 3}, 1)] * 4, 2, 3, False, False)
@example([({n, n + 1}, 1) for n in range(12)], 2, 3, False, True)
@given(WRITES, st.integers(0, 4), st.sampled_from([0, 3, 1000]), st.booleans(), st.booleans())
def test_frozen_state_is_unchanged_by_writes_beside_its_copies(
    placement, writes, cut, history, is_reset, forgets
):
    memory = with_past(NodeMemory(2, 1, memory_table(3, placement)), history)
    all_writes = [*numbered(writes)]
    cut = cut * len(writes) // 4
    later = iter(all_writes[cut:])
    for each in all_writes[:cut]:
        write(memory, *each)
        if forgets:
            memory.forget(each[-1] - 2, each[-1] - 2)
    expected, take = memory.state_dict(), memory.frozen()
    parted, parts = memory.parted(), [memory.parted()(part) for part in range(PARTS)]
    pages = memory._pages

    def pages_between_writes(size):
        memory._pages = pages
        for node in range(size):
            for nodes, value, position in islice(later, 1):
                write(memory, [*nodes, *range(40, 40 + int(value))], value, position)  # rows move
                if forgets:
                    memory.forget(position, position)
            yield slice(node, node + 1)
        if is_reset:
            memory.reset()

    memory._pages = pages_between_writes
    assert_equal(take(), expected)
    for part, state in enumerate(parts):
        assert_equal(parted(part), state)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep the pages")
def test_pages_of_dropped_versions_are_freed_and_kept_ones_stay():
    memory, expected = with_past(NodeMemory(1024, 1024), 64), DictMemory(64)
    for position in range(1, 400):  # the ring of 128 rows of two pages wraps twice
        write(memory, [position % 9], float(position), position)
        expected.write([position % 9], float(position), position)
        if position == 150:
            saved, take = memory.state_dict(), memory.frozen()
        if position == 250:  # its rows were dropped, and not all of them overwritten
            assert_equal(take(), saved)
        for at in range(max(0, position - 70), position, 7):
            rows = memory.read(torch.arange(9), torch.full((9,), at))
            assert rows.memory[:, -1].tolist() == [expected.read(node, at) for node in range(9)]
        held = int((memory.history.rows != 0).sum()) / 2048
        assert held <= 80  # 65 are kept; of each 4 that are freed at once, half a page stays


@pytest.mark.parametrize("placement", cases(["model", "host"], ["model"]))
@settings(max_examples=tries(80), deadline=None)
@example([({n}, 1) for n in range(25)], 30, 3, [True])
@given(WRITES, st.integers(1, 30), st.integers(0, 12), st.lists(st.booleans(), min_size=1))
def test_rows_of_forgotten_nodes_go_to_others_and_no_read_changes(
    placement, writes, history, horizon, moments
):
    """Whenever they are forgotten, and after saving; new nodes come for ever."""
    made = [with_past(NodeMemory(2, 1, memory_table(3, placement)), history) for _ in range(3)]
    expected, largest, ids, written_at = DictMemory(history), 0, set(), {0.0: 0}
    for number, (drawn, value, last) in enumerate(numbered(writes)):
        nodes = [node + 300 * number // 2 for node in drawn]
        ids |= {*nodes}
        first = max(0, last - horizon)
        for memory, forgets in zip(made, (True, moments[number % len(moments)]), strict=False):
            write(memory, nodes, value, last)
            if forgets:
                memory.forget(first, first)
        made[2].load_parted([made[2].parted()(part) for part in range(PARTS)].__getitem__)
        write(made[2], nodes, value, last)
        made[2].forget(first, first)
        expected.write(nodes, value, last)
        written_at[value] = last
        assert_equal(made[2].state_dict(), made[0].state_dict())
        kept = [node for node in ids if expected.versions[node][-1][0] >= first]
        largest = max(largest, len(kept) + len(nodes))
        assert made[0].num_kept == len(kept)
        ends = [at for node in ids for at, _ in expected.versions[node][1:]]
        assert len(made[0].history) <= sum(at > first for at in ends)
        queries = [(node, at) for node in [*ids, 2] for at in range(first, last + 2)]
        values = [expected.read(*query) for query in queries]
        values = [value if written_at[value] >= first else 0 for value in values]
        asked = torch.tensor(queries).t()
        for memory in made:
            found = memory.read(*asked, since=torch.tensor([first]))
            assert found.memory[:, 1].tolist() == values
            assert found.has_mail.tolist() == [value > 0 for value in values]
    if writes:
        assert made[0].slots.size <= 10 + largest + 1  # ten nodes before the first is forgotten


@settings(max_examples=tries(60), deadline=None)
@given(writes=WRITES, history=st.integers(1, 30))
def test_memory_of_some_nodes_matches_the_memory_of_all(writes, history):
    whole, *some = (with_past(NodeMemory(1, 1), history) for _ in range(3))
    for nodes, value, position in numbered(writes):
        write(whole, nodes, value, position)
        for rank, each in enumerate(some):
            write(each, [node for node in nodes if node % 2 == rank], value, position)
    saved = whole.state_dict()
    for rank, half in enumerate(each.state_dict() for each in some):
        owned = saved["history.origin"][:, 0] % 2 == rank
        for name in ("rows", "clock", "origin"):
            assert torch.equal(half[f"history.{name}"], saved[f"history.{name}"][owned])
        assert torch.equal(half["history.events"], saved["history.events"])


def test_rows_put_into_another_memory_give_the_same_state_and_history():
    memory, other = NodeMemory(3, 2), NodeMemory(3, 2)
    for each in (memory, other):
        each.keep_past(100)
    for position, nodes in enumerate(([0, 1], [1, 4], [4, 0, 2]), 1):
        write(memory, nodes, float(position), 10 * position)
        other.put_rows(memory.rows_of(torch.tensor([*nodes, 9])))  # 9 was not written
        assert_equal(other.state_dict(), memory.state_dict())
    assert other.num_nodes == memory.num_nodes


def test_nodes_that_were_only_read_are_not_saved():
    memory, other = NodeMemory(3, 2), NodeMemory(3, 2)
    for each in (memory, other):
        write(each, [1, 89], 1.0, 4)
    other.read(torch.tensor([500, 1000]), torch.tensor([40, 40]))
    assert other.num_nodes > memory.num_nodes
    for part in range(PARTS):
        assert_equal(memory.parted()(part), other.parted()(part))


def test_old_position_without_history_is_an_error():
    memory = NodeMemory(2, 0)
    write(memory, [3], 1.0, 20)
    message = "node 3 is requested as of position 10, but was written at 20"
    with pytest.raises(ValueError, match=message):
        memory.read(torch.tensor([3]), torch.tensor([10]))


def test_incompatible_memory_input_is_refused_and_changes_nothing():
    memory = with_past(NodeMemory(1, 1), 10)
    for position in (5, 6, 7):
        write(memory, [1], float(position), position)
    good = memory.state_dict()
    for name, wrong, error in (
        ("history.events", torch.tensor([6, 0]), "a history of 0 events"),
        ("history.origin", torch.tensor([[7, 5], [7, 6]]), "nodes that the saved memory lacks"),
        ("history.origin", torch.tensor([[1, 6], [1, 5]]), "positions that do not rise"),
        ("history.origin", torch.tensor([[1, 5], [1, 8]]), "positions that do not rise"),
        ("history.origin", torch.tensor([5, 6]), r"history.origin is torch.int64 \(2,\)"),
        ("history.rows", torch.zeros(0, 2), r"history.rows is torch.float32 \(0, 2\)"),
        ("history.clock", torch.zeros(2, 3), "history.clock is torch.float32"),
        ("history.events", torch.tensor([6]), r"history.events is torch.int64 \(1,\)"),
        ("history.events", torch.tensor([-6, 10]), "a history of 10 events to -6"),
        ("clock", torch.zeros(0, 4, dtype=torch.int64), "memory's clock is"),
        ("rows", torch.zeros(2, 5), r"memory's rows is torch.float32 \(2, 5\)"),
        ("rows", torch.zeros(()), "memory's rows is"),
    ):
        with pytest.raises(ValueError, match=error):
            memory.load_state_dict(good | {name: wrong})
    other = with_past(NodeMemory(1, 1), 5)
    mixed = [memory.parted()] * (PARTS - 1) + [other.parted()]
    with pytest.raises(ValueError, match="histories of different events"):
        memory.load_parted(lambda part: mixed[part](part))
    with pytest.raises(KeyError):
        memory.load_parted(lambda part: {})
    with pytest.raises(ValueError, match="events to keep must be at least 0, got -1"):
        memory.keep_past(-1)
    assert_equal(memory.state_dict(), good)
