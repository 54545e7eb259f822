"""What holds for every model: each by its name, on the plans that trainers make for it."""

import sys

import pytest
import torch
from sklearn.metrics import average_precision_score

from helpers.devices import apart, cuda, place_of
from helpers.effort import cases
from helpers.emulated_training import emulated_pages  # noqa: F401
from helpers.made_models import (
    NAMES,
    X_DIM,
    batches_of,
    changed,
    has_parameters,
    made_events,
    made_model,
    plan_for,
    scores_of,
)
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.plan.loader import Loader
from tgflow.plan.replay import ExperienceReplay
from tgflow.train.config import ContinualConfig, ExecutionConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.learner import Learner

for_each_model = pytest.mark.parametrize("name", NAMES)
LEARNING = [name for name in NAMES if has_parameters(name)]
STREAM = made_events(60)


def assert_same(found, expected):
    assert len(found) == len(expected)
    assert all(torch.equal(*each) for each in zip(found, expected, strict=True))


@for_each_model
@pytest.mark.parametrize("later", cases(["absent", "other"], ["other"]))
def test_what_comes_later_changes_no_bit(name, later):
    longer = made_events(80)
    if later == "other":
        dst, x = longer.dst.clone(), longer.x.clone()
        dst[60:], x[60:] = 0, 9.0
        longer = changed(longer, dst=dst, x=x)
    model, cut = made_model(name), longer[:60] if later == "absent" else longer
    expected = scores_of(model, list(batches_of(plan_for(model, made_events(80))))[:3])
    assert_same(scores_of(model, list(batches_of(plan_for(model, cut)))[:3]), expected)


@for_each_model
def test_what_an_event_carries_does_not_change_its_own_score(name):
    model, x = made_model(name), STREAM.x.clone()
    x[59] += 5  # the last event of batch 2, which no other event sees
    expected = scores_of(model, batches_of(plan_for(model, STREAM)))
    assert_same(scores_of(model, batches_of(plan_for(model, changed(STREAM, x=x)))), expected)
    x[40:] += 5
    plans = (plan_for(model, each, visibility="batch") for each in (STREAM, changed(STREAM, x=x)))
    assert_same(*(scores_of(model, batches_of(plan)) for plan in plans))


@for_each_model
def test_events_of_the_same_time_do_not_see_each_other(name):
    model, dst = made_model(name), STREAM.dst.clone()
    dst[58] = dst[0] if dst[58] != dst[0] else dst[1]  # events 57 to 59 have one time
    last = (
        scores_of(model, batches_of(plan_for(model, each)))[2]
        for each in (STREAM, changed(STREAM, dst=dst))
    )
    before, after = (each[[17, 19], 0] for each in last)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


@for_each_model
def test_a_score_does_not_depend_on_who_shares_the_batch(name):
    model = made_model(name)
    scores_of(model, list(batches_of(plan_for(model, STREAM)))[:2])
    with torch.no_grad():
        together = model(plan_for(model, STREAM).batch(0, 2)).positive
        for size in (1, 7):  # from the same state, that of event 40
            alone = model(plan_for(model, STREAM, start=40, batch_size=size).batch(0, 0)).positive
            torch.testing.assert_close(alone, together[:size], rtol=1e-5, atol=1e-5)


@for_each_model
def test_the_size_of_chunks_changes_no_score(name, monkeypatch):
    model = made_model(name)
    module = sys.modules[type(model).__module__]
    if not hasattr(module, "MAX_PAIRS"):
        pytest.skip("it scores all pairs at once")
    expected = scores_of(model, batches_of(plan_for(model, STREAM)))
    monkeypatch.setattr(module, "MAX_PAIRS", 7)
    found = scores_of(model, batches_of(plan_for(model, STREAM)))
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


@for_each_model
@pytest.mark.parametrize("shift", cases([1, 10**9, 2**40], [2**40]))
def test_a_shift_of_all_times_changes_no_bit(name, shift):
    model, later = made_model(name), changed(STREAM, t=STREAM.t + shift)
    expected = scores_of(model, batches_of(plan_for(model, STREAM)))
    assert_same(scores_of(model, batches_of(plan_for(model, later))), expected)


# A table of trained rows and drawn projections know nodes by their ids, by design.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "tpnet"])
def test_names_of_nodes_do_not_matter(name):
    model, to = made_model(name), torch.randperm(12, generator=torch.Generator().manual_seed(1))
    other = changed(STREAM, src=to[STREAM.src], dst=to[STREAM.dst])
    found, expected = (scores_of(model, batches_of(plan_for(model, s))) for s in (other, STREAM))
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one[:, 0], two[:, 0], rtol=1e-5, atol=1e-5)


@for_each_model
def test_threads_and_look_ahead_change_no_bit(name):
    model = made_model(name)
    expected = scores_of(model, batches_of(plan_for(model, STREAM)))
    for threads, lookahead in ((0, 1), (2, 3)):
        plan = plan_for(model, STREAM)
        loader = Loader(plan, 0, num_threads=threads, lookahead=lookahead)
        assert_same(scores_of(model, loader), expected)


