"""The same moments in s, ms, us and ns give the same bits, in every model."""

from dataclasses import replace

import pytest
import torch

from helpers.effort import cases
from helpers.live_runs import state_of, untimed
from helpers.made_models import NAMES, made_model
from helpers.made_streams import taking_turns
from tgflow.base.units import ticks_per_unit
from tgflow.graph import TemporalGraph
from tgflow.train import ContinualConfig, ContinualTrainer, OfflineConfig, OfflineTrainer, Reuse
from tgflow.train.tasks.config import TaskConfig
from tgflow.train.tasks.labels import LabelTask

UNITS = ("d", "s", "ms", "us", "ns")
MONTHS = 20_000_001
"""More seconds than float32 counts singly."""


def moments(base):
    """Labeled events with ties, gaps of up to months and, in a base below s, parts of seconds."""
    events = taking_turns(240)
    g = torch.Generator().manual_seed(5)
    gap = 10.0 ** (torch.rand(240, generator=g) * 6 - 1)
    gap[::7], gap[60::60] = 0.0, MONTHS
    seconds = 1_600_000_000 + gap.double().cumsum(0)
    return replace(events, t=seconds.mul(float(ticks_per_unit("s", base))).long())


def seen(name, base, unit, delay=None, epochs=0, **settings):
    """Return every batch's tensors and scores, the results and the state at the end."""
    events, tick = moments(base), int(ticks_per_unit(base, unit))
    graph, found, task = TemporalGraph("undirected", 2, time_unit=unit), [], TaskConfig()
    model = made_model(name)
    if delay is not None:
        task = TaskConfig(kind="edge", target="label", classes=3, label_delay=delay)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            LabelTask(task).add_decoder(model, 2)
    settings = {"batch_size": 20, "learning_rate": 1e-2, "mrr_negatives": 5, **settings}

    def keep(module, args, out):
        batch = args[0]
        columns = [batch.eid, batch.negative_dst, out.positive, out.negative]
        columns += [] if batch.counts is None else [batch.counts]
        columns += [] if out.classes is None else [out.classes, batch.targets.age]
        for block in batch.blocks:
            columns += [block.target, block.neighbor, block.mask, block.dt]
        found.extend(x.detach().clone() for x in columns)

    model.register_forward_hook(keep)
    events = replace(events, t=events.t * tick)
    if epochs:
        graph.append(events)
        trainer = OfflineTrainer(model, graph, OfflineConfig(epochs=epochs, **settings))
        result = trainer.fit()
    else:
        trainer = ContinualTrainer(model, graph, ContinualConfig(task=task, **settings))
        result = trainer.run([events])
    return found, untimed(result), state_of(trainer), tick


def assert_same_bits(name, base="s", **settings):
    expected, result, state, _ = seen(name, base, base, **settings)
    assert expected
    for unit in UNITS[UNITS.index(base) + 1 :]:
        found, other_result, other_state, tick = seen(name, base, unit, **settings)
        assert all(map(torch.equal, found, expected)), unit
        assert len(found) == len(expected)
        assert other_result == result
        assert other_state.keys() == state.keys()
        for key, x in state.items():
            other = other_state[key]
            same = other.equal(x)
            if not same and x.dtype == torch.int64 and x.shape == other.shape:
                same = bool(((other == x) | (other == x * tick)).all())  # times are in ticks
            assert same, (unit, key)


@pytest.mark.parametrize("base", cases(["d", "s", "ms"], ["s"]))
@pytest.mark.parametrize("name", cases(NAMES, ["tgn+pairs", "graphmixer", "tpnet", "counts"]))
def test_unit_changes_no_bit_of_a_continual_run(name, base):
    assert_same_bits(name, base, replay_ratio=0.5)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("tgat", {"strategy": "window", "span": "1d"}),
        ("tgat", {"strategy": "decayed", "span": 3600}),
        ("tgat", {"epochs": 2, "reuse": Reuse(staleness=4, refresh=0.3)}),
        ("tgn", {"epochs": 2}),
        ("tgn", {"visibility": "batch", "negatives": "random:2,source:2,recent:2"}),
        ("tgn", {"delay": "1.5s", "replay_ratio": 1.0}),
    ],
)
def test_unit_changes_no_bit_of_samplers_reuse_labels_and_epochs(name, settings):
    assert_same_bits(name, **settings)
