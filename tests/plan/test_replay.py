"""ExperienceReplay draws: distinct, recent first, exact even when rejection gives up."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from helpers.effort import tries
from tgflow.keys import derive_key
from tgflow.plan.replay import ExperienceReplay


@settings(max_examples=tries(100), deadline=None)
@given(
    ratio=st.floats(0, 3),
    horizon=st.integers(1, 300),
    half_life=st.floats(0.01, 1e6) | st.just(math.inf),
    first=st.just(0) | st.integers(0, 600),
    before=st.integers(0, 500),
    draw_key=st.integers(0, 2**64 - 1),
)
def test_draws_are_distinct_ascending_and_within_the_horizon(
    ratio: float, horizon: int, half_life: float, first: int, before: int, draw_key: int
) -> None:
    replay = ExperienceReplay(ratio, horizon, half_life, first)
    drawn = replay.draw(draw_key, before, 100).tolist()
    begin = max(first, before - horizon)
    assert len(drawn) == min(round(100 * ratio), max(0, before - begin))
    assert drawn == sorted(set(drawn))
    assert all(begin <= eid < before for eid in drawn)


def successive(weights: list[float], num: int) -> dict[tuple[int, ...], float]:
    """Probability of each set of `num`, drawn one after another in proportion to what is left."""
    chances: Counter[tuple[int, ...]] = Counter()
    for order in itertools.permutations(range(len(weights)), num):
        chance, left = 1.0, sum(weights)
        for i in order:
            chance *= weights[i] / left
            left -= weights[i]
        chances[tuple(sorted(order))] += chance
    return dict(chances)


@pytest.mark.parametrize("half_life", [0.25, 1.0, 3.0, math.inf])
def test_sets_are_drawn_in_proportion_to_recency(half_life: float) -> None:
    """A half-life of 0.25 makes rejection give up now and then, so it checks the exact scan too."""
    num_draws, before, horizon = 6_000, 12, 5
    replay = ExperienceReplay(3, horizon, half_life)
    drawn = Counter(
        tuple(e - before + horizon for e in replay.draw(derive_key(i), before, 1).tolist())
        for i in range(num_draws)
    )
    weights = [2.0 ** (-age / half_life) for age in range(horizon)][::-1]
    chances = successive(weights, 3)
    rare = [s for s, p in chances.items() if p * num_draws < 5]
    common = [s for s in chances if s not in rare]
    observed = [drawn[s] for s in common] + [sum(drawn[s] for s in rare)] * bool(rare)
    expected = [chances[s] for s in common] + [sum(chances[s] for s in rare)] * bool(rare)
    total = sum(expected)
    assert chisquare(observed, [p / total * num_draws for p in expected]).pvalue > 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ratio": -0.1}, "at least 0, got -0.1"),
        ({"ratio": math.nan}, "got nan"),
        ({"ratio": 1, "horizon": 0}, "at least 1 event, got 0"),
        ({"ratio": 1, "half_life": 0.0}, "at least 1e-6 events, got 0.0"),
    ],
)
def test_bad_replay_is_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExperienceReplay(**arguments)  # type: ignore[arg-type]