@for_each_model
def test_replayed_events_are_scored_as_they_were(name):
    model, replay = made_model(name), ExperienceReplay(1.0, horizon=60)
    if model.state is not None:
        model.state.keep_past(100)
    first, again = {}, {}
    batches = list(batches_of(plan_for(model, STREAM, replay=replay)))
    for batch, scores in zip(batches, scores_of(model, batches), strict=True):
        for row, eid in enumerate(batch.eid.tolist()):
            (first if row < batch.num_new else again)[eid] = scores[row, 0]
    assert again
    for eid, score in again.items():
        torch.testing.assert_close(score, first[eid], rtol=1e-5, atol=1e-5)


@for_each_model
def test_a_first_event_and_an_event_of_one_node_have_an_answer(name):
    model, node = made_model(name), torch.tensor([4, 4, 4])
    events = EventBatch(torch.tensor([3, 4, 4]), node, torch.arange(3), torch.ones(3, X_DIM))
    for batch_size in (1, 3):
        for scores in scores_of(model, batches_of(plan_for(model, events, batch_size=batch_size))):
            assert scores.shape[1] == 3
            assert bool(scores.isfinite().all())


@for_each_model
@pytest.mark.parametrize("num_negatives", [0, 2])
def test_no_events_at_all_have_no_scores_and_leave_nothing(name, num_negatives):
    model = made_model(name)
    scores_of(model, list(batches_of(plan_for(model, STREAM)))[:2])
    nothing = plan_for(model, STREAM).part(0, 2, slice(0, 0), num_negatives)
    before = {} if model.state is None else model.state.state_dict()
    for training in (True, False):
        scores = model.train(training)(nothing)
        assert scores.positive.shape == (0,)
        assert scores.negative.shape == (0, num_negatives)
        model.commit(nothing, scores)
    after = {} if model.state is None else model.state.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


@for_each_model
def test_events_are_scored_without_negatives_as_beside_some(name):
    model, plan = made_model(name), plan_for(made_model(name), STREAM)
    scores_of(model, list(batches_of(plan))[:2])
    with torch.no_grad():
        alone, beside = (model(plan.part(0, 2, slice(0, 20), num)) for num in (0, 2))
    assert alone.negative.shape == (20, 0)
    torch.testing.assert_close(alone.positive, beside.positive, rtol=1e-5, atol=1e-5)


@for_each_model
def test_centuries_in_nanoseconds_have_an_answer(name):
    model, times = made_model(name), STREAM.t * 10**16
    for scores in scores_of(model, batches_of(plan_for(model, changed(STREAM, t=times)))):
        assert bool(scores.isfinite().all())


def trainer_of(model, **options):
    config = ContinualConfig(batch_size=10, learning_rate=1e-2, mrr_negatives=2)
    return ContinualTrainer(model, TemporalGraph("undirected", X_DIM), config, **options)


@for_each_model
def test_a_resumed_run_differs_in_no_bit(name):
    whole, first = trainer_of(made_model(name)), trainer_of(made_model(name))
    whole.run([STREAM])
    first.run([STREAM[:30]])
    resumed = ContinualTrainer.from_checkpoint(made_model(name), first.checkpoint())
    resumed.run([STREAM[30:]])
    expected, found = whole.checkpoint().sections, resumed.checkpoint().sections
    assert expected.keys() == found.keys()
    for part, tensors in expected.items():
        for key, tensor in tensors.items():
            assert torch.equal(found[part][key], tensor), (part, key)


@pytest.mark.parametrize("name", LEARNING)
def test_one_batch_can_be_learned_by_heart(name):
    model = made_model(name)
    pair = torch.arange(100) % 7  # each source has one destination, which its negatives are not
    x = torch.randn(7, X_DIM, generator=torch.Generator().manual_seed(0))[pair]
    events = EventBatch(pair, 7 + pair, torch.arange(100) * 7, x)
    before, batch = batches_of(plan_for(model, events, batch_size=50, num_negatives=1))
    learner = Learner(model, seed=0, learning_rate=1e-2)
    learner.commit(before, learner.predict(before))
    labels = [1] * 50 + [0] * 50
    for step in range(300):
        learner.learn(batch)
        if step % 20 == 0:
            scores = learner.predict(batch)
            logits = torch.cat([scores.positive, scores.negative.flatten()])
            if average_precision_score(labels, logits.tolist()) > 0.99:
                return
    pytest.fail("300 steps were not enough")


@pytest.mark.slow
@for_each_model
@pytest.mark.parametrize("device", [apart, cuda])
@pytest.mark.usefixtures("emulated_pages")
def test_a_device_learns_what_the_cpu_learns(name, device):
    expected = list(trainer_of(made_model(name)).steps([STREAM]))
    # an emulated device does what it captures
    execution = ExecutionConfig(capture=device != "apart")
    trainer = trainer_of(made_model(name).to(place_of(device)), execution=execution)
    found = list(trainer.steps([STREAM]))
    losses = [[r.loss for r in each if r.loss is not None] for each in (found, expected)]
    assert len(losses[0]) == (len(found) if name in LEARNING else 0)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert found[-1].prequential == pytest.approx(expected[-1].prequential, rel=2e-2)
