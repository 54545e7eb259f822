"""Draws of negatives and replayed events: eligibility and distribution."""

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from helpers.effort import tries
from helpers.plans import recent_plan
from tgflow.base.keys import derive_key
from tgflow.graph import EventLog, TemporalGraph
from tgflow.graph.events import EventBatch
from tgflow.plan.negatives import (
    NegativeFunction,
    Negatives,
    NegativeSampler,
    NegativeSource,
    PairHistory,
)
from tgflow.plan.replay import ExperienceReplay

Pairs = list[tuple[int, int]]


def log_of(pairs: Pairs) -> EventLog:
    return TemporalGraph.from_events(batch_of(pairs)).log


def batch_of(pairs: Pairs) -> EventBatch:
    src, dst = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(1)
    t = torch.zeros(len(pairs), dtype=torch.int64)
    return EventBatch(src.contiguous(), dst.contiguous(), t)


def draw(
    sampler: NegativeSource, pairs: Pairs, begin: int, end: int, draw_key: int = 0
) -> Negatives:
    """Draw for the batch [begin, end) of a log of `pairs`."""
    events = batch_of(pairs[begin:end])
    start = torch.full_like(events.src, begin)
    history = PairHistory(log_of(pairs))
    return sampler.draw(history, draw_key, events.src, events.dst, start=start, stop=end)


def rows(negatives: Negatives) -> list[Pairs]:
    both = torch.stack([negatives.src, negatives.dst], dim=2).tolist()
    return [[(src, dst) for src, dst in row] for row in both]


pair_lists = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30)


def spans(pairs: Pairs, data: st.DataObject) -> tuple[int, int]:
    begin = data.draw(st.integers(0, len(pairs) - 1))
    return begin, data.draw(st.integers(begin + 1, len(pairs)))


def nodes_of(pairs: Pairs) -> set[int]:
    return {node for pair in pairs for node in pair}


@settings(max_examples=tries(100), deadline=None)
@given(pairs=pair_lists, data=st.data(), num=st.integers(1, 3), draw_key=st.integers(0, 2**64 - 1))
def test_random_negatives_are_known_destinations_and_never_the_positive(
    pairs: Pairs, data: st.DataObject, num: int, draw_key: int
) -> None:
    begin, end = spans(pairs, data)
    known = {dst for _, dst in pairs[:begin]}
    if len(nodes_of(pairs[:end])) == 1:
        return
    negatives = draw(NegativeSampler(random=num), pairs, begin, end, draw_key)
    fallbacks = 0
    for (src, dst), row in zip(pairs[begin:end], rows(negatives), strict=True):
        for negative_src, negative in row:
            assert negative_src == src
            assert negative != dst
            eligible = known - {dst}
            fallbacks += not eligible
            fallback = {d for _, d in pairs[:end]} - {dst} or {s for s, _ in pairs[:end]} - {dst}
            assert negative in (eligible or fallback)
    assert negatives.num_fallbacks == fallbacks


def assert_uniform(drawn: list[object], support: set[object]) -> None:
    counts = Counter(drawn)
    assert set(counts) == support
    assert chisquare(list(counts.values())).pvalue > 1e-4


def test_random_negatives_are_uniform_over_distinct_destinations() -> None:
    """Destination 9 has most events and 10 the newest one: neither may count for more."""
    pairs = [(0, 9)] * 50 + [(0, d) for d in (2, 3, 4, 9, 5, 10)] + [(1, 4)]
    drawn = draw(NegativeSampler(random=20_000), pairs, len(pairs) - 1, len(pairs), derive_key(1))
    assert_uniform(drawn.dst[0].tolist(), {2, 3, 5, 9, 10})


@pytest.mark.parametrize(
    ("kind", "support"),
    [
        ("historical", {(0, 9), (0, 2), (0, 3), (5, 6), (5, 7)}),
        ("inductive", {(0, 3), (5, 6), (5, 7)}),
    ],
)
def test_pair_negatives_are_uniform_over_distinct_pairs(kind: str, support: set[object]) -> None:
    pairs = [(0, 9)] * 50 + [(0, 2), (0, 3), (5, 6), (1, 4), (0, 9), (5, 7)] + [(1, 4)]
    sampler = NegativeSampler(**{kind: 20_000}, since=51)
    drawn = draw(sampler, pairs, len(pairs) - 1, len(pairs), derive_key(2))
    assert_uniform(list(rows(drawn)[0]), support)


