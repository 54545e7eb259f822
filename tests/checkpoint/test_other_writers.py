"""A checkpoint spread over places is another writer; parts and trainers stay as they are."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.made_streams import made_events, pieces, small_tgn
from tgflow.checkpoint import CheckpointWriter
from tgflow.checkpoint.content import part_section
from tgflow.checkpoint.parts import Ids, Parameters
from tgflow.graph import TemporalGraph
from tgflow.ids import NodeIds
from tgflow.tables import FeatureTable
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer


class Shards:
    """Writes each section to a folder of its own under one of several roots, and reads them."""

    def __init__(self, roots):
        self.roots, self.meta, self.waiting = roots, {}, []

    def folder(self, name):
        return self.roots[sum(name.encode()) % len(self.roots)] / name

    def put(self, name, tensors, *, volatile=False):
        self.folder(name).mkdir(parents=True)
        contiguous = {key: tensor.contiguous() for key, tensor in tensors.items()}
        save_file(
            contiguous, self.folder(name) / "tensors.safetensors", {"volatile": str(volatile)}
        )

    def put_part(self, name, part, make, *, volatile=False):
        self.put(part_section(name, part), make(), volatile=volatile)

    def put_sealed(self, name, make, *, turn=0, volatile=False):
        self.put(name, make(), volatile=volatile)

    def note(self, name, value):
        self.meta[name] = json.loads(json.dumps(value))

    def sync_before(self, make_durable):
        self.waiting.append(make_durable)

    def get(self, name):
        if not self.folder(name).exists():
            raise KeyError(name)
        return load_file(self.folder(name) / "tensors.safetensors")


class ShardedStore:
    """Saves checkpoints to shards, as a `CheckpointStore` does to one directory."""

    def __init__(self, path):
        self.path, self.shards = path, None

    def save(self, step, checkpoint):
        self.shards = shards_in(self.path / str(step))
        for name, tensors in checkpoint.sections.items():
            self.shards.put(name, tensors, volatile=name in checkpoint.volatile)
        for name, make in checkpoint.sealed.items():
            self.shards.put_sealed(name, make, volatile=name in checkpoint.volatile)
        for name, value in checkpoint.meta.items():
            self.shards.note(name, value)
        return self.path / str(step)

    def size_of(self, path):
        return sum(file.stat().st_size for file in path.rglob("*.safetensors"))


def shards_in(path):
    return Shards([path / f"rank{i}" for i in range(3)])


def small_trainer():
    graph = TemporalGraph("undirected", 2)
    return ContinualTrainer(
        small_tgn(), graph, ContinualConfig(batch_size=20, learning_rate=1e-2, mrr_negatives=5)
    )


def contents(trainer):
    checkpoint = trainer.checkpoint()
    sections = checkpoint.sections | {name: make() for name, make in checkpoint.sealed.items()}
    return {(name, key): x for name, tensors in sections.items() for key, x in tensors.items()}


def assert_same(left, right):
    left, right = contents(left), contents(right)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_trainer_that_was_saved_to_shards_continues_with_the_same_bits(tmp_path):
    events, trainer = made_events(400), small_trainer()
    trainer.run(pieces(events[:240], 30))
    shards = shards_in(tmp_path)
    trainer.save(shards)
    assert len({root.name for root in tmp_path.iterdir()}) == 3
    trainer.run(pieces(events[240:], 50))

    again = ContinualTrainer.from_checkpoint(small_tgn(seed=9), shards)
    assert again.position == 240
    again.run(pieces(events[240:], 50))
    assert_same(again, trainer)


def test_a_checkpoint_can_be_written_beside_the_training_to_another_kind_of_store(tmp_path):
    events, trainer = made_events(300), small_trainer()
    store = ShardedStore(tmp_path)
    writer = CheckpointWriter(store)
    trainer.run(pieces(events[:200], 50))
    assert writer.submit(trainer.position, trainer.checkpoint())
    stats = writer.wait()
    assert (stats.last_step, stats.saved) == (200, 1)
    assert stats.num_bytes == store.size_of(tmp_path / "200") > 0
    assert_same(ContinualTrainer.from_checkpoint(small_tgn(seed=9), store.shards), trainer)


def test_what_lies_outside_of_shards_can_be_made_durable_and_is_cut_back(tmp_path):
    table = FeatureTable(2, placement="disk", path=tmp_path / "rows")
    trainer = ContinualTrainer(small_tgn(), TemporalGraph("undirected", 2, edge_x=table))
    shards = shards_in(tmp_path)
    trainer.save(shards)
    assert shards.waiting == [table.sync]
    for make_durable in shards.waiting:
        make_durable()
    table.append(torch.zeros(7, 2))
    again = ContinualTrainer.from_checkpoint(small_tgn(), shards, edge_x=table)
    assert len(again.graph.edge_x) == 0


def test_parts_come_back_from_any_reader(tmp_path):
    ids, module, shards = NodeIds(bipartite=True), torch.nn.Linear(2, 3), shards_in(tmp_path)
    ids.encode(["a", "b"], ["a", "c"])
    for part in (Ids(ids, num=3), Parameters(module)):
        part.save(shards)
    found, other = NodeIds(), torch.nn.Linear(2, 3)
    for part in (Ids(found), Parameters(other)):
        part.load(shards)
    assert found.decode(torch.arange(3)) == ["a", "a", "b"]
    assert found.bipartite
    assert torch.equal(other.weight, module.weight)
    with pytest.raises(KeyError, match="optimizer"):
        shards.get("optimizer")
