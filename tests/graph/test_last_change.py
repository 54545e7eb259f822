"""The latest change of the past: what tells whoever keeps answers that they are out of date."""

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
