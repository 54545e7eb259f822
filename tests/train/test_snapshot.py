"""Checkpoints of a trainer at work: copies as of then, that cost the training nothing but time."""

import hashlib
import math

import pytest
import torch

from helpers.made_streams import made_events, pieces, small_tgn
from tgflow import checkpoint as ckpt
from tgflow.graph import TemporalGraph
from tgflow.train import state
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.finite import TrainingDiverged
from tgflow.train.stepper import MAX_LOST


def trainer_of(**changes):
    settings = {"batch_size": 20, "learning_rate": 1e-2, "mrr_negatives": 5, **changes}
    return ContinualTrainer(
        small_tgn(), TemporalGraph("undirected", 2), ContinualConfig(**settings)
    )


def contents(checkpoint):
    sections = checkpoint.sections | {name: make() for name, make in checkpoint.sealed.items()}
    return {
        (part, name): x.clone() for part, tensors in sections.items() for name, x in tensors.items()
    }


def state_sha256(checkpoint):
    digest = hashlib.sha256()
    for name, tensor in sorted(contents(checkpoint).items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(state, "PIECE", 64)


@pytest.mark.usefixtures("small_pieces")
def test_later_training_changes_no_bit_of_a_snapshot(tmp_path):
    events = made_events(280)
    trainer = trainer_of()
    for record in trainer.steps(pieces(events, 30)):
        if record.stop == 160:
            snapshot = trainer.checkpoint()
            digest, then = state_sha256(snapshot), contents(snapshot)
    assert set(snapshot.sealed) == {"events-64-000000", "events-64-000001"}
    now = contents(snapshot)
    assert then.keys() == now.keys()
    for name, tensor in then.items():
        assert torch.equal(tensor, now[name]), name
    assert state_sha256(snapshot) == digest
    assert state_sha256(trainer.checkpoint()) != digest
    ckpt.save(tmp_path / "c", snapshot)  # late, as another thread would
    again = ContinualTrainer.from_checkpoint(small_tgn(seed=9), ckpt.load(tmp_path / "c"))
    assert state_sha256(again.checkpoint()) == digest
    again.run(pieces(events[160:], 50))
    assert state_sha256(again.checkpoint()) == state_sha256(trainer.checkpoint())


def test_a_batch_that_cannot_be_predicted_does_not_reach_memory():
    events = made_events(200)
    events.x[105] = math.inf
    trainer = trainer_of(on_nan="skip", replay_ratio=0.0)
    result = trainer.run([events])
    assert result["num_skipped"] >= 1
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    assert trainer.model.state.state_dict()["rows"].isfinite().all()


def test_parameters_that_are_not_finite_stop_in_any_case():
    trainer = trainer_of(on_nan="skip")
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.fill_(math.nan)
    with pytest.raises(TrainingDiverged):
        trainer.run([made_events(1000)])
    assert trainer.position == MAX_LOST * 20


def test_other_settings_or_another_model_go_on_with_the_events_kept():
    events, trainer = made_events(300), trainer_of()
    trainer.run([events[:200]])
    other = ContinualConfig(batch_size=50, learning_rate=1e-3, mrr_negatives=5)
    again = ContinualTrainer.from_checkpoint(small_tgn(), trainer.checkpoint(), other)
    assert [record.stop for record in again.steps([events[200:]])] == [250, 300]
    assert again.result()["num_events"] == 300
    model = small_tgn(memory_dim=6)
    again = ContinualTrainer.from_checkpoint(model, trainer.checkpoint(), keep_model=False)
    assert again.position == 200
    assert not model.state.state_dict()["rows"].any()
    assert again.run([events[200:]])["num_events"] == 300
