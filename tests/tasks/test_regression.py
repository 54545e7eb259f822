"""Logistic regression is scikit-learn's, and folds have their share of each class."""

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from tgflow.tasks.node_labels import fitted_logits, stratified_folds


def test_the_regression_says_what_scikit_learns_says():
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(3, (90,), generator=generator)
    x = torch.randn(90, 4, generator=generator, dtype=torch.float64)
    x[:, 0] += 2 * label
    x[:, 3] = 7.0  # says nothing, and has no deviation
    learned, new = slice(0, 60), slice(60, 90)
    scaler = StandardScaler().fit(x[learned].numpy())
    reference = LogisticRegression(tol=1e-8, max_iter=2000)
    reference.fit(scaler.transform(x[learned].numpy()), label[learned].numpy())
    expected = reference.predict_proba(scaler.transform(x[new].numpy()))
    found = fitted_logits(x[learned], label[learned], x[new], 3).softmax(1)
    assert np.abs(found.numpy() - expected).max() < 1e-3


def test_folds_are_stratified_and_each_row_is_in_one():
    label = torch.tensor([0] * 50 + [1] * 10)
    folds = list(stratified_folds(label, 5, seed=3))
    assert torch.stack(folds).sum(0).tolist() == [1] * 60
    assert [int(label[fold].sum()) for fold in folds] == [2] * 5
    again = list(stratified_folds(label, 5, seed=3))
    other = list(stratified_folds(label, 5, seed=4))
    assert all(map(torch.equal, folds, again))
    assert not all(map(torch.equal, folds, other))
