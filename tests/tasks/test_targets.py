"""Which labels an event sees: those of earlier events, once they are known, and no others."""

import pytest
import torch

from helpers.labeled_streams import codes_of, rows_of, tied, with_labels
from helpers.made_streams import made_events
from tgflow.graph import TemporalGraph
from tgflow.tasks.targets import DEPTH, LabelHistory


def history_of(events, num_classes=8, delay=0):
    return LabelHistory(TemporalGraph.from_events(events, "directed"), num_classes, delay)


def seen_by_scan(events, codes, eid, delay):
    """Return the classes of the four lists, newest first, found by reading all events."""
    rows = rows_of(events)
    src, dst, t, _ = rows[eid]
    known = [p for p, row in enumerate(rows) if row[2] + delay < t]
    lists = (
        [p for p in known if rows[p][:2] == (src, dst)],
        [p for p in known if rows[p][:2] == (dst, src)],
        [p for p in known if rows[p][0] == src],
        [p for p in known if rows[p][1] == dst],
    )
    classes = [[codes[p] for p in reversed(each)][:DEPTH] for each in lists]
    ages = [t - rows[each[-1]][2] if each else -1 for each in lists]
    return [each + [-1] * (DEPTH - len(each)) for each in classes], ages


@pytest.mark.parametrize("delay", [0, 5])
def test_an_event_sees_the_labels_that_a_scan_of_earlier_events_finds(delay):
    events = tied(60)
    history, codes = history_of(events, delay=delay), codes_of(events, 8)
    eid = torch.tensor([59, 3, 0, 31, 30, 31])
    past, ages = history.past(eid)
    for row, each in enumerate(eid.tolist()):
        assert (past[row].tolist(), ages[row].tolist()) == seen_by_scan(events, codes, each, delay)


def test_two_classes_are_labels_above_0_and_others():
    events = with_labels(made_events(3), torch.tensor([-1, 0, 5]))
    assert history_of(events, num_classes=2).classes(torch.arange(3)).tolist() == [0, 0, 1]


def test_missing_labels_and_too_many_classes_are_refused():
    with pytest.raises(ValueError, match=r"no labels; name their column by target="):
        history_of(made_events(3)).upto(3)
    events = with_labels(made_events(4), torch.tensor([5, 6, 7, 9]))
    with pytest.raises(ValueError, match=r"label 9 is the one after 3 others.*classes="):
        history_of(events, num_classes=3).upto(4)
