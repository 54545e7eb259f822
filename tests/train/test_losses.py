import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from tgflow.model import Scores
from tgflow.train.losses import bce, bpr, softmax


def test_bce_is_binary_cross_entropy_over_all_scores():
    scores = Scores(torch.tensor([2.0, -1.0]), torch.tensor([[0.5], [3.0]]))
    logits = torch.tensor([2.0, -1.0, 0.5, 3.0])
    expected = binary_cross_entropy_with_logits(logits, torch.tensor([1.0, 1.0, 0.0, 0.0]))
    assert bce(scores).item() == pytest.approx(expected.item())


def test_softmax_is_cross_entropy_among_the_candidates():
    scores = Scores(torch.tensor([2.0, -1.0]), torch.tensor([[0.5, 0.0], [3.0, -2.0]]))
    rows = torch.tensor([[2.0, 0.5, 0.0], [-1.0, 3.0, -2.0]])
    expected = cross_entropy(rows, torch.tensor([0, 0]))
    assert softmax(scores).item() == pytest.approx(expected.item())


def test_bpr_is_the_loss_of_telling_an_event_from_a_negative():
    scores = Scores(torch.tensor([2.0, -1.0]), torch.tensor([[0.5, 0.0], [3.0, -2.0]]))
    gaps = torch.tensor([1.5, 2.0, -4.0, 1.0])
    expected = binary_cross_entropy_with_logits(gaps, torch.ones(4))
    assert bpr(scores).item() == pytest.approx(expected.item())
