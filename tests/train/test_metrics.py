"""Metrics against scikit-learn, counting and hand-computed values; user metrics."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, ndcg_score, roc_auc_score

import tgflow as tg
from helpers.live_runs import untimed
from helpers.made_streams import made_events, pieces, small_tgn
from tgflow.base import metrics
from tgflow.plan.negatives import chosen_events
from tgflow.train.observe import Callback

scores = st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.25, 0.5, 3.0, math.inf]), min_size=1)


def as_sklearn(positive, negative):
    labels = [1] * len(positive) + [0] * len(negative)
    finite = [min(score, 1e9) for score in positive + negative]
    return labels, finite


@given(positive=scores, negative=scores)
def test_ap_and_auc_match_scikit_learn_with_ties(positive, negative):
    labels, values = as_sklearn(positive, negative)
    ours = torch.tensor(positive), torch.tensor(negative)
    assert metrics.average_precision(*ours) == pytest.approx(
        average_precision_score(labels, values), abs=1e-12
    )
    assert metrics.roc_auc(*ours) == pytest.approx(roc_auc_score(labels, values), abs=1e-12)


@given(data=st.data(), num=st.integers(1, 40), m=st.integers(1, 6))
def test_float32_rounding_of_scores_changes_no_metric(data, num, m):
    grid = st.lists(st.integers(-20, 20), min_size=num * (m + 1), max_size=num * (m + 1))
    exact = torch.tensor(data.draw(grid), dtype=torch.float32).view(num, m + 1) / 3
    ulps = torch.randint(-8, 9, exact.shape, generator=torch.Generator().manual_seed(num))
    rounded = exact + exact.abs() * 2.0**-23 * ulps
    whole, noisy = (metrics.LinkMetrics().add(x[:, 0], x[:, 1:]) for x in (exact.double(), rounded))
    assert noisy == pytest.approx(whole, abs=1e-12)


rows_of_four = st.lists(st.integers(0, 3), min_size=4, max_size=4)


@given(rows=st.lists(st.tuples(rows_of_four, rows_of_four), min_size=1), k=st.integers(1, 5))
def test_ndcg_matches_scikit_learn_with_ties(rows, k):
    scores, gains = zip(*rows, strict=True)
    ours = metrics.ndcg_at_k(torch.tensor(scores).float(), torch.tensor(gains), k)
    assert ours == pytest.approx(ndcg_score(gains, scores, k=k), abs=1e-12)


def test_ndcg_matches_a_hand_computed_example_and_refuses_invalid_input():
    scores, gains = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    assert metrics.ndcg_at_k(scores, gains, 10) == pytest.approx(1 / math.log2(3))
    assert metrics.ndcg_at_k(scores, gains, 1) == 0
    assert math.isnan(metrics.ndcg_at_k(scores[:0], gains[:0], 1))
    for wrong in ((scores, gains, 0), (scores, gains[0], 1), (scores, gains - 1, 1)):
        with pytest.raises(ValueError, match=r"k must be|needs scores"):
            metrics.ndcg_at_k(*wrong)


@given(
    rows=st.lists(
        st.tuples(st.integers(-2, 2), st.lists(st.integers(-2, 2), min_size=3, max_size=3)),
        min_size=1,
    )
)
def test_mrr_matches_sorting_each_row(rows):
    expected = 0.0
    for positive, negative in rows:
        optimistic = 1 + sorted([*negative, positive], reverse=True).index(positive)
        pessimistic = 1 + len(negative) - sorted([*negative, positive]).index(positive)
        expected += 2 / (optimistic + pessimistic) / len(rows)
    positive_scores = torch.tensor([row[0] for row in rows], dtype=torch.float32)
    negative_scores = torch.tensor([row[1] for row in rows], dtype=torch.float32)
    assert metrics.mrr(positive_scores, negative_scores) == pytest.approx(expected)


def test_metrics_of_no_scores_are_undefined():
    none, some = torch.empty(0), torch.ones(2)
    for metric in (metrics.average_precision, metrics.roc_auc):
        assert math.isnan(metric(none, some))
        assert math.isnan(metric(some, none))
    assert math.isnan(metrics.mrr(none, torch.empty(0, 3)))
    assert math.isnan(metrics.mrr(some, torch.empty(2, 0)))


def test_nan_scores_are_refused_with_their_index():
    bad, good = torch.tensor([0.0, math.nan, 1.0]), torch.ones(3)
    with pytest.raises(ValueError, match="positive score 1 of 3 is NaN"):
        metrics.average_precision(bad, good)
    for metric, scores in ((metrics.roc_auc, bad), (metrics.mrr, bad[:, None])):
        with pytest.raises(ValueError, match="negative score 1 of 3 is NaN"):
            metric(good, scores)


def test_link_metrics_keep_the_mean_over_batches_and_the_pool():
    generator = torch.Generator().manual_seed(2)
    batches = [
        (torch.randn(size, generator=generator), torch.randn(size, 5, generator=generator))
        for size in (8, 8, 3)
    ]
    total = metrics.LinkMetrics()
    own = [total.add(*batch) for batch in batches]
    result = total.result()
    assert result["ap"] == pytest.approx(sum(batch["ap"] for batch in own) / 3)
    assert result["auc"] == pytest.approx(sum(batch["auc"] for batch in own) / 3)
    positive = torch.cat([batch[0] for batch in batches])
    negative = torch.cat([batch[1] for batch in batches])
    assert result["ap_pooled"] == metrics.average_precision(positive, negative[:, 0])
    assert result["auc_pooled"] == metrics.roc_auc(positive, negative[:, 0])
    assert result["mrr"] == pytest.approx(metrics.mrr(positive, negative))
    hits = (metrics.ranks(positive, negative) <= 1).double().mean()
    assert result["hits@1"] == pytest.approx(float(hits))
    assert total.num_events == 19


def figures_by_hand(positive, negative, mask, ranks, is_first, begin, every, further):
    """Slow reference of `link_figures` for lists of scores of which none are nearly tied."""

    def rank_of(score, others):
        return 1 + sum((x > score) + (x == score) / 2 for x in others)

    def mean(values):
        return sum(values) / len(values), len(values)

    width = len(negative[0])
    num_random = width - sum(num for _, num in further)
    of_events, of_ranked, of_some, found = {}, {}, {}, {"returns": [], "first": [], "all": []}
    if width:
        pairs = torch.tensor(positive), torch.tensor([row[0] for row in negative])
        of_events["ap"] = metrics.average_precision(*pairs), 1
        of_events["auc"] = metrics.roc_auc(*pairs), 1
    among = {name: [] for name, _ in further}
    for i, score in enumerate(positive):
        row = list(negative[i])
        if ranks is not None:
            if math.isnan(ranks[i]):
                continue
        elif mask is not None and not chosen_events(begin + i, begin + i + 1, every)[0]:
            continue
        if mask is not None:
            row = [x if there else -math.inf for x, there in zip(row, mask[i], strict=True)]
        rank = rank_of(score, row[:num_random]) if ranks is None else ranks[i]
        found["all"].append(rank)
        if is_first is not None:
            found["first" if is_first[i] else "returns"].append(rank)
        at = num_random
        for name, num in further:
            others, at = row[at : at + num], at + num
            if max(others) > -math.inf:
                among[name].append(1 / rank_of(score, others))
    squares = None
    if num_random > 1 or ranks is not None:
        squares = sum(1 / rank**2 for rank in found["all"])
        if every_rank := found["all"]:
            of_ranked["mrr"] = mean([1 / rank for rank in every_rank])
            of_ranked |= {f"hits@{k}": mean([x <= k for x in every_rank]) for k in (1, 10)}
        parts = {f"mrr_{name}": found[name] for name in ("returns", "first") if found[name]}
        of_some |= {name: mean([1 / rank for rank in part]) for name, part in parts.items()}
    of_some |= {name: mean(values) for name, values in among.items() if values}
    return of_events, of_ranked, of_some, squares


@given(data=st.data(), num=st.integers(0, 40), m=st.integers(0, 13), dtype=st.booleans())
def test_figures_of_a_batch_match_counting_event_by_event(data, num, m, dtype):
    """Ties, masks, given ranks, further negatives, none of them; and scores of any strides."""
    draw, dtype = data.draw, torch.float64 if dtype else torch.float32
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    scores = torch.randint(-4, 5, (m + 1, num), generator=generator).to(dtype).T
    flags = torch.rand(num, m + 2, generator=generator) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    sizes = draw(st.sampled_from([(), (1,), (2, 3)]))
    further = [(f"among_{i}", size) for i, size in enumerate(sizes if m > sum(sizes) else ())]
    ranks = torch.randint(2, 20, (num,), generator=generator).double() / 2
    given = {
        "mask": draw(st.sampled_from([None, flags[:, :m].contiguous()])),
        "ranks": draw(st.sampled_from([None, ranks.where(flags[:, -1], torch.nan)])),
        "is_first": draw(st.sampled_from([None, flags[:, m].contiguous()])),
    }
    place = {"begin": draw(st.integers(0, 50)), "every": draw(st.integers(1, 5))}
    new, there = draw(st.integers(0, num)), given["mask"]
    learned = (scores[:, 0], scores[:, 1:], new, there) if m else None
    both = scores[:, 0], scores[:, 1:]
    found = metrics.link_figures(*both, learned, **given, **place, further=further)
    lists = {name: None if x is None else x.tolist() for name, x in given.items()}
    columns = scores[:, 0].tolist(), scores[:, 1:].tolist() or [[0.0] * m]
    expected = figures_by_hand(*columns, **lists, **place, further=further)
    assert [list(each) for each in found[:3]] == [list(each) for each in expected[:3]]
    for ours, theirs in zip(found[:3], expected[:3], strict=True):
        for name, both in ours.items():
            assert both == pytest.approx(theirs[name], rel=1e-12), name  # sums of another order
    if m and num > new:
        kept = torch.ones(num - new, dtype=torch.bool) if there is None else there[new:, 0]
        replayed = [x[new:][kept] for x in (scores[:, 0], scores[:, 1])]
        by_hand = metrics.average_precision(*replayed) if kept.any() else None
        assert found.replay_ap == by_hand
    else:
        assert found.replay_ap is None
    assert found[3] == (None if expected[3] is None else pytest.approx(expected[3], rel=1e-12))


@given(num=st.integers(1, 5000))
def test_means_of_ranks_are_summed_as_torch_sums(num):
    """Records keep their digits; on a CPU without AVX torch's order may be another one."""
    has_avx = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    ranks = torch.randint(2, 43, (num,), generator=torch.Generator().manual_seed(num)).double() / 2
    _, found, _, squares, _ = metrics.link_figures(
        torch.zeros(num), torch.zeros(num, 1), ranks=ranks
    )
    same = partial(pytest.approx, rel=0 if has_avx else 1e-12, abs=0)
    assert found["mrr"] == (same(float(ranks.reciprocal().mean())), num)
    assert squares == same(float(ranks.pow(-2).sum()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_found_in_any_shape(dtype, bad):
    values = torch.ones(3, 4, dtype=dtype)
    views = values[1, 2], values[:, 2], values.T
    assert metrics.are_finite([*views, values[:0]])
    values[1, 2] = bad
    assert not any(metrics.are_finite([values[:0], view]) for view in views)
    assert metrics.are_finite([values[0], values[:, 1], values[2:].T])


def test_scores_that_differ_beyond_float32_are_not_tied():
    """Heuristics rank by float64 numbers that are equal in float32."""
    positive = torch.tensor([1.0 + 2**-40], dtype=torch.float64)
    negative = torch.tensor([[1.0, 1.0 - 2**-40]], dtype=torch.float64)
    found = metrics.LinkMetrics()
    found.add(positive, negative)
    assert found.result()["mrr"] == found.result()["ap"] == 1.0


SETTINGS = {"batch_size": 20, "mrr_negatives": 5, "metrics": ("Reciprocal",)}


class Reciprocal:
    """The MRR as a user metric, averaged over events."""

    def update(self, positive, negative):
        self.ranks = metrics.ranks(positive, negative)

    def compute(self):
        return float(self.ranks.reciprocal().mean())


class Incomplete:
    def update(self, positive, negative):
        pass


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setattr(metrics, "_registered", {})
    metrics.register("Reciprocal", Reciprocal)


class Recorder(Callback):
    def __init__(self):
        self.records = []

    def on_step(self, record):
        self.records.append(record.to_json())


def assert_as_mrr(flat, *, num):
    """Assert that a registered metric is reported wherever the MRR is, with its value."""
    keys = [key for key in flat if key == "mrr" or key.endswith(".mrr")]
    assert len(keys) >= num
    for key in keys:
        own = flat[key.removesuffix("mrr") + "Reciprocal"]
        assert own == pytest.approx(flat[key], rel=1e-12), key  # sums of another order


def trainer_of(**changes):
    config = tg.ContinualConfig(**{**SETTINGS, **changes})
    return tg.ContinualTrainer(small_tgn(), tg.TemporalGraph(edge_x_dim=2), config)


def test_continual_training_and_resume_measure_a_registered_metric():
    events, whole = made_events(90), trainer_of()
    recorder = Recorder()
    result = whole.run(pieces(events, 40), recorder)
    assert_as_mrr(result, num=3)
    for record in recorder.records:
        assert_as_mrr(record, num=3)
    half = trainer_of()
    half.run(pieces(events[:60], 40))
    resumed = tg.ContinualTrainer.from_checkpoint(small_tgn(), half.checkpoint())
    assert resumed.config.metrics == ("Reciprocal",)
    assert untimed(resumed.run(pieces(events[60:], 40))) == untimed(result)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("Unknown",), "there is no metric 'Unknown' .registered: Reciprocal"),
        (("math:Unknown",), "code that a file names is never imported"),
        (("Reciprocal", "Reciprocal"), "two metrics are named 'Reciprocal'"),
        (("math:loss",), "a metric's name must be an identifier other than"),
        (("math:hits@5",), "a metric's name must be an identifier other than"),
        (("Unfinished",), "must have the methods update and compute"),
    ],
)
def test_invalid_metrics_are_refused(names, message):
    metrics.register("Unfinished", Incomplete)
    with pytest.raises(ValueError, match=message):
        metrics.find_metrics(names)


@pytest.mark.parametrize("hist", [0, 1, 2])
@pytest.mark.parametrize("num", [1, 5])
def test_sample_of_events_has_the_ranks_of_the_whole(hist, num):
    """Each ranked event has the rank that it has where all are ranked, whatever is beside it."""
    ranks = []
    for every in (1, 5):
        config = tg.ContinualConfig(
            batch_size=20,
            mrr_negatives=num,
            mrr_further=f"historical:{hist}" if hist else None,
            mrr_every=every,
            updates=0,
        )
        graph = tg.TemporalGraph(edge_x_dim=2)
        trainer = tg.ContinualTrainer(small_tgn(), graph, config, scores=True)
        records = list(trainer.steps([made_events(100)]))
        ranks.append(torch.cat([record.scores.rank for record in records]))
        means = [record.metrics.get("mrr") for record in records]
        expected = [float((1 / record.scores.rank).nanmean()) for record in records]
        if num > 1:
            assert means == pytest.approx(expected)
    whole, some = ranks
    kept = ~some.isnan()
    assert torch.equal(some[kept], whole[kept])
    assert int(kept.sum()) == (20 if num > 1 or hist > 1 else 100)
