"""explain.html: why a pair has its score, with the events around it over time as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from tgflow.base.text import shortened
from tgflow.report.formatting import score
from tgflow.report.page import Bar, Card, Cell, render_page
from tgflow.serve.explain import LINK, EventEffect, Explanation, LabelRecord, age_text

MAX_DRAWN = 60
"""Most events drawn: those with the largest effects."""
EMPHASIZED = 5
"""Events that are emphasized unless fewer halve the score."""
_LEFT, _RIGHT, _TOP, _ROW = 240.0, 960.0, 16.0, 24.0


def signed(value: float) -> str:
    return f"{value:+.4g}"


def new_text(found: Explanation) -> str:
    """Return a sentence on the ids that no event has; empty without any."""
    new = {"src": [found.src], "dst": [found.dst], "both": [found.src, found.dst]}
    ids = [str(each) for each in new[found.new]] if found.new is not None else []
    return f"No learned event has {' or '.join(ids)}: scored as at a first event." if ids else ""


def halving(found: Explanation) -> str:
    """Return how many events must be removed to halve the probability, in words."""
    if found.num_to_halve is None:
        left = score(found.probability_left or 0.0)
        return f"removing all {len(found.events)} events leaves a probability of {left}"
    which = "event" if found.num_to_halve == 1 else f"{found.num_to_halve} events"
    return f"removing the first {which} halves the probability"


def label_text(found: Explanation, record: LabelRecord) -> str:
    of, node = found.of, found.src if record.side == "src" else found.dst
    whose = f"events {'from' if record.side == 'src' else 'to'} {node}"
    if not record.num_known:
        return f"{whose}: no known {of}"
    latest = ", ".join(str(each.label) for each in record.latest)
    share = f"{record.num_known:,} known {of}, {record.num_positive:,} of them {found.label}"
    return f"{whose}: {share}; the latest, newest first: {latest}"


def explanation_page(found: Explanation, name: str, unit: str) -> str:
    """Return a page on an explanation by ids and times of the stream of run `name`."""
    title, is_link = f"Why {found.src} → {found.dst}", found.of == LINK
    what = "Score" if is_link else f"Probability of {found.of} {found.label}"
    lead = (
        f"{what} of an event from {found.src} to {found.dst} at {found.t} in {name}, from the "
        f"{found.position:,} events before. {new_text(found)}"
    )
    whose = "the model's score" if is_link else f"of {found.of} {found.label}"
    against = "against one random negative" if is_link else whose
    tiles = [
        ("Probability", score(found.probability), against),
        ("Logit", f"{found.logit:.4g}", whose),
        ("Without history", f"{found.baseline:.4g}", "logit of a pair without events"),
        ("Events to halve it", str(found.num_to_halve or "–"), "removed in the order below"),
    ]
    most = max((abs(group.logit) for group in found.groups), default=0.0) or 1.0
    groups = [
        (group.name, Bar(group.logit / most), signed(group.logit), group.text)
        for group in found.groups
    ]
    parts = [
        Card("Contributions", groups, ("group", "", "logit", "past events" if is_link else ""))
    ]
    for record in found.history:
        rows = [(str(e.eid), str(e.src), str(e.dst), str(e.t), str(e.label)) for e in record.latest]
        head = ("position", "source", "destination", "time", found.of)
        side = "source" if record.side == "src" else "destination"
        parts.append(Card(f"Known labels of the {side}", rows, head, [label_text(found, record)]))
    if found.events:
        parts += [_picture_card(found, unit), _events_card(found, unit)]
    release = version("tgflow-learn")
    return render_page("explanation", title, lead, tiles, parts, release, is_of_run=False)


def _events_card(found: Explanation, unit: str) -> Card:
    rows: list[list[Cell]] = []
    most = max(abs(e.drop) for e in found.events) or 1.0
    for e in found.events:
        ends, age = (str(e.src), str(e.dst)), age_text(found.t - e.t, unit)
        rows.append([str(e.eid), *ends, str(e.t), age, Bar(e.drop / most), signed(e.drop)])
    head = ("position", "source", "destination", "time", "before", "", "drop")
    return Card("Past events", rows, head, [f"In this order {halving(found)}."])


def _picture_card(found: Explanation, unit: str) -> Card:
    drawn = sorted(found.events, key=lambda e: -abs(e.drop))[:MAX_DRAWN]
    text = "Arcs are events; thick ones are first in the table below, and orange ones lower"
    notes = [f"{text} the score."]
    if len(drawn) < len(found.events):
        notes.append(f"The {len(drawn)} events of the largest effects, of {len(found.events)}.")
    return Card("Events over time", notes=notes, picture=picture(found, drawn, unit))


def picture(found: Explanation, drawn: list[EventEffect], unit: str) -> Mapping[str, Any]:
    """Return the data of the template: a row per node, an arc per event."""
    names = _rows_of(found, drawn)
    y = {node: _TOP + _ROW * i for i, node in enumerate(names)}
    ages = [max(found.t - event.t, 0.0) for event in drawn]
    low, high = math.log1p(min(ages)), math.log1p(max(ages))
    if low == high:
        low = 0.0

    def x(age: float) -> float:
        share = (math.log1p(age) - low) / ((high - low) or 1.0)
        return round(_RIGHT - (_RIGHT - _LEFT) * share, 1)

    most = max(abs(event.drop) for event in drawn) or 1.0
    first = [e.eid for e in found.events[: found.num_to_halve or EMPHASIZED] if e.drop > 0]
    arcs = []
    for event, age in zip(drawn, ages, strict=True):
        a, b, at = y[event.src], y[event.dst], x(age)
        bulge = at - min(60.0, 12 + abs(a - b) / 3)
        arcs.append(
            {
                "path": f"M{at} {a}Q{bulge:.1f} {(a + b) / 2} {at} {b}",
                "x": at,
                "y": (a, b),
                "width": f"{1 + 4 * abs(event.drop) / most:.1f}" if event.eid in first else "1",
                "css": "c1" if event.eid in first else "c3" if event.drop < -most / 20 else "faint",
                "text": f"{event.src} → {event.dst} at {event.t}: {signed(event.drop)}",
            }
        )
    arcs.sort(key=lambda arc: arc["css"] == "c1")  # on top of the others
    shares = (0, 0.25, 0.5, 0.75, 1)
    marks = {round(math.expm1(low + (high - low) * share)) for share in shares}
    return {
        "title": "Events around the pair over time",
        "height": _TOP + _ROW * len(names) + 36,
        "rows": [
            (y[node], shortened(str(node), 24), "end" if node in (found.src, found.dst) else "")
            for node in names
        ],
        "arcs": arcs,
        "ticks": [(x(age), age_text(age, unit)) for age in sorted(marks)],
        "x_name": "time before the score, on a logarithmic scale",
    }


def _rows_of(found: Explanation, drawn: list[EventEffect]) -> list[Any]:
    """Return the nodes from top to bottom: those met by the source, the pair, and others."""
    above: dict[Any, None] = {}
    below: dict[Any, None] = {}
    for event in drawn:
        ends = {event.src, event.dst}
        side = above if found.src in ends else below
        for node in (event.src, event.dst):
            if node not in (found.src, found.dst) and node not in above:
                side.setdefault(node)
    return [*above, *dict.fromkeys((found.src, found.dst)), *(n for n in below if n not in above)]
