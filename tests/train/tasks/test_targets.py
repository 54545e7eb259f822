"""Label heuristics and histories, against scans of all earlier events."""

from collections import Counter

import pytest
import torch

from helpers.made_streams import codes_of, made_events, rows_of, tied, with_labels
from tgflow import EventBatch, TemporalGraph
from tgflow.graph.events import NO_LABEL
from tgflow.train.tasks.baselines import BASELINES, WINDOW, LabelRules
from tgflow.train.tasks.targets import DEPTH, LabelHistory


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


def test_unknown_labels_are_as_events_that_never_were():
    """Histories and heuristics are those of a log of the events with known labels alone."""
    events = tied(200)
    is_known = torch.arange(200) % 20 == 3  # so that most of the last events of a list are unknown
    label = events.label.where(is_known, NO_LABEL)
    sparse, rows = with_labels(events, label), is_known.nonzero().flatten()
    few = EventBatch(events.src[rows], events.dst[rows], events.t[rows], label=label[rows])
    mixed, alone = history_of(sparse), history_of(few)
    eid = torch.arange(200)
    asked = events.src, events.dst, events.t
    for found, expected in zip(mixed.past_of(*asked), alone.past_of(*asked), strict=True):
        assert torch.equal(found, expected)
    assert (mixed.past_of(*asked)[0] >= 0).any()
    rules = (LabelRules(each._log, each) for each in (mixed, alone))
    [(_, said), (_, expected)] = (
        [*next(each.predicted(0, n))] for each, n in zip(rules, (200, len(rows)), strict=True)
    )
    for name, scores in expected.items():
        assert torch.equal(said[name][rows], scores), name
    assert (mixed.classes(eid) >= 0).tolist() == is_known.tolist()


@pytest.mark.parametrize("delay", [0, 5])
def test_past_labels_of_an_event_match_a_scan_of_earlier_events(delay):
    events = tied(60)
    history, codes = history_of(events, delay=delay), codes_of(events, 8)
    eid = torch.tensor([59, 3, 0, 31, 30, 31])
    past, ages = history.past(eid)
    for row, each in enumerate(eid.tolist()):
        assert (past[row].tolist(), ages[row].tolist()) == seen_by_scan(events, codes, each, delay)


def test_binary_classes_are_signs_and_other_labels_are_refused():
    events = with_labels(made_events(4), torch.tensor([-1, 0, 1, NO_LABEL]))
    assert history_of(events, num_classes=2).classes(torch.arange(4)).tolist() == [0, 0, 1, -1]
    events = with_labels(made_events(3), torch.tensor([1, 2, 1]))
    with pytest.raises(
        ValueError, match=r"label 2 is none of 0 and 1, or -1 and 1.*positive_label"
    ):
        history_of(events, num_classes=2).upto(3)


def test_missing_labels_and_too_many_classes_are_refused():
    with pytest.raises(ValueError, match=r"no labels; name their column by target="):
        history_of(made_events(3)).upto(3)
    events = with_labels(made_events(4), torch.tensor([5, 6, 7, 9]))
    with pytest.raises(ValueError, match=r"label 9 would be class 4 of 3.*classes="):
        history_of(events, num_classes=3).upto(4)


def said_by_scan(events, codes, eid, delay):
    """Return the score of each class by each rule, before tie-breaking and defaults."""
    rows = rows_of(events)
    src, dst, t, _ = rows[eid]
    known = [p for p, row in enumerate(rows) if row[2] + delay < t]
    own = [codes[p] for p in known if rows[p][0] == src]
    pair = [codes[p] for p in known if rows[p][:2] == (src, dst)]
    average = Counter({own[0]: 1.0}) if own else Counter()
    for code in own[1:]:
        average = Counter({c: w * (WINDOW - 1) / WINDOW for c, w in average.items()})
        average[code] += 1 / WINDOW
    return {
        "majority": Counter(codes[p] for p in known),
        "source_last": Counter(own[-1:]),
        "source_most": Counter(own),
        "source_average": average,
        "pair_last": Counter(pair[-1:]),
    }


@pytest.mark.parametrize("delay", [0, 4])
def test_heuristics_match_a_scan(delay):
    events = tied(80)
    codes = codes_of(events, 8)
    graph = TemporalGraph.from_events(events, "directed")
    rules = LabelRules(graph.log, LabelHistory(graph, 8, delay))
    [(eid, said)] = rules.predicted(20, 80)
    assert eid.tolist() == list(range(20, 80))
    assert set(said) == set(BASELINES)
    for row, each in enumerate(eid.tolist()):
        scanned = said_by_scan(events, codes, each, delay)
        majority = scanned["majority"]
        for rule, weights in scanned.items():
            instead = scanned["source_most"] if rule == "pair_last" else None
            share = weights or instead or majority
            total = sum(share.values())
            expected = torch.tensor([share[code] / total for code in range(8)])
            found = said[rule][row] / said[rule][row].sum()
            assert torch.allclose(found.float(), expected, atol=3e-3), (rule, each)


def test_tie_is_broken_by_the_more_frequent_label():
    events = EventBatch(
        *torch.tensor([[1, 1, 1, 0, 0, 0], [2, 2, 3, 2, 3, 4], [0, 1, 2, 3, 4, 5]]),
        label=torch.tensor([9, 9, 9, 5, 9, 5]),
    )
    graph = TemporalGraph.from_events(events, "directed")
    [(_, said)] = LabelRules(graph.log, LabelHistory(graph, 3)).predicted(0, 6)
    assert said["source_most"][5].argmax() == 0  # one 5 and one 9 of source 0, and 9 occurs more
    assert said["pair_last"][5].argmax() == 0  # the pair has no history
    assert said["majority"][0].sum() == 0  # no history at all
