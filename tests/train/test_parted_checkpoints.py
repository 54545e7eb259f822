"""Checkpoints of trainers whose batches are cut into slices: the same whoever writes them."""

import pytest
import torch

from helpers.made_streams import made_events, pieces, small_tgat, small_tgn
from helpers.savers import Savers
from tgflow.cache import cached
from tgflow.checkpoint import Checkpoint, CheckpointError, CheckpointStore, load, read_manifest
from tgflow.checkpoint.checkpoint import part_section
from tgflow.graph import TemporalGraph
from tgflow.peers import PARTS, Shard
from tgflow.tables import FeatureTable
from tgflow.train import parted_rows
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.parted_rows import load_parts, save_parts

EVENTS = made_events(260)
PART_NAMES = {part_section("memory", part) for part in range(PARTS)}


def trained(slices, until=160, model=small_tgn):
    config = ContinualConfig(
        batch_size=20, slices=slices, mrr_negatives=5, replay_ratio=0.5, replay_horizon=40
    )
    trainer = ContinualTrainer(model(), TemporalGraph("undirected", 2), config)
    trainer.run(pieces(EVENTS[:until], 30))
    return trainer


def state_of(trainer):
    checkpoint = trainer.checkpoint()
    names = [*checkpoint.sections, *checkpoint.sealed]
    return {(n, key): x for n in names for key, x in checkpoint.get(n).items()}


def assert_same(left, right):
    left, right = state_of(left), state_of(right)
    assert left.keys() == right.keys()
    for name, x in left.items():
        assert torch.equal(x, right[name]), name


@pytest.fixture(scope="module")
def sliced():
    return trained(slices=4)


def test_one_slice_keeps_the_layout_that_there_was():
    sections = trained(slices=1, until=40).checkpoint().sections
    assert "state" in sections
    assert not PART_NAMES & sections.keys()


def test_slices_have_the_memory_by_parts(sliced):
    sections = sliced.checkpoint().sections
    assert sections.keys() >= PART_NAMES
    assert "state" not in sections


def test_slices_have_features_by_parts(sliced):
    """Those of the parts that have rows: stripe after stripe they are far from each other."""
    names = {name for name in sliced.checkpoint().sections if name.startswith("edge_x")}
    assert names == {"edge_x-p00", "edge_x-p32", "edge_x-p16"}
    assert {"edge_x", "edge_x_mark"} <= trained(1, until=40).checkpoint().sections.keys()


@pytest.mark.parametrize(("there", "is_cached"), [("host", False), ("disk", False), ("auto", True)])
def test_pieces_of_parts_are_put_together(there, is_cached, monkeypatch):
    """Of rows that are sealed, and of those that are not; wherever they go."""
    rows, saved = made_events(9000).x, FeatureTable(2)
    saved.append(rows)
    monkeypatch.setattr(parted_rows, "PIECE_BYTES", 64 * 8)
    found = Checkpoint({})
    save_parts(found, "edge_x", saved, 8999)
    assert found.sealed.keys() >= {"edge_x-p00-64-000001", "edge_x-p63-64-000001"}
    assert "edge_x-p63-64-000002" not in found.sealed
    table = FeatureTable(2, placement=there)
    table = cached(table, rows=5) if is_cached else table
    load_parts(found, "edge_x", table)
    assert torch.equal(table.read(0, len(table)), rows[:8999])


def leave_out(found):
    del found.sections["edge_x-p16"]


def count_fewer(found):
    found.meta["edge_x"]["rows"] = 150


def have_odd_pieces(found):
    found.meta["edge_x"]["piece"] = 3


def have_pieces_of_none(found):
    found.meta["edge_x"]["piece"] = 0


def count_by_words(found):
    found.meta["edge_x"]["rows"] = "160"


def have_wider_rows(found):
    found.sections["edge_x-p16"] = {"x": torch.ones(32, 5)}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (leave_out, "edge_x-p16"),
        (count_fewer, r"edge_x-p16: x is .* \(32, 2\), .* \(22, 2\)"),
        (have_odd_pieces, "has whole stripes, not 3 rows"),
        (have_pieces_of_none, "has whole stripes, not 0 rows"),
        (count_by_words, "rows is '160', and no int"),
        (have_wider_rows, r"edge_x-p16: x is .* \(32, 5\)"),
    ],
)
def test_parts_that_do_not_fit_are_refused(sliced, spoil, said):
    found = sliced.checkpoint()
    spoil(found)
    with pytest.raises(CheckpointError, match=said):
        ContinualTrainer.from_checkpoint(small_tgn(), found)


def test_a_model_without_memory_is_saved_as_ever():
    assert not PART_NAMES & trained(4, 40, small_tgat).checkpoint().sections.keys()


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
    assert_same(ContinualTrainer.from_checkpoint(small_tgn(seed=9), found), sliced)
    again = ContinualTrainer.from_checkpoint(small_tgn(seed=9), found)
    undisturbed = trained(slices=4)
    for trainer in (again, undisturbed):
        trainer.run(pieces(EVENTS[160:], 50))
    assert_same(again, undisturbed)


def test_ranks_copy_no_more_than_is_theirs(sliced):
    whole = sum(x.nbytes for name in PART_NAMES for x in sliced.checkpoint().get(name).values())
    copied = []
    for rank in range(4):
        own = Checkpoint({}, shard=Shard(rank, 4))
        sliced.save_to(own)
        parts = PART_NAMES & own.sections.keys()
        assert len(parts) == PARTS // 4
        copied.append(sum(x.nbytes for name in parts for x in own.get(name).values()))
    assert sum(copied) == whole


def test_a_memory_is_not_given_to_a_model_without_one(sliced):
    class Whole(torch.nn.Module):
        state_dict = dict
        reset = load_state_dict = keep_past = lambda *_: None

    model = small_tgn()
    model.state = Whole()
    with pytest.raises(CheckpointError, match="does not fit this model"):
        ContinualTrainer.from_checkpoint(model, sliced.checkpoint())
