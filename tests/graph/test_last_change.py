"""The latest change of the past: what tells whoever keeps answers that they are out of date."""

import threading

import pytest
import torch
from torch import Tensor

from helpers.strategies import graph_events
from tgflow.graph import TemporalGraph


def test_the_last_change_is_one_object_until_the_next() -> None:
    graph = TemporalGraph.from_events(graph_events((0, 1, 5), (1, 2, 9)))
    assert graph.last_change is None
    graph.append(graph_events((0, 2, 9)))
    assert graph.last_change is None
    graph.append(graph_events((0, 3, 6), (0, 3, 7)), allow_late=True)
    late = graph.last_change
    assert late is not None
    assert (late.kind, late.position, late.stop) == ("append_late", 3, 5)
    graph.append(graph_events((0, 1, 10)))
    assert graph.last_change is late
    for _ in range(4):  # the record of equal cycles is cut short, the last change is another
        before = graph.last_change
        graph.retain(max_count=1)
        graph.compact()
        assert graph.last_change is graph.mutations[-1] is not before
    assert graph.last_change.stop == 6


def test_the_last_change_waits_for_one_that_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = TemporalGraph.from_events(graph_events((0, 1, 5), (1, 2, 9)))
    entered, go_on, found = threading.Event(), threading.Event(), []
    remove = graph.backend.remove

    def slow(eid: Tensor) -> int:
        removed = remove(eid)  # seen, and not noted yet
        entered.set()
        go_on.wait(30)
        return removed

    monkeypatch.setattr(graph.backend, "remove", slow)
    change = threading.Thread(target=lambda: graph.delete(torch.tensor([0])))
    change.start()
    entered.wait(30)
    look = threading.Thread(target=lambda: found.append(graph.last_change))
    look.start()
    look.join(0.05)
    assert found == []
    go_on.set()
    look.join()
    change.join()
    assert found[0] is graph.mutations[0]
