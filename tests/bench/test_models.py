"""The bench of models on counts: whole passes and counting, each with what it is to reach."""

import math

import benchmarks.models
from helpers.made_models import made_events
from tgflow.events import EventBatch


def events_of(size):
    made = made_events(size)
    return EventBatch(made.src, made.dst, made.t)


def test_every_model_passes_and_every_list_is_counted():
    events = events_of(450)
    params = {"stream": "made", "events": len(events)}
    rows = list(benchmarks.models.pass_rows(events, params, rounds=1))
    rows += benchmarks.models.counting_rows(events, params, rounds=1)
    assert all(math.isfinite(row.value) and row.value > 0 for row in rows)
    goals = {
        (row.params.get("model", row.params.get("lists of")), row.name): row.target for row in rows
    }
    assert goals["recency", "prequential"] == goals["edgebank", "prequential"] == 150_000
    assert goals["counts", "prequential"] == 30_000
    assert goals["counts with window", "counting, memory"] == 400
    assert goals["recency", "prequential, a second of all cores"] is None
    assert len(rows) == len(goals) == 6 + 9


def test_fewer_bytes_an_event_are_better():
    [row] = [
        row
        for row in benchmarks.models.counting_rows(events_of(4000), {}, rounds=1)
        if row.name == "counting, memory" and row.params["lists of"] == "recency"
    ]
    assert row.reached == (row.value <= 50)
