"""Checkpoints of trainers whose batches are cut into slices: the same whoever writes them."""

import pytest

from helpers.made_streams import made_events, pieces, small_tgn
from helpers.records import assert_same_state
from helpers.savers import Savers
from tgflow.checkpoint import CheckpointStore, load, read_manifest
from tgflow.checkpoint.checkpoint import part_section
from tgflow.graph import TemporalGraph
from tgflow.peers import PARTS
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer

EVENTS = made_events(260)
PART_NAMES = {part_section("memory", part) for part in range(PARTS)}


def trained(slices, until=160, model=small_tgn):
    config = ContinualConfig(
        batch_size=20, slices=slices, mrr_negatives=5, replay_ratio=0.5, replay_horizon=40
    )
    trainer = ContinualTrainer(model(), TemporalGraph("undirected", 2), config)
    trainer.run(pieces(EVENTS[:until], 30))
    return trainer


@pytest.fixture(scope="module")
def sliced():
    return trained(slices=4)


@pytest.mark.slow
def test_one_digest_for_any_number_of_ranks(sliced, tmp_path):
    path = CheckpointStore(tmp_path / "plain").save(160, sliced.checkpoint())
    digests = {read_manifest(path)["state_sha256"]}
    for world in (1, 2, 3, 4):
        path = Savers([tmp_path / str(world)] * world).save(160, sliced.save_to)
        digests.add(read_manifest(path)["state_sha256"])
    assert len(digests) == 1


def test_what_ranks_have_saved_goes_on_with_the_same_bits(sliced, tmp_path):
    found = load(Savers([tmp_path] * 3).save(160, sliced.save_to))
    assert_same_state(ContinualTrainer.from_checkpoint(small_tgn(seed=9), found), sliced)
    again = ContinualTrainer.from_checkpoint(small_tgn(seed=9), found)
    undisturbed = trained(slices=4)
    for trainer in (again, undisturbed):
        trainer.run(pieces(EVENTS[160:], 50))
    assert_same_state(again, undisturbed)
