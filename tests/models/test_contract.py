"""Properties of every model, on the plans that trainers make for it."""

import re
import sys

import pytest
import torch

import tgflow as tg
from helpers.devices import (
    apart,
    cuda,
    place_of,
    without_autograd_threads,  # noqa: F401
)
from helpers.made_models import (
    NAMES,
    X_DIM,
    batches_of,
    has_parameters,
    made_events,
    made_model,
    plan_for,
    scores_of,
)
from tgflow.graph import TemporalGraph
from tgflow.graph.counts import Count
from tgflow.nn.model import Scores, TemporalModel
from tgflow.testing.check_model import CHECKS, ContractViolation, check_model
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer

for_each_model = pytest.mark.parametrize("name", NAMES)
LEARNING = [name for name in NAMES if has_parameters(name)]
STREAM = made_events(60)


@for_each_model
@pytest.mark.parametrize("check", CHECKS)
def test_model_satisfies_the_contract(name, check):
    assert check_model(lambda: made_model(name), checks=[check]) == [check]


def test_model_whose_embed_returns_a_tensor_is_refused():
    class Plain(TemporalModel):
        strategy, fanouts = "recent", (2,)

        def embed(self, batch):
            return torch.zeros(len(batch.nodes), 4)

    with pytest.raises(ContractViolation, match=r"Plain\.embed returned Tensor; return tgflow"):
        check_model(Plain)


def test_embed_is_called_though_forward_does_without():
    class Broken(tg.EdgeBank):
        def embed(self, batch):
            return tg.Embeddings(batch.no_such_column)

    with pytest.raises(ContractViolation, match="embeddings: raised AttributeError"):
        check_model(Broken)


@for_each_model
def test_scores_do_not_depend_on_chunk_size(name, monkeypatch):
    model = made_model(name)
    module = sys.modules[type(model).__module__]
    sizes = {"MAX_PAIRS": 7, "MAX_TOKENS": 80}
    if not sizes.keys() & vars(module).keys():
        pytest.skip("it scores all pairs at once")
    expected = scores_of(model, batches_of(plan_for(model, STREAM)))
    for limit, size in sizes.items():
        monkeypatch.setattr(module, limit, size, raising=False)
    found = scores_of(model, batches_of(plan_for(model, STREAM)))
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


# Tables of trained rows and random projections depend on node ids by design.


def trainer_of(model, **options):
    config = ContinualConfig(batch_size=10, learning_rate=1e-2, mrr_negatives=2)
    return ContinualTrainer(model, TemporalGraph("undirected", X_DIM), config, **options)


@pytest.mark.slow
@for_each_model
@pytest.mark.parametrize("device", [apart, cuda])
@pytest.mark.usefixtures("without_autograd_threads")
def test_device_training_matches_the_cpu(name, device):
    models = made_model(name), made_model(name).to(place_of(device))
    for model in models:
        model.choose_by = "mrr"  # of rules: ranks read the mask of negatives, which is on the host
    expected, found = (list(trainer_of(model).steps([STREAM])) for model in models)
    losses = [[r.loss for r in each if r.loss is not None] for each in (found, expected)]
    assert len(losses[0]) == (len(found) if name in LEARNING else 0)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert found[-1].prequential == pytest.approx(expected[-1].prequential, rel=2e-2)


class Popular(TemporalModel):
    """Scores a destination by its frequency: a model that satisfies the contract."""

    fanouts, strategy, reads_nodes = (), "recent", False
    counts = (Count("dst").num,)

    def forward(self, batch):
        num = batch.counts[..., 0].float()
        return Scores(num[:, 0], num[:, 1:])


class Broken(Popular):
    """Changes event scores by a function of batch, scores and model."""

    def __init__(self, change):
        super().__init__()
        self.change, self.calls = change, 0
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, batch):
        scores = super().forward(batch)
        self.calls += 1  # which no checkpoint has
        return scores._replace(positive=self.change(batch, scores, self))


VIOLATIONS = {
    "own features: the features of an event change its own score": (
        lambda batch, scores, model: scores.positive + batch.x.sum(1)
    ),
    "batch dependence: a score depends on the other events of the batch": (
        lambda batch, scores, model: scores.positive + len(batch.eid)
    ),
    "negatives: the score of an event depends on negatives": (
        lambda batch, scores, model: scores.positive + scores.negative.sum()
    ),
    "absolute time: a shift of all times changes scores": (
        lambda batch, scores, model: scores.positive + batch.t
    ),
    "pure forward: two calls of forward give two results": (
        lambda batch, scores, model: scores.positive + model.calls
    ),
    "empty batch: raised ": (
        lambda batch, scores, model: scores.positive + 0 * scores.positive.max()
    ),
    "shapes: a score is not finite": lambda batch, scores, model: scores.positive / 0,
    "resume: a resumed run differs from an undisturbed one in model: weight": (
        lambda batch, scores, model: scores.positive + model.weight * model.calls
    ),
}


@pytest.mark.parametrize("expected", VIOLATIONS)
def test_each_violation_is_named(expected):
    with pytest.raises(ContractViolation, match=re.escape(expected)) as error:
        check_model(lambda: Broken(VIOLATIONS[expected]))
    assert str(error.value).startswith("Broken breaks the contract:\n  * ")


def test_valid_model_passes_all_checks():
    assert check_model(Popular) == list(CHECKS)


def test_unknown_checks_and_other_classes_are_refused():
    with pytest.raises(ValueError, match="no check 'speed'; there are shapes, future"):
        check_model(Popular, checks=["speed"])
    with pytest.raises(TypeError, match=r"must be a tgflow\.TemporalModel .*, got Linear"):
        check_model(lambda: torch.nn.Linear(1, 1))
