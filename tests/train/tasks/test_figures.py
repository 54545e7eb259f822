"""Label metrics match scikit-learn, and intervals match slow formulas."""

import itertools
import math
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score

from tgflow.train.tasks import figures as scores
from tgflow.train.tasks.figures import LabelFigures, group_scores, precision_at, ranks_of


def drawn(size=300, num_classes=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(num_classes - 1, (size,), generator=generator)  # the last never occurs
    classes = torch.randn(size, num_classes, generator=generator).mul(4).round().div(4)
    classes[torch.arange(size), label] += 0.75
    return label, classes


def figures_of(label, classes, *, pooled=True, pieces=3):
    figures = LabelFigures(classes.shape[1], pooled=pooled)
    for part in torch.arange(len(label)).chunk(pieces):
        figures.add(label[part], classes[part])
    return figures


def test_multiclass_metrics_match_scikit_learn():
    label, classes = drawn()
    result = figures_of(label, classes).result(with_intervals=False)
    predicted = classes.argmax(1)
    assert result["accuracy"] == pytest.approx(accuracy_score(label, predicted), abs=1e-12)
    expected = f1_score(label, predicted, average="macro")
    assert result["macro_f1"] == pytest.approx(expected, abs=1e-12)
    order = [sorted(row.tolist(), reverse=True) for row in classes]
    middles = [
        1 + row.index(own) + (row.count(own) - 1) / 2
        for row, own in zip(order, classes[torch.arange(300), label].tolist(), strict=True)
    ]
    assert ranks_of(label, classes).tolist() == middles
    assert result["mrr"] == pytest.approx(np.mean([1 / rank for rank in middles]), abs=1e-12)
    assert "auc" not in result


@given(
    st.lists(st.tuples(st.booleans(), st.floats(-30, 30, width=32)), min_size=1, max_size=80),
    st.integers(1, 100),
)
def test_figures_of_a_stream_match_scikit_learn_and_round_trip_a_state(rows, most):
    """Scores may be as close as float32 allows; those of more events than `EXACT` are of bins."""
    label = torch.tensor([int(is_positive) for is_positive, _ in rows])
    logit = torch.tensor([value for _, value in rows])
    classes = torch.stack([-logit / 3, logit], dim=1)
    with mock.patch.object(scores, "EXACT", most):
        figures = figures_of(label, classes, pooled=False)
        result = figures.result(with_intervals=True)
        other = LabelFigures(2, pooled=False)
        other.load_state_dict(figures.state_dict())
        other.load_pool(*figures.pool())
        assert other.result(with_intervals=True) == result
        if not 0 < int(label.sum()) < len(label):
            assert "ap" not in result
        elif len(label) <= most:
            score = classes[:, 1].double() - classes[:, 0].double()
            # sums of 80 terms in another order
            expected = average_precision_score(label, score)
            assert result["ap"] == pytest.approx(expected, abs=1e-12)
            assert result["auc"] == pytest.approx(roc_auc_score(label, score), abs=1e-12)
        else:
            assert not len(figures.pool()[0])
            assert result["ap"] == figures.aps()[1]


def test_other_scores_than_those_of_the_bins_are_refused():
    label, classes = torch.tensor([0, 1, 1]), torch.randn(3, 2)
    figures = figures_of(label, classes, pooled=False)
    with pytest.raises(ValueError, match="scores of labels differ"):
        figures.load_pool(*(x[:2] for x in figures.pool()))
    with pytest.raises(ValueError, match="have 2 classes, not 3"):
        LabelFigures(3, pooled=False).load_state_dict(figures.state_dict())


def test_auc_error_matches_delong():
    generator = np.random.default_rng(0)
    positive, negative = generator.integers(0, 9, 14) + 2, generator.integers(0, 9, 23)
    beats = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    by_positive, by_negative = beats.mean(1), beats.mean(0)
    expected = math.sqrt(by_positive.var(ddof=1) / 14 + by_negative.var(ddof=1) / 23)
    values = np.concatenate([positive, negative]).astype(float)
    counts = scores.group_scores(values, np.arange(37) < 14)
    assert scores.auc_error(counts) == pytest.approx(expected, abs=1e-12)
    assert scores.auc_of(counts) == pytest.approx(beats.mean(), abs=1e-12)


def test_undefined_metrics_are_omitted():
    assert LabelFigures(2, pooled=True).result(with_intervals=True) == {}
    label, classes = torch.zeros(4, dtype=torch.int64), torch.randn(4, 2)
    assert "auc" not in figures_of(label, classes).result(with_intervals=True)
    assert LabelFigures(2, pooled=True).add(label[:0], classes[:0]) == {}


def test_ap_so_far_is_that_of_all_scores_and_the_recent_one_follows_a_change():
    label, classes = drawn(num_classes=3)
    label, classes = label.clamp(max=1), classes[:, :2]
    figures = LabelFigures(2, pooled=False)
    figures.add(torch.zeros(4, dtype=torch.int64), torch.zeros(4, 2))
    assert figures.aps() is None
    figures.add(label, classes)
    # aps() is of bins: 0.01 wide, and these scores are multiples of 0.25
    assert figures.aps()[1] == pytest.approx(figures.result(with_intervals=False)["ap"], abs=1e-12)
    for _ in range(200):  # from now on scores are perfect
        figures.add(label, torch.stack([-label.double(), label.double()], dim=1))
    recent, whole = figures.aps()
    assert recent > 0.99
    assert whole == pytest.approx(figures.result(with_intervals=False)["ap"], abs=1e-12)
    other = LabelFigures(2, pooled=False)
    other.load_state_dict(figures.state_dict())
    assert other.aps() == (recent, whole)


def test_calibration_is_the_share_of_positives_by_predicted_probability():
    generator = torch.Generator().manual_seed(3)
    logit = 6 * torch.rand(4000, generator=generator).double() - 3
    chance = logit.sigmoid()
    label = (torch.rand(4000, generator=generator) < chance).long()
    figures = LabelFigures(2, pooled=False)
    figures.add(label, torch.stack([torch.zeros_like(logit), logit], dim=1))
    result = figures.result(with_intervals=True)
    for tenth in range(1, 9):
        inside = (chance * 10).long() == tenth
        expected = float(label[inside].double().mean())
        # an event within a bin's width of an edge, 0.01 in logits, may count in the next tenth
        assert result[f"calibration.{tenth}"] == pytest.approx(expected, abs=0.02)


@given(
    scores=st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=6),
    data=st.data(),
)
def test_precision_at_k_is_the_mean_over_all_orders_of_equal_scores(scores, data):
    k = data.draw(st.integers(1, len(scores)))
    score, is_positive = (np.array(part) for part in zip(*scores, strict=True))
    [found] = precision_at(group_scores(score.astype(float), is_positive), [k])
    shares = []
    for order in itertools.permutations(range(len(scores))):
        best = sorted(order, key=lambda i: -scores[i][0])[:k]  # stable: keeps the order of equals
        shares.append(sum(scores[i][1] for i in best) / k)
    assert found == pytest.approx(np.mean(shares), abs=1e-12)  # sums in another order


def test_precision_at_k_of_a_stream_matches_that_of_its_scores():
    """Scores at the middles of bins of their own: no two of them share one by rounding."""
    generator = torch.Generator().manual_seed(2)
    label = torch.randint(2, (900,), generator=generator)
    score = ((torch.randperm(4096, generator=generator)[:900] + 0.5) / 4096 * 40 - 20).double()
    classes = torch.stack([torch.zeros(900).double(), score], dim=1)
    figures = figures_of(label, classes, pooled=False).result(with_intervals=True)
    order = score.argsort(descending=True)
    for k in (1, 2, 5, 10, 20, 50, 100, 200, 500):
        expected = label[order[:k]].double().mean()
        assert figures[f"precision_at.{k}"] == pytest.approx(float(expected), abs=1e-12)
    assert "precision_at.1000" not in figures
    assert figures["num_labels"] == 900
