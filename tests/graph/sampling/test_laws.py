"""Sampler draws follow their documented distributions."""

from itertools import combinations, permutations

import pytest
import torch
from scipy.stats import chisquare

from helpers.effort import cases
from tgflow import EventBatch, Sampler, TemporalGraph
from tgflow.graph.sampling import sample_neighbors

NUM_QUERIES = 20_000


def star(t, relation=None):
    """A stream in which node 0 has events at these times."""
    leaf = torch.arange(1, len(t) + 1)
    relations = None if relation is None else torch.tensor(relation)
    return TemporalGraph.from_events(
        EventBatch(torch.zeros_like(leaf), leaf, torch.tensor(t), relation=relations)
    )


def draw(graph, sampler, t, k, **options):
    """The events drawn by many queries of node 0, int64 [NUM_QUERIES, k]."""
    nodes = torch.zeros(NUM_QUERIES, dtype=torch.int64)
    eid = sample_neighbors(graph, sampler, nodes, torch.full_like(nodes, t), k, **options).eid
    assert (eid[:, :-1] > eid[:, 1:]).all(), "not distinct, newest first"
    return eid


def successive(weights, k):
    """Return the probability of every set of `k` drawn sequentially by weight."""
    chances = {}
    for subset in combinations(range(len(weights)), k):
        chance = 0.0
        for order in permutations(subset):
            rest, product = sum(weights), 1.0
            for i in order:
                product *= weights[i] / rest
                rest -= weights[i]
            chance += product
        chances[subset[::-1]] = chance
    return chances


def check(eid, chances):
    """Fail unless the rows are drawn with these probabilities; rare ones are tested together."""
    rows, counts = torch.unique(eid, dim=0, return_counts=True)
    found = {tuple(row): count for row, count in zip(rows.tolist(), counts.tolist(), strict=True)}
    assert found.keys() <= chances.keys()
    observed, expected = [0], [0.0]
    for row, chance in sorted(chances.items(), key=lambda item: item[1]):
        if expected[-1] >= 8:  # enough for a test
            observed.append(0)
            expected.append(0.0)
        observed[-1] += found.get(row, 0)
        expected[-1] += chance * len(eid)
    if len(expected) > 1:
        assert chisquare(observed, expected).pvalue > 1e-4


@pytest.mark.parametrize("k", cases([1, 2, 3, 4], [1, 3]))
@pytest.mark.parametrize("half_life", cases([1, 2, 7, 1000], [2, 1000]))
@pytest.mark.parametrize("t", [[0, 1, 2, 3, 4], [0, 0, 5, 5, 6], [0, 40, 41, 42, 50], [3] * 5])
def test_decayed_draws_follow_the_law_of_successive_sampling(t, half_life, k):
    eid = draw(star(t), Sampler.decayed(half_life=half_life), 1000, k, key=half_life + k)
    check(eid, successive([2 ** ((u - t[-1]) / half_life) for u in t], k))


@pytest.mark.parametrize("size", [30, 300])
def test_decayed_draws_of_long_histories_weigh_every_age(size):
    """Covers all buckets and the open one, from the newest to the oldest event."""
    t = list(range(0, 3 * size, 3))
    half_life = size // 3
    eid = draw(star(t), Sampler.decayed(half_life=half_life), 4 * size, 1, key=size)
    weights = [2 ** ((u - t[-1]) / half_life) for u in t]
    check(eid, {(i,): weight / sum(weights) for i, weight in enumerate(weights)})


def test_decayed_draws_reach_events_older_than_all_buckets():
    """2,000 old events that weigh as much as the new one do together."""
    t = [0] * 2000 + [11]
    eid = draw(star(t), Sampler.decayed(half_life=1), 20, 1, key=1)
    share = (eid == 2000).double().mean().item()
    assert abs(share - 1 / (1 + 2000 / 2**11)) < 0.015
    old = eid[eid < 2000].bincount(minlength=2000)
    assert chisquare(old.numpy()).pvalue > 1e-4


@pytest.mark.parametrize("k", [1, 2, 3])
def test_decayed_draws_of_some_types_exclude_the_others(k):
    t, relation = [0, 2, 3, 4, 7, 8, 9], [1, 0, 1, 1, 0, 1, 0]
    eid = draw(star(t, relation), Sampler.decayed(half_life=3), 10, k, key=k, relations=[1])
    weights = {i: 2 ** (t[i] / 3) for i in range(len(t)) if relation[i]}
    kept = list(weights)
    law = successive(list(weights.values()), k)
    check(eid, {tuple(kept[i] for i in row): chance for row, chance in law.items()})


def test_decayed_draws_follow_their_law_at_unix_nanoseconds():
    hour = 3_600_000_000_000
    t = [1_600_000_000_000_000_000 + i * hour for i in range(6)]
    eid = draw(star(t), Sampler.decayed(half_life=2 * hour + 1), t[-1] + 1, 2, key=5)
    check(eid, successive([2 ** ((u - t[-1]) / (2 * hour + 1)) for u in t], 2))


@pytest.mark.parametrize("size", [11, 400])
@pytest.mark.parametrize("relations", [None, [1]])
@pytest.mark.parametrize("num_older", [0, 9])
def test_uniform_and_window_draws_are_equally_likely_at_both_ends(size, relations, num_older):
    """Floyd's algorithm off by one under-samples the newest neighbor: SALIENT, Ginex."""
    older, newer = [-5] * num_older, [10_000] * 9
    graph = star([*older, *range(size), *newer], [1] * (size + 9 + num_older))
    sampler = Sampler.window(width=size) if num_older else Sampler.uniform()
    eid = draw(graph, sampler, size, 10, key=size, relations=relations) - num_older
    assert eid.min() == 0
    assert eid.max() == size - 1
    counts = eid.flatten().bincount(minlength=size)
    assert chisquare(counts.numpy()).pvalue > 1e-4
    expected = NUM_QUERIES * 10 / size
    for end in (counts[0], counts[-1]):
        assert abs(int(end) - expected) < 5 * expected**0.5


def test_uniform_draws_of_some_types_are_equally_likely():
    relation = [i % 3 for i in range(90)]
    eid = draw(star(list(range(90)), relation), Sampler.uniform(), 90, 4, key=9, relations=[0, 2])
    counts = eid.flatten().bincount(minlength=90)
    assert (counts[1::3] == 0).all()
    kept = torch.cat([counts[::3], counts[2::3]])
    assert chisquare(kept.numpy()).pvalue > 1e-4
