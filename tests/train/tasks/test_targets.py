"""Label heuristics and histories, against scans of all earlier events."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from helpers.effort import cases
from helpers.made_streams import codes_of, made_events, rows_of, tied, with_labels
from tgflow import EventBatch, TemporalGraph
from tgflow.checkpoint import Checkpoint
from tgflow.graph.events import NO_LABEL, LateLabels
from tgflow.graph.log import EventLog, Horizon
from tgflow.train.tasks.baselines import BASELINES, WINDOW, LabelRules
from tgflow.train.tasks.targets import DEPTH, LabelHistory
from tgflow.train.trainer_state import graph_of, save_graph


def history_of(events, num_classes=8, delay=0):
    return LabelHistory(TemporalGraph.from_events(events, "directed"), num_classes, delay)


def past_of(history, events):
    """Return the classes and ages visible to questions about events at the log's end."""
    view = history.asked(events.t, torch.full_like(events.t, len(history._log)))
    return history.past_at(history.last_of(events.src, events.dst, view), view)


def test_unknown_labels_are_as_events_that_never_were():
    """Histories and heuristics are those of a log of the events with known labels alone."""
    events = tied(200)
    is_known = torch.arange(200) % 20 == 3  # so that most of the last events of a list are unknown
    label = events.label.where(is_known, NO_LABEL)
    sparse, rows = with_labels(events, label), is_known.nonzero().flatten()
    few = EventBatch(events.src[rows], events.dst[rows], events.t[rows], label=label[rows])
    mixed, alone = history_of(sparse), history_of(few)
    eid = torch.arange(200)
    found, expected = (past_of(each, events) for each in (mixed, alone))
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert (found[0] >= 0).any()
    rules = (LabelRules(each._log, each) for each in (mixed, alone))
    [(_, said), (_, expected)] = (
        [*next(each.predicted(0, n))] for each, n in zip(rules, (200, len(rows)), strict=True)
    )
    for name, scores in expected.items():
        assert torch.equal(said[name][rows], scores), name
    assert (mixed.classes(eid) >= 0).tolist() == is_known.tolist()


class LateScan:
    """Events with labels of their own, some late ones, and what is seen of them, by scans."""

    def __init__(self, seed, classes=3, delay=2):
        g = torch.Generator().manual_seed(seed)
        events = tied(40, num_classes=classes, seed=seed)
        has_own = torch.rand(40, generator=g) < 0.4
        self.events = with_labels(events, events.label.where(has_own, NO_LABEL))
        self.entries, self.delay, self.classes = [], delay, classes
        graph = TemporalGraph("directed")
        self.history = LabelHistory(graph, classes, delay)
        for at in range(41):
            for _ in range(int(torch.randint(3, (), generator=g)) if at else 0):
                eid = int(torch.randint(at, (), generator=g))
                label = 7 * int(torch.randint(classes, (), generator=g))
                label = NO_LABEL if torch.rand((), generator=g) < 0.2 else label
                now = int(self.events.t[at - 1])
                t = now + int(torch.randint(-6, 4, (), generator=g))
                if graph.log.add_labels(LateLabels([eid], [label], [t])).repeated == 0:
                    self.entries.append((eid, label, t, at))
            if at < 40:
                graph.append(self.events[at : at + 1])
        self.times = self.events.t.tolist()

    def visible(self, t, limit, at=None):
        """Return visible late labels by event, in order: of a stored event at `at`, or asked."""
        keys = []
        for number, (eid, label, own_t, written) in enumerate(self.entries):
            later = [p for p, time in enumerate(self.times[:limit]) if time > own_t]
            known = max(later[0] if later else limit, written)
            if at is None and sum(time <= t for time in self.times) < limit:  # about the past
                is_seen = known < sum(time <= t for time in self.times)
            else:
                is_seen = own_t < t and written <= limit and (at is None or known <= at)
            if is_seen:
                keys.append((known, own_t, number, eid, label))
        return [(eid, label) for *_, eid, label in sorted(keys)]

    def past(self, u, v, t, limit, at=None):
        """Return the events of the four lists, and the labels seen of them."""
        late = self.visible(t, limit, at)
        label = dict(late)
        events = rows_of(self.events)[:limit]
        own = [p for p, row in enumerate(events) if row[2] + self.delay < t and row[3] != NO_LABEL]
        seen = {p: events[p][3] for p in own} | label
        lists = []
        for chosen in ((u, v), (v, u), (u, None), (None, v)):

            def is_in(p, chosen=chosen):
                pair = zip(events[p][:2], chosen, strict=True)
                return seen[p] != NO_LABEL and all(b in (a, None) for a, b in pair)

            known = [p for p in own if is_in(p)][-DEPTH:]
            order = list(dict.fromkeys(eid for eid, _ in reversed(late)))
            known += [p for p in order if is_in(p)][:DEPTH]
            lists.append(sorted(set(known), reverse=True)[:DEPTH])
        return lists, seen


