"""Learning from lists of negatives: losses, slices, resume, and settings."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import softplus

from helpers.effort import slow
from helpers.live_runs import assert_same_state, untimed
from helpers.made_streams import made_events, pieces, small_counts, small_tgat, small_tgn
from tgflow.graph import TemporalGraph
from tgflow.graph.batch import Share
from tgflow.models.counts import SmoothedCounts
from tgflow.nn.groups import PAIR_GROUPS
from tgflow.nn.model import Scores
from tgflow.plan.negatives import FixedNegatives, NegativeFunction, NegativeSampler
from tgflow.plan.plan import Plan
from tgflow.train.config import ContinualConfig, OfflineConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.losses import LOSSES
from tgflow.train.offline import OfflineTrainer
from tgflow.train.plans import training_negatives
from tgflow.train.reuse import Reuse
from tgflow.train.sliced_step import SlicedStep

LISTS = "random:4,source:3,recent:2"
CONFIG = ContinualConfig(batch_size=16, learning_rate=1e-2, mrr_negatives=3, negatives=LISTS)
MODELS = [
    pytest.param(small_tgn, id="tgn"),
    pytest.param(small_tgat, id="tgat"),
    pytest.param(lambda **changes: small_tgn(pair_features=PAIR_GROUPS, **changes), id="tgn+pairs"),
    pytest.param(small_counts, id="counts"),
]


def alone(loss: str, positive: torch.Tensor, negative: torch.Tensor, log_q: torch.Tensor):
    """Return the loss of one event and the negatives that it has, by loops."""
    if loss == "softmax+bce":
        return sum(alone(each, positive, negative, log_q) for each in ("softmax", "bce"))
    pairs = [(s, q) for s, q in zip(negative, log_q, strict=True) if q > -torch.inf]
    if loss == "softmax":
        total = positive.exp() + sum((s + q).exp() for s, q in pairs)
        return total.log() - positive
    total = sum(q.exp() for _, q in pairs) if pairs else 1
    if loss == "bpr":
        return sum((q.exp() * softplus(s - positive) for s, q in pairs), 0 * positive) / total
    others = sum(q.exp() * softplus(s) for s, q in pairs) / total
    return (softplus(-positive) + others) / 2


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_losses_of_lists_match_a_loop(loss, is_weighted):
    g = torch.Generator().manual_seed(1)
    positive, negative = torch.randn(6, generator=g), torch.randn(6, 4, generator=g)
    log_q = 3 * torch.rand(6, 4, generator=g)
    log_q[torch.rand(6, 4, generator=g) < 0.4] = -torch.inf
    log_q[2] = -torch.inf
    weight = torch.rand(6, generator=g) if is_weighted else None
    each = torch.stack(
        [alone(loss, p, n, q) for p, n, q in zip(positive, negative, log_q, strict=True)]
    )
    parts = torch.full((6,), 1 / 6) if weight is None else weight / weight.sum()
    negative.requires_grad_()
    found = LOSSES[loss](Scores(positive, negative), weight=weight, log_q=log_q)
    assert found.item() == pytest.approx(float((each * parts).sum()), rel=1e-5)  # float32
    found.backward()
    assert not negative.grad[log_q == -torch.inf].any()
    assert negative.grad.isfinite().all()
    plain = LOSSES[loss](Scores(positive, negative), log_q=torch.zeros(6, 4))
    expected = LOSSES[loss](Scores(positive, negative))
    assert plain.item() == pytest.approx(expected.item(), rel=1e-6)  # float32


def stepped(negatives, slices=1, loss="softmax", model=small_tgn):
    """Return the loss and the gradients of a step on the third batch."""
    graph, made = TemporalGraph.from_events(made_events(80)), model()
    plan = Plan.for_model(made, graph, batch_size=20, slices=slices, negatives=negatives)
    batch = (
        plan.batch(0, 3) if slices == 1 else Share.of([plan.batch(0, 3, n) for n in range(slices)])
    )
    step = SlicedStep(made, ContinualConfig(), loss=loss)
    return step.learn(batch).loss, [p.grad for p in made.parameters()]


@pytest.mark.parametrize("loss", LOSSES)
def test_padding_of_fixed_negatives_is_not_learned_from(loss):
    """All slots of an event that has fewer negatives repeat the event."""
    start = torch.tensor([0] + [2, 0, 1, 3] * 20).cumsum(0)
    dst = 12 + torch.arange(int(start[-1])) % 20
    found, _ = stepped(FixedNegatives(0, start, dst), loss=loss, model=lambda: small_tgn(dropout=0))
    batch = Plan.for_model(
        model := small_tgn(dropout=0), TemporalGraph.from_events(made_events(80)), batch_size=20,
        negatives=FixedNegatives(0, start, dst),
    ).batch(0, 3)  # fmt: skip
    scores = model.train()(batch)
    log_q = batch.negative_mask.float().log()
    each = map(alone, [loss] * 20, scores.positive, scores.negative, log_q)
    assert found.item() == pytest.approx(sum(each).item() / 20, rel=1e-5)  # float32


@pytest.mark.parametrize("loss", LOSSES)
def test_slices_have_the_gradients_of_the_whole_batch(loss):
    def model():
        return small_tgn(dropout=0, pair_features=PAIR_GROUPS)

    negatives = NegativeSampler(4, 3, 2)
    whole, expected = stepped(negatives, loss=loss, model=model)
    sliced, found = stepped(negatives, slices=4, loss=loss, model=model)
    assert sliced.item() == pytest.approx(whole.item(), rel=1e-5)  # float32
    for a, b in zip(found, expected, strict=True):
        # float32 in other orders; the gradient of the last bias cancels to zero
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


def test_loss_of_your_own_takes_lists_or_is_refused():
    def plain(scores):
        return softplus(-scores.positive).mean()

    def by_list(scores, log_q=None):
        return (softplus(scores.negative) * (log_q > -torch.inf)).mean()

    stepped(NegativeSampler(random=2), loss=plain)
    stepped(NegativeSampler(2, 1), loss=by_list)
    with pytest.raises(ValueError, match=r"plain takes no log_q, .*negatives=\"random:1\""):
        stepped(NegativeSampler(2, 1), loss=plain)


RESUMED = [*(slow(*model.values) for model in MODELS[:2]), *MODELS[2:]]


@pytest.mark.parametrize("model", RESUMED)
def test_training_from_lists_resumes_with_the_same_bits(model):
    events = made_events(160)

    def trained(config=CONFIG):
        return ContinualTrainer(model(), TemporalGraph(edge_x_dim=2), config)

    whole = trained()
    result = whole.run(pieces(events, 50))
    assert result["negatives"] == LISTS
    assert f"learned from {LISTS}" in result["protocol_line"]
    first = trained()
    first.run(pieces(events[:96], 50))
    second = ContinualTrainer.from_checkpoint(model(), first.checkpoint())
    again = second.run(pieces(events[96:], 50))
    for name in ("prequential.ap", "prequential.mrr", "running.loss", "running.replay_ap"):
        assert again[name] == result[name]
    for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    sliced = trained(replace(CONFIG, slices=4)).run(pieces(events, 50))
    # dropout is drawn for each slice
    assert sliced["prequential.mrr"] == pytest.approx(result["prequential.mrr"], abs=0.1)
    other = trained(replace(CONFIG, negatives=None)).run(pieces(events, 50))
    assert other["negatives"] == whole.model.negatives
    assert other["running.loss"] != result["running.loss"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("protocol", [None, "tkgl/1"])
def test_offline_training_from_lists(model, protocol):
    graph = TemporalGraph.from_events(made_events(300))
    config = OfflineConfig(
        batch_size=20, epochs=2, learning_rate=1e-2, negatives=LISTS, protocol=protocol
    )
    trainer = OfflineTrainer(model(), graph, config)
    assert trainer._train_plan.draws.negatives.is_list
    result = trainer.fit()
    assert (result["negatives"], result["test_negatives"]) == (LISTS, "random")
    assert f"learned from {LISTS}" in result["protocol_line"]
    assert result["test.ap"] > 0.5


def test_lists_reuse_rows():
    graph = TemporalGraph.from_events(made_events(300))
    config = OfflineConfig(
        batch_size=20, epochs=2, negatives=LISTS, strategy="recent", reuse=Reuse(staleness=8)
    )
    assert OfflineTrainer(small_tgat(), graph, config).fit()["reuse.reused"] > 0


def test_default_of_a_model_is_overridden_by_settings():
    class Own(SmoothedCounts):
        negatives = "source:2"

    graph = TemporalGraph.from_events(made_events(60))
    trainer = OfflineTrainer(Own(), graph, OfflineConfig(epochs=1))
    own = trainer._train_plan.draws.negatives
    assert own == NegativeSampler(source=2, distinct=True, cut=len(trainer.split.train))
    assert trainer.fit()["negatives"] == "source:2"
    config = OfflineConfig(epochs=1, negatives="random:1")
    plain = OfflineTrainer(Own(), graph, config)._train_plan.draws.negatives
    assert plain == NegativeSampler(random=1, cut=len(trainer.split.train))


def test_negatives_are_read_from_text():
    assert training_negatives(" random:3, recent:2") == NegativeSampler(
        random=3, recent=2, distinct=True
    )
    assert training_negatives("random:1", collide=True) == NegativeSampler(random=1, collide=True)
    pool = training_negatives("random:1", pool=torch.tensor([1, 2]))
    assert len(pool.pool) == 2
    for text in ("", "random", "random:0", "random:-1", "inductive:3", "random:2,random:3"):
        with pytest.raises(ValueError, match=r"^negatives: a list of negatives has"):
            ContinualConfig(negatives=text)


def test_historical_negatives_are_learned_from_beside_a_random_one():
    assert training_negatives("historical:2") == NegativeSampler(historical=2)
    events = made_events(300)
    graph, model = TemporalGraph.from_events(events), small_counts()
    both = training_negatives("random:1,historical:2", cut=300)
    plan = Plan.for_model(model, graph, batch_size=20, negatives=both)
    pairs = list(zip(events.src.tolist(), events.dst.tolist(), strict=True))
    for index in range(1, len(plan)):
        batch = plan.batch(0, index)
        assert batch.negative_src[:, 0].tolist() == batch.src.tolist()
        past, own = set(pairs[: 20 * index]), set(pairs[20 * index : 20 * index + 20])
        drawn = torch.stack([batch.negative_src, batch.negative_dst], dim=2)[:, 1:]
        if len(past - own) > 1:
            assert set(map(tuple, drawn.flatten(0, 1).tolist())) <= past - own
    with pytest.raises(ValueError, match="they go beside random:1 alone, got 'source:2,historical"):
        training_negatives("source:2,historical:1")


def function_of(sampler: NegativeSampler) -> NegativeFunction:
    """Return a function that draws as a sampler does."""

    def drawn(history, key, src, dst, start, stop):
        return sampler.draw(history, key, src, dst, start=start, stop=stop).dst

    return NegativeFunction(drawn, sampler.num)


def test_negatives_of_no_known_kind_are_refused():
    trainer = ContinualTrainer(small_tgn(), TemporalGraph(edge_x_dim=2), CONFIG, negatives=max)
    with pytest.raises(TypeError, match=r"negatives= takes .*NegativeFunction\(function, num\)"):
        trainer.run(pieces(made_events(200), 50))


def test_function_of_negatives_trains_as_the_sampler_that_it_calls():
    config = replace(CONFIG, negatives="random:1", replay_ratio=1.0)
    trainers = [
        ContinualTrainer(small_tgn(), TemporalGraph(edge_x_dim=2), config, negatives=negatives)
        for negatives in (None, NegativeSampler(1), function_of(NegativeSampler(1)))
    ]
    results = [each.run(pieces(made_events(200), 50)) for each in trainers]
    assert [each["negatives"] for each in results] == ["random:1", "own:1", "own:1"]
    assert "learned from own:1" in results[1]["protocol_line"]
    for each in trainers[1:]:
        assert_same_state(each, trainers[0])
        assert each.not_in_config == ["negatives"]


def test_offline_training_learns_from_a_function_of_negatives():
    graph = TemporalGraph.from_events(made_events(200))
    config = OfflineConfig(batch_size=16, epochs=2, negatives="random:1")
    found = [
        OfflineTrainer(small_tgn(), graph, config, negatives=negatives).fit()
        for negatives in (None, NegativeSampler(1), function_of(NegativeSampler(1)))
    ]
    assert [each["negatives"] for each in found] == ["random:1", "own:1", "own:1"]
    drawn, by_function = (untimed(each) for each in found[1:])
    assert by_function == drawn != untimed(found[0])
