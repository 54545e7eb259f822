"""Alerts: within the budget of each day, by the scores of earlier days alone."""

import math
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tgflow.checkpoint import Checkpoint, CheckpointError
from tgflow.train import alerts as module
from tgflow.train.alerts import DAYS, AlertBudget, AlertList

HOUR, DAY = 3_600, 86_400


def reference(t, scores, most):
    """Return which events are alerts, from the whole stream and without any state."""
    days = [time // DAY for time in t]
    of_day = {day: [s for d, s in zip(days, scores, strict=True) if d == day] for day in days}

    def level(day):
        ordered = sorted(of_day[day], reverse=True)
        return ordered[most] if len(ordered) > most else 0.0

    alerts, raised = [], Counter()
    for day, score in zip(days, scores, strict=True):
        levels = [level(d) for d in sorted(of_day) if d < day][-DAYS:]
        threshold = sum(levels) / len(levels) if levels else math.inf
        alerts.append(score > threshold and raised[day] < most)
        raised[day] += alerts[-1]
    return alerts


def streams():
    """Return streams of hours between events and scores, with ties, and sizes of their parts."""
    gaps = st.integers(0, 30).map(lambda hours: hours * HOUR)
    score = st.one_of(st.floats(0, 1), st.sampled_from((0.0, 0.5, 1.0)))
    return st.lists(st.tuples(gaps, score), min_size=1, max_size=60)


@given(events=streams(), most=st.integers(1, 4), start=st.integers(-40, 40), data=st.data())
def test_alerts_keep_the_budget_and_match_the_reference_however_events_are_batched(
    events, most, start, data
):
    t = (torch.tensor([gap for gap, _ in events]).cumsum(0) + start * HOUR).tolist()
    scores = [score for _, score in events]
    budget, found, at = AlertBudget(most, "s", lambda: 0), [], 0
    while at < len(t):
        size = data.draw(st.integers(1, 20))
        stop = at + size
        part = torch.tensor(t[at:stop]), torch.tensor(scores[at:stop], dtype=torch.float64)
        if data.draw(st.booleans()):  # as after a resume
            saved = Checkpoint({}, {"position": 0})
            budget.save(saved)
            budget = AlertBudget(most, "s", lambda: 0)
            budget.load(saved)
        found += budget.chosen(*part).tolist()
        at = stop
    assert found == reference(t, scores, most)
    assert max(Counter(d // DAY for d, is_one in zip(t, found, strict=True) if is_one).values(),
               default=0) <= most  # fmt: skip
    num = budget.report()["alerts"]
    assert (num["num_alerts"], num["num_days"]) == (sum(found), len({x // DAY for x in t}))


def test_rising_scores_stay_within_the_budget():
    """Each day all scores are above every earlier one, so the threshold holds nothing back."""
    budget, t = AlertBudget(10, "s", lambda: 0), torch.arange(100) * (DAY // 100)
    for day in range(12):
        chosen = budget.chosen(t + day * DAY, (t / DAY + day).double() / 20)
        assert chosen.tolist() == [day > 0] * 10 + [False] * 90


def test_late_events_count_for_the_day_that_has_begun_and_scores_must_be_finite():
    budget, t = AlertBudget(2, "h", lambda: 0), torch.tensor([0, 1, 2, 24, 23, 25, 26])
    score = torch.tensor([0.1, math.nan, 0.2, math.nan, 0.3, 0.3, 0.3])
    assert budget.chosen(t, score).tolist() == [False] * 4 + [True, True, False]


def test_crafted_alerts_of_a_checkpoint_are_refused(monkeypatch):
    monkeypatch.setattr(module, "KEPT", 3)
    state, budget = Checkpoint({}, {"position": 9}), AlertBudget(2, "d", lambda: 9)
    alerts = AlertList().extended(torch.tensor([1, 2, 5, 8]), torch.full((4,), 0.5).double())
    assert alerts.position.tolist() == [2, 5, 8]
    assert alerts.between(3, 8).position.tolist() == [5]
    budget._state = budget._state._replace(alerts=alerts)
    budget.save(state)
    sound = state.sections["alerts"]
    for name, wrong in {
        "position": torch.tensor([2, 5, 9]),
        "probability": torch.tensor([0.5, 0.5, math.nan]).double(),
        "highest": torch.zeros(1),
        "note": {**state.meta["alerts"], "levels": ["0.5"]},
    }.items():
        crafted = Checkpoint({"alerts": sound | {name: wrong}}, dict(state.meta))
        if name == "note":
            crafted = Checkpoint({"alerts": sound}, {"position": 9, "alerts": wrong})
        with pytest.raises(CheckpointError, match=r"alerts[: .]"):
            AlertBudget(2, "d", lambda: 9).load(crafted)
    AlertBudget(2, "d", lambda: 9).load(state)


def test_alerts_of_a_micro_batch_that_was_not_learned_are_not_saved():
    learned = [0]
    budget, states = AlertBudget(2, "d", lambda: learned[0]), []
    for begin, end in ((0, 3), (3, 6)):
        eid = torch.arange(begin, end)
        events = SimpleNamespace(begin=begin, eid=eid, t=eid // 3)
        assert budget.add(events, torch.tensor([0.1, 0.2, 0.3])).tolist() == [False] + [end > 3] * 2
        for learned[0] in (begin, end):
            state = Checkpoint({}, {"position": learned[0]})
            budget.save(state)
            states.append({name: x.tolist() for name, x in state.sections["alerts"].items()})
    assert states[1] == states[2] != states[3]
    assert [state["position"] for state in states] == [[], [], [], [4, 5]]
    assert budget.report()["alerts"]["num_alerts"] == 2
