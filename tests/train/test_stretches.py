"""Memory parallelism: the steps of a simulation, memories of earlier events alone, refusals."""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from helpers.effort import slow
from helpers.made_models import made_events, made_model
from helpers.records import untimed
from helpers.worlds import in_world
from tgflow.base.peers import Peers, Shard
from tgflow.base.tree_sum import TreeSum
from tgflow.checkpoint import Checkpoint
from tgflow.graph import TemporalGraph
from tgflow.nn.memory import POSITION
from tgflow.train.config import OfflineConfig
from tgflow.train.offline import OfflineTrainer, prefix_metrics
from tgflow.train.stretches import Stretches, check_memories
from tgflow.train.tasks.labels import LabelTask

CONFIG = OfflineConfig(
    batch_size=11, epochs=4, learning_rate=1e-2, mrr_negatives=2, grad_clip=1.0, parallel="memory=2"
)
SEQUENTIAL = replace(CONFIG, parallel=None)


def trainer_of(name, config, peers=None):
    """Return a trainer of 16 training batches, the last one short."""
    graph = TemporalGraph.from_events(made_events(300))
    return OfflineTrainer(made_model(name, dropout=0.0), graph, config, peers=peers)


def of(k, config=CONFIG):
    return replace(config, parallel=f"memory={k}")


def fit(peers, name, config):
    """Return the parameters after each epoch, the result, and parameters and memory at the end."""
    trainer, epochs = trainer_of(name, config, peers), []
    result = trainer.fit(lambda: epochs.append(parameters_of(trainer.model)))
    return epochs, untimed(result), parameters_of(trainer.model), trainer.model.state.state_dict()


def parameters_of(model):
    return {name: x.detach().clone() for name, x in model.named_parameters()}


