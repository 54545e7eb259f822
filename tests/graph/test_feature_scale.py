"""Scaling of edge features: depends only on earlier rows, not on batches, and resumes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tgflow import EventBatch, TemporalGraph
from tgflow.graph import FeatureScale

KINDS = ("auto", "standard", "log")


def scaled(scale, x):
    done, known = scale.scaled(x)
    scale.keep(x, known)
    return done


def by_hand(rows, kind, freeze_at):
    """Scale one column slowly and obviously, deciding on the logarithm at each row."""
    found, logged = [], kind == "log"
    for i in range(len(rows)):
        seen = rows[: min(i + 1, freeze_at)]
        taken = [math.copysign(math.log1p(abs(v)), v) for v in seen] if logged else seen
        own = math.copysign(math.log1p(abs(rows[i])), rows[i]) if logged else rows[i]
        mean = sum(taken) / len(taken)
        deviation = math.sqrt(sum((v - mean) ** 2 for v in taken) / len(taken))
        z = (own - mean) / deviation if deviation > 1e-9 else 0.0
        found.append(max(-10.0, min(10.0, z)))
        if kind == "auto" and i + 1 in (100, 1_000, freeze_at) and i + 1 <= freeze_at:
            mean = sum(seen) / len(seen)
            second = sum((v - mean) ** 2 for v in seen) / len(seen)
            third = sum((v - mean) ** 3 for v in seen) / len(seen)
            logged = second > 0 and abs(third / second**1.5) > 2
    return torch.tensor(found)


def made(size, seed=0):
    """Return a column like amounts, one like temperatures, and a constant one."""
    g = torch.Generator().manual_seed(seed)
    money = torch.exp(3 * torch.randn(size, generator=g))
    return torch.stack(
        [money, 20 + 5 * torch.randn(size, generator=g), torch.full((size,), 7.0)], 1
    )


@pytest.mark.parametrize("kind", KINDS)
def test_scaled_rows_match_a_hand_computed_example(kind):
    x = made(260)
    found = scaled(FeatureScale(kind, freeze_at=150), x)
    for column in range(3):
        expected = by_hand(x[:, column].tolist(), kind, 150)
        torch.testing.assert_close(found[:, column], expected, atol=2e-4, rtol=2e-4)
    assert found[:, 2].tolist() == [0.0] * 260


@given(st.data())
def test_scaling_depends_neither_on_batches_nor_on_later_rows(data):
    kind = data.draw(st.sampled_from(KINDS))
    freeze_at = data.draw(st.sampled_from([1, 50, 100, 130]))
    x = made(200, seed=3)
    expected = scaled(FeatureScale(kind, freeze_at), x)
    cuts = sorted(data.draw(st.sets(st.integers(1, 199), max_size=6)))
    scale, parts = FeatureScale(kind, freeze_at), []
    for start, stop in zip([0, *cuts], [*cuts, 200], strict=True):
        parts.append(scaled(scale, x[start:stop]))
    assert torch.equal(torch.cat(parts), expected), "to the bit, whatever the batches"
    later = x.clone()
    place = data.draw(st.integers(0, 199))
    later[place:] *= 1000.0
    assert torch.equal(scaled(FeatureScale(kind, freeze_at), later)[:place], expected[:place])


@given(st.data())
def test_resumed_scaling_is_bit_exact(data):
    """A checkpoint may be older than the last appended event."""
    kind = data.draw(st.sampled_from(KINDS))
    freeze_at = data.draw(st.sampled_from([1, 60, 120]))
    x = made(180, seed=5)
    expected = scaled(FeatureScale(kind, freeze_at), x)
    ahead = data.draw(st.integers(0, 180))
    places = sorted(data.draw(st.lists(st.integers(0, ahead), max_size=3)))
    first = FeatureScale(kind, freeze_at)
    for part in x[:ahead].split(37):
        scaled(first, part)
    for place in places:
        again = FeatureScale(kind, freeze_at)
        again.load(first.state_at(place))
        assert torch.equal(scaled(again, x[place:]), expected[place:])
        assert again.state_at(180)["size"] == min(180, freeze_at)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 7.0, -1e-30, 0.1, 3e38])
def test_constant_column_is_scaled_to_0_without_a_warning(kind, value):
    scale = FeatureScale(kind, freeze_at=150)
    x = torch.cat([torch.full((200, 1), value), made(200)], dim=1)
    assert scaled(scale, x)[:, 0].tolist() == [0.0] * 200
    known = scale.state_at(150)
    assert known["logged"].tolist() == [kind == "log", kind != "standard", *[kind == "log"] * 2]


def events(x, first=0):
    n = torch.arange(first, first + len(x))
    return EventBatch(n % 5, 5 + n % 7, n, x)


def test_graph_keeps_scaled_rows_and_nothing_of_a_refused_batch():
    x = made(40)
    graph = TemporalGraph(edge_x_dim=3, feature_scale=FeatureScale("log"))
    graph.append(events(x[:20]))
    with pytest.raises(ValueError, match="the log is at t=19"):
        graph.append(events(1e6 * x[:20]))
    graph.append(events(x[20:], first=20))
    assert torch.equal(graph.edge_x.read(0, 40), scaled(FeatureScale("log"), x))


def test_invalid_settings_and_statistics_are_refused():
    with pytest.raises(ValueError, match="must be auto, standard or log, got 'robust'"):
        FeatureScale("robust")
    with pytest.raises(ValueError, match="freeze_at must be at least 1"):
        FeatureScale(freeze_at=0)
    scale = FeatureScale(freeze_at=10)
    scaled(scale, made(5))
    saved = scale.state_at(5)
    for name, wrong in (
        ("size", torch.tensor(11)),
        ("sums", torch.zeros(4, 3, dtype=torch.float64)),
        ("shift", torch.zeros(2, 3)),
        ("logged", torch.zeros(3)),
    ):
        with pytest.raises(ValueError, match="are invalid"):
            FeatureScale(freeze_at=10).load(saved | {name: wrong})