@settings(max_examples=tries(100), deadline=None)
@given(pairs=pair_lists, data=st.data(), replace=st.booleans(), draw_key=st.integers(0, 2**64 - 1))
@pytest.mark.parametrize("kind", ["historical", "inductive"])
def test_pair_negatives_are_pairs_of_the_past_and_not_of_the_batch(
    kind: str, pairs: Pairs, data: st.DataObject, replace: bool, draw_key: int
) -> None:
    """Without replacement each column uses every pair once before the fallback."""
    begin, end = spans(pairs, data)
    since = data.draw(st.integers(0, len(pairs))) if kind == "inductive" else 0
    if len(nodes_of(pairs[:end])) == 1:
        return
    sampler = NegativeSampler(**{kind: 2}, since=since, replace=replace)
    negatives = draw(sampler, pairs, begin, end, draw_key)
    eligible = set(pairs[:begin]) - set(pairs[:since]) - set(pairs[begin:end])
    size = end - begin
    num_used = (size if eligible else 0) if replace else min(len(eligible), size)
    assert negatives.num_fallbacks == 2 * (size - num_used)
    for column in zip(*rows(negatives), strict=True):
        first, rest = column[:num_used], column[num_used:]
        assert replace or len({*first}) == num_used
        assert {*first} <= eligible
        for (src, dst), pair in zip(pairs[begin + num_used : end], rest, strict=True):
            assert pair[0] == src
            assert pair[1] != dst


def test_event_without_any_negative_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"3 -> 3 has no negative.*first 2 events"):
        draw(NegativeSampler(random=1), [(3, 3), (3, 3)], 1, 2)


PAIRS = [(0, 5), (1, 6), (0, 7), (1, 5), (9, 5), (0, 8)]


def returning(values: object) -> NegativeFunction:
    return NegativeFunction(lambda *arguments: values, 2)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([[5, 6], [5, 6]], r"must return int64 \[2, 2\], got list"),
        (torch.zeros(2, 2), r"got torch.float32 \[2, 2\] on cpu"),
        (torch.zeros(2, 1, dtype=torch.int64), r"got torch.int64 \[2, 1\] on cpu"),
        (torch.tensor([[5, 6], [6, -2]]), "returned -2 for row 1, which is no destination before"),
        (torch.tensor([[5, 6], [8, 6]]), "returned 8 for row 1, which is no destination before"),
        (torch.tensor([[5, 10**9], [6, 6]]), "1000000000 for row 0, which is no destination"),
        (torch.tensor([[5, 6], [6, 1]]), "returned 1 for row 1, which is no destination before"),
        (torch.tensor([[6, 5], [6, 5]]), "returned 5 for row 1, which is the event's own dest"),
    ],
)
def test_function_of_negatives_that_returns_wrong_ones_is_refused(
    returned: object, message: str
) -> None:
    """Node 8 is a destination only after the batch, and 1 is a source."""
    with pytest.raises(ValueError, match=message):
        draw(returning(returned), PAIRS, 2, 4)


def test_function_of_negatives_may_return_any_known_destination_or_none() -> None:
    drawn = draw(returning(torch.tensor([[6, -1], [6, 7]])), PAIRS, 2, 4)
    assert drawn.dst.tolist() == [[6, 7], [6, 7]]  # 7, the event's own, where there is none
    assert drawn.mask is not None
    assert drawn.mask.tolist() == [[True, False], [True, True]]
    with pytest.raises(ValueError, match="at least 1 negative per event, got 0"):
        NegativeFunction(lambda *arguments: torch.empty(0), 0)


def test_fixed_cut_limits_candidates_to_the_log_prefix() -> None:
    pairs = [(0, 1), (0, 2), (0, 3), (0, 4)]
    drawn = draw(NegativeSampler(random=2_000, cut=3), pairs, 0, 1)
    assert set(drawn.dst.flatten().tolist()) == {2, 3}
    assert drawn.num_fallbacks == 0
    with pytest.raises(ValueError, match="position 5 is past the log's end, 4 events"):
        draw(NegativeSampler(random=1, cut=5), pairs, 0, 1)