def simulate(peers, name, k):
    """Train k copies of a model in turn; return the parameters after each epoch.

    The copies have one optimizer step for every round of k batches, by the mean of their gradients.
    """
    trainer = trainer_of(name, SEQUENTIAL)
    plan, model = trainer._train_plan, trainer.model
    copies = [deepcopy(model) for _ in range(k)]  # of stretch 0, 1, ...
    parameters = [*model.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=CONFIG.learning_rate, fused=True)
    bounds = [len(plan) * stretch // k for stretch in range(k + 1)]
    memories, epochs = [None] * k, []
    for epoch in range(CONFIG.epochs):
        for copy, memory in zip(copies, memories, strict=True):
            copy.state.reset()
            if memory is not None:
                copy.state.load_state_dict(memory)
        for step in range(max(stop - start for start, stop in pairwise(bounds))):
            turns = [s for s in range(k) if bounds[s] + step < bounds[s + 1]]
            tree = TreeSum(k)
            for rank, stretch in enumerate(reversed(range(k))):
                copy, leaf = copies[stretch], torch.zeros(sum(x.numel() for x in parameters))
                copy.load_state_dict(model.state_dict())
                if stretch in turns:
                    batch = plan.batch(epoch, bounds[stretch] + step)
                    leaf = learn(copy, batch, trainer._learner.loss_of, 1 / len(turns))
                tree.add(range(rank, rank + 1), leaf)
            places = torch.split(tree.total(), [x.numel() for x in parameters])
            for parameter, gradient in zip(parameters, places, strict=True):
                parameter.grad = gradient.view_as(parameter)
            nn.utils.clip_grad_norm_(parameters, CONFIG.grad_clip)
            optimizer.step()
        epochs.append(parameters_of(model))
        memories = [None, *(copy.state.state_dict() for copy in copies[:-1])]
    return epochs


def learn(model, batch, loss_of, part):
    """Return the gradient of a part of a step's loss, and store the batch."""
    model.train()
    model.zero_grad()
    scores = model(batch)
    loss = loss_of(batch, scores)
    (loss * part).backward()
    model.commit(batch, scores)
    gradients = (torch.zeros_like(x) if x.grad is None else x.grad for x in model.parameters())
    return torch.cat([x.flatten() for x in gradients])


@pytest.mark.parametrize(
    ("name", "k"), [("tgn", 3), ("jodie", 2), *(slow("tgn", 5), slow("tpnet", 3))]
)
def test_ranks_take_the_steps_of_a_simulation_in_one_process(name, k):
    [expected] = in_world(1, simulate, name, k)
    ranks = in_world(k, fit, name, of(k))
    for epochs, _, best, _ in ranks:
        assert len(epochs) == len(expected) == CONFIG.epochs
        for found, wanted in zip(epochs, expected, strict=True):
            assert all(torch.equal(found[name], x) for name, x in wanted.items())
        assert all(torch.equal(best[name], x) for name, x in ranks[0][2].items())


def test_same_seed_and_number_of_memories_give_the_same_bits():
    first, second = (in_world(3, fit, "tgn", of(3))[0] for _ in range(2))
    assert first[1] == second[1]
    for a, b in zip(first[2:], second[2:], strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_results_are_of_the_memory_of_the_last_stretch():
    """With parameters that stay as they are, it is one that has seen the stretches in order."""
    config = replace(CONFIG, optimizer="sgd", learning_rate=1e-30)
    (_, result, _, memory), (_, other, *_) = in_world(2, fit, "tgn", config)
    assert result["parallel"] == "memory=2"
    assert "parallel memory=2: steps of 2 batches" in result["protocol_line"]
    alone = trainer_of("tgn", SEQUENTIAL)
    first = 0 if result["best_epoch"] > 0 else 8
    for index in range(first, len(alone._train_plan)):
        alone._learner.commit(alone._train_plan.batch(0, index), None)
    plans = {"val": alone._val_plan, "test": alone._evaluation_plan("test", "random", 2)}
    for part, plan in plans.items():
        found = prefix_metrics(part, alone._evaluate(part, 0, plan))
        assert found == {name: result[name] for name in found}
        assert f"{part}.ap" in found
    held = alone.model.state.state_dict()
    assert all(torch.equal(memory[name], x) for name, x in held.items())
    assert "test.ap" not in other


# No memory comes from later events


def memories_of(peers, config):
    """Return the memory at the start and the end of this rank's stretch in each epoch."""
    trainer, seen = trainer_of("tgn", config, peers), []
    stretches, state = trainer._stretches, trainer.model.state
    begin, hand_on = stretches.begin, stretches.hand_on

    def begin_noted(given):
        begin(given)
        seen.append([state.state_dict()])

    def hand_on_noted(given):
        seen[-1].append(state.state_dict())
        hand_on(given)

    stretches.begin, stretches.hand_on = begin_noted, hand_on_noted
    trainer.fit()
    return stretches.batches, seen


def memory_after(batches):
    """Return the memory of a model that learns nothing, after some of the training batches."""
    trainer = trainer_of("tgn", SEQUENTIAL)
    for index in batches:
        trainer._learner.commit(trainer._train_plan.batch(0, index), None)
    return trainer.model.state.state_dict()


def test_stretch_begins_with_the_memory_of_the_events_before_it():
    """With parameters that stay as they are, memory is that of the stretches before alone."""
    k = 3
    config = replace(of(k), optimizer="sgd", learning_rate=1e-30)
    ranks = in_world(k, memories_of, config)
    stretches = [batches for batches, _ in reversed(ranks)]
    assert [*map(len, stretches)] == [5, 5, 6]
    assert [*range(16)] == [index for batches in stretches for index in batches]
    for number, (batches, seen) in enumerate(reversed(ranks)):
        assert len(seen) == config.epochs
        for epoch, (start, end) in enumerate(seen):
            first = stretches[max(0, number - epoch)].start
            for found, stop in ((start, batches.start), (end, batches.stop)):
                expected = memory_after(range(first, stop))
                size = len(expected["clock"])
                assert not found["clock"][size:].any()
                assert all(torch.equal(found[name][:size], x) for name, x in expected.items())
            assert (start["clock"][:, POSITION] <= batches.start * CONFIG.batch_size).all()


def evaluate_slowly(peers, seconds):
    trainer = trainer_of("tgn", replace(CONFIG, epochs=1), peers)
    predict = trainer._learner.predict

    def slow_predict(batch):
        time.sleep(seconds)
        return predict(batch)

    trainer._learner.predict = slow_predict
    return "test.ap" in trainer.fit()


@pytest.mark.slow
def test_ranks_wait_for_an_evaluation_that_takes_longer_than_the_timeout():
    assert in_world(2, evaluate_slowly, 1.1, timeout=3.0) == [True, False]


# What is refused


@pytest.mark.parametrize("text", ["memory", "memory=0", "memory=9", "memory=two", "epochs=2"])
def test_other_settings_are_refused(text):
    with pytest.raises(
        ValueError, match=f"parallel='{text}' is not parallel='memory=K', with K from 1 to 8"
    ):
        OfflineConfig(parallel=text)


def test_slices_beside_memories_are_refused():
    with pytest.raises(ValueError, match="parallel='memory=2' learns whole batches, got slices=2"):
        OfflineConfig(parallel="memory=2", slices=2)


def test_one_memory_is_the_ordinary_training():
    config = replace(CONFIG, epochs=1)
    results = [
        untimed(trainer_of("tgn", replace(config, parallel=parallel)).fit())
        for parallel in ("memory=1", None)
    ]
    assert results[0] == results[1]
    assert "parallel" not in results[0]


def test_models_without_memory_or_parameters_are_refused():
    with pytest.raises(ValueError, match=r"TGAT has none; let ranks share its batches.*slices=2"):
        check_memories(made_model("tgat"), 2)
    with pytest.raises(ValueError, match=r"averages gradients, and .* has no parameters"):
        check_memories(made_model("edgebank"), 2)


def test_other_numbers_of_ranks_are_refused():
    with pytest.raises(ValueError, match="'memory=2' takes 2 ranks, and there is a world of 1"):
        trainer_of("tgn", CONFIG)


def test_more_stretches_than_batches_are_refused():
    with pytest.raises(ValueError, match="a batch for each of 4 stretches, training has 3; give a"):
        Stretches(Peers(Shard(0, 4)), 3)


def test_tasks_are_refused():
    class Task(LabelTask):
        def check(self, model):
            pass

    graph = TemporalGraph.from_events(made_events(300))
    task = Task.__new__(Task)
    with pytest.raises(ValueError, match="a task requires whole batches: leave parallel out"):
        OfflineTrainer(made_model("tgn"), graph, CONFIG, peers=Peers(Shard(0, 2)), task=task)


def save_an_epoch(peers):
    trainer, said = trainer_of("tgn", replace(CONFIG, epochs=1), peers), []

    def save():
        try:
            trainer.save_progress(Checkpoint({}))
        except ValueError as error:
            said.append(str(error))
        said.append(trainer.checkpoint().meta["under_way"])

    trainer.fit(save)
    return said


def test_epochs_cannot_be_saved():
    text = "epochs of a training with parallel='memory=2' cannot be saved; save it once it is done"
    assert in_world(2, save_an_epoch) == [[text, False]] * 2
