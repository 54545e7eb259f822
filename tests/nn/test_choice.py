"""Which candidate leads: by the average precision of all batches before, as of any position."""

import pytest
import torch

from tgflow.metrics import average_precision
from tgflow.nn.choice import Choice, average_precisions


def test_average_precision_of_each_row_is_that_of_the_metrics():
    positive, negative = torch.randint(4, (6, 9)).double(), torch.randint(4, (6, 5)).double()
    expected = [average_precision(*row) for row in zip(positive, negative, strict=True)]
    assert average_precisions(positive, negative).tolist() == pytest.approx(expected)


def test_who_has_been_best_leads_from_the_next_event_on():
    choice = Choice(3)
    for position, merits in ((10, [0.5, 0.6, 0.4]), (20, [0.9, 0.7, 0.4]), (30, [0, 0, 5.0])):
        choice.add(torch.tensor(merits, dtype=torch.float64), position)
    leads = [choice._at(position) for position in (0, 9, 10, 19, 20, 29, 30, 1000)]
    assert leads == [0, 0, 1, 1, 0, 0, 2, 2]


def test_choice_comes_back_from_its_tensors_and_forgets_on_reset():
    choice, other = Choice(2), Choice(2)
    choice.add(torch.tensor([0.0, 1.0], dtype=torch.float64), 10)
    other.load_state_dict(choice.state_dict())
    for each in (choice, other):
        each.add(torch.tensor([3.0, 0.0], dtype=torch.float64), 20)
    assert [other._at(position) for position in (0, 10, 20)] == [0, 1, 0]
    assert all(torch.equal(x, choice.state_dict()[name]) for name, x in other.state_dict().items())
    other.reset()
    assert other.lead == 0
    with pytest.raises(ValueError, match="among 2 does not fit one among 3"):
        Choice(3).load_state_dict(choice.state_dict())