@settings(max_examples=tries(100), deadline=None)
@given(pairs=pair_lists, stops=st.lists(st.integers(0, 30), min_size=1, max_size=4))
def test_destinations_of_a_source_are_its_earlier_partners(pairs: Pairs, stops: list[int]) -> None:
    history = PairHistory(log_of(pairs))
    for stop in (min(stop, len(pairs)) for stop in stops):  # in any order, as the index grows
        index = history.upto(stop, pairs=True)
        for src in range(8):
            met = list(dict.fromkeys(dst for own, dst in pairs[:stop] if own == src))
            assert index.destinations_of(src, stop).tolist() == met
    with pytest.raises(ValueError, match="src must be from 0 to 2147483646, got -1"):
        history.upto(len(pairs)).destinations_of(-1, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "at least one of random, source, recent, historical, inductive, got none"),
        ({"random": 1, "source": -1}, "source must be at least 0 negatives per event, got -1"),
        ({"random": 1, "cut": -1}, "at least 0, got -1"),
        ({"random": 1, "every": 0}, "every must be at least 1, got 0"),
        ({"inductive": 1}, "need since"),
        ({"historical": 1, "collide": True}, "only random negatives may collide"),
        ({"random": 2, "distinct": True, "collide": True}, "not those of a list"),
        ({"random": 1, "replace": False}, "random negatives are drawn with replacement"),
        ({"source": 2, "historical": 1}, "lists have negatives of the event's own source"),
    ],
)
def test_invalid_samplers_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NegativeSampler(**arguments)  # type: ignore[arg-type]


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
    """Probability of each set of `num`, drawn sequentially in proportion to the rest."""
    chances: Counter[tuple[int, ...]] = Counter()
    for order in itertools.permutations(range(len(weights)), num):
        chance, left = 1.0, sum(weights)
        for i in order:
            chance *= weights[i] / left
            left -= weights[i]
        chances[tuple(sorted(order))] += chance
    return dict(chances)


@pytest.mark.parametrize("half_life", [0.25, 1.0, 3.0, math.inf])
def test_replay_sets_are_drawn_in_proportion_to_recency(half_life: float) -> None:
    """A half-life of 0.25 makes rejection fail at times, so the exact scan is tested too."""
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
def test_invalid_replay_is_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExperienceReplay(**arguments)  # type: ignore[arg-type]


@given(
    pairs=pair_lists, data=st.data(), kind=st.sampled_from(["random", "historical"]),
    num=st.integers(1, 4), every=st.integers(1, 7),
)  # fmt: skip
def test_one_event_of_every_few_has_all_negatives(pairs, data, kind, num, every):
    begin, end = spans(pairs, data)
    if len(nodes_of(pairs[:end])) == 1:
        return
    whole = draw(NegativeSampler(**{kind: num}), pairs, begin, end)
    some = draw(NegativeSampler(**{kind: num}, every=every), pairs, begin, end)
    if every == 1 or num == 1:
        assert some.mask is None
        assert rows(some) == rows(whole)
        return
    chosen = {eid // every: [] for eid in range(begin, end)}
    for row, eid in enumerate(range(begin, end)):
        mask = some.mask[row].tolist()
        assert mask in ([True] * num, [True] + [False] * (num - 1))
        kept = rows(some)[row]
        expected = rows(whole)[row]
        assert kept == [e if m else pairs[eid] for e, m in zip(expected, mask, strict=True)]
        chosen[eid // every] += [eid] if all(mask) else []
    for group, found in chosen.items():
        is_whole = begin <= group * every and (group + 1) * every <= end
        assert len(found) == 1 if is_whole else len(found) <= 1


def test_chosen_events_do_not_depend_on_the_batch_and_are_spread_evenly():
    chosen = NegativeSampler(random=2, every=5).mask(0, 50_000, 2)[:, 1]
    parts = [
        NegativeSampler(random=2, every=5).mask(a, a + 37, 2)[:, 1] for a in range(0, 37 * 9, 37)
    ]
    assert torch.equal(torch.cat(parts), chosen[: 37 * 9])
    places = chosen.nonzero().squeeze(1) % 5
    assert chisquare(torch.bincount(places, minlength=5).numpy()).pvalue > 1e-4


@pytest.mark.parametrize("changes", [{"replay": ExperienceReplay(0.5)}, {"only": torch.arange(3)}])
def test_every_few_events_must_be_consecutive_new_ones(changes):
    graph = TemporalGraph.from_events(batch_of([(0, 1), (1, 2), (2, 3)]))
    with pytest.raises(ValueError, match="for one event of every few are for consecutive new"):
        recent_plan(graph, negatives=NegativeSampler(random=2, every=5), **changes)