@pytest.mark.parametrize("seed", cases(range(4), [0]))
def test_late_labels_are_seen_from_their_time_on_as_by_scans(seed):
    """By stored events, and by questions about any time as of any position."""
    made = LateScan(seed, delay=(2, 0, 5, 1)[seed])
    history, events, log = made.history, made.events, made.history._log
    eid = torch.arange(40)
    history.upto(40)
    codes = history.codes
    past, ages = history.past(eid)
    questions = [(row, t, limit, None) for row in (0, 7, 23) for limit in (0, 9, 30, 40)
                 for t in (0, *range(made.times[-1] - 3, made.times[-1] + 5))]  # fmt: skip
    queries = [(p, made.times[p], p, p) for p in range(40)] + questions
    assert any(made.visible(*q[1:]) != made.visible(q[1], 40) for q in queries)
    for row, t, limit, at in queries:
        u, v = int(events.src[row]), int(events.dst[row])
        lists, seen = made.past(u, v, t, limit, at)
        if at is None:
            view = history.asked(torch.tensor([t]), torch.tensor([limit]))
            last = history.last_of(torch.tensor([u]), torch.tensor([v]), view)
            assert [[p for p in each if p >= 0] for each in last[0].tolist()] == lists
            found, age = (x[0] for x in history.past_at(last, view))
        else:
            found, age = past[row], ages[row]
        expected = [[codes[seen[p]] for p in each] for each in lists]
        assert [[c for c in each if c >= 0] for each in found.tolist()] == expected, (row, t, limit)
        assert age.tolist() == [t - made.times[each[0]] if each else -1 for each in lists]
    for at in range(40):
        seen = made.visible(10**9, at + 1, at)
        own = dict(enumerate(events.label.tolist())) | dict(seen)
        expected = [codes.get(own[p], -1) for p in range(40)]
        assert history.classes(eid, at).tolist() == expected
    assert len(log.late) == len(made.entries)


@pytest.mark.parametrize("seed", range(3))
def test_labels_within_a_horizon_are_those_of_a_log_of_the_later_events(seed):
    made = LateScan(seed)
    made.history.upto(40)
    for since in (5, 17, 30):
        rest = TemporalGraph("directed")
        for at in range(since, 41):
            for eid, label, t, written in made.entries:
                if written == at and eid >= since:
                    rest.log.add_labels(LateLabels([eid - since], [label], [t]))
            if at < 40:
                rest.append(made.events[at : at + 1])
        alone = LabelHistory(rest, 3, 2, dict(made.history.codes)).past(torch.arange(40 - since))
        found = made.history.past(torch.arange(since, 40), since)
        assert (found[0] >= 0).any()
        assert torch.equal(found[0], alone[0])
        assert torch.equal(found[1], alone[1])


def test_what_is_kept_of_labels_is_bounded_by_the_horizon(monkeypatch):
    monkeypatch.setattr(EventLog, "piece", 100)
    graph, num = TemporalGraph("directed", horizon=Horizon(400)), 200
    history, kept = LabelHistory(graph, 3), []
    for start in range(0, 6_000, num):
        events = tied(num, num_classes=3, seed=start)
        is_late = torch.arange(num) % 2 == 0
        own = events.label.where(~is_late, NO_LABEL)
        graph.append(replace(with_labels(events, own), t=events.t + start * 10))
        eid = start + is_late.nonzero().flatten()
        graph.log.add_labels(LateLabels(eid, events.label[is_late], graph.log.gather(eid).t + 200))
        history.past(torch.arange(start, start + num), graph.since(start))
        graph.forget_outside(start)
        late = graph.log.late
        rows = (late._written, late._known, late._of_event, history._classes, history._labeled)
        kept.append([x._held[0].shape[1] for x in rows])
        assert len(history._lists._held) <= 4
    assert max(map(max, kept)) <= 4 * 400
    assert len(late) == 3_000


def test_classes_keep_their_numbers_when_their_events_are_forgotten(monkeypatch):
    monkeypatch.setattr(EventLog, "piece", 10)
    events, at = tied(200), torch.arange(200)
    labels = torch.where(at < 20, 9, torch.where(at < 40, 5, 7))
    graph, writer = TemporalGraph("directed", horizon=Horizon(32)), Checkpoint({})
    graph.append(with_labels(events, labels))
    history = LabelHistory(graph, 3)
    history.upto(200)
    save_graph(writer, graph, 190)
    history.save(writer)
    again = graph_of(writer)
    assert again.log.first == 150
    restored = LabelHistory(again, 3)
    restored.load(writer)
    again.append(with_labels(events, labels)[190:])
    last, codes = torch.tensor([199]), torch.tensor([2, 0, 1])
    for each in (history, restored):
        assert each.codes == {9: 0, 5: 1, 7: 2}
        t = events.t[last].expand(3)
        assert each.labels(codes, t, last.expand(3)).tolist() == [7, 9, 5]


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


@pytest.mark.parametrize("seed", range(3))
def test_heuristics_see_late_labels_from_their_time_on(seed):
    made = LateScan(seed)
    history, events = made.history, made.events
    rules, codes = LabelRules(history._log, history), history.codes
    [(_, said)] = rules.predicted(0, 40)
    for p in range(40):
        late = made.visible(made.times[p], p, p)
        rows = rows_of(events)[:p]
        own = {q: row[3] for q, row in enumerate(rows)
               if row[2] + made.delay < made.times[p] and row[3] != NO_LABEL}  # fmt: skip
        seen = {q: label for q, label in (own | dict(late)).items() if label != NO_LABEL}
        count = Counter(codes[label] for label in seen.values())
        expected = torch.tensor([count[code] / max(len(seen), 1) for code in range(3)])
        # exactly the shares of all labels, which break ties with this weight
        assert torch.allclose(said["majority"][p].float() * 1e6, expected, atol=1e-6)
        mine = Counter(codes[x] for q, x in seen.items() if rows[q][0] == int(events.src[p]))
        if mine:
            share = torch.tensor([mine[code] / mine.total() for code in range(3)])
            assert torch.allclose(said["source_most"][p].float(), share, atol=1e-5)


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
