"""Checkpoints: what is saved comes back, and nothing else is ever taken for it."""

import json
import os

import pytest
import torch

from tgflow import checkpoint as ckpt
from tgflow.checkpoint import Checkpoint, CheckpointError


def example():
    shared = torch.arange(6.0).view(2, 3)
    return Checkpoint(
        {
            "model": {"w": shared, "tied": shared, "t": shared.T, "none": torch.empty(0, 4)},
            "events": {"src": torch.tensor([2**62, 0]), "flag": torch.tensor(True)},
            "empty": {},
        },
        {"seed": 7, "config": {"lr": 1e-4, "kinds": ["random"], "clip": None}},
    )


def test_everything_comes_back(tmp_path):
    path = ckpt.save(tmp_path / "runs" / "ckpt-1", example())
    loaded = ckpt.load(path)
    assert loaded.meta == example().meta
    assert ckpt.read_manifest(path)["meta"] == example().meta
    for section, tensors in example().sections.items():
        assert loaded.sections[section].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(loaded.sections[section][name], tensor)
            assert loaded.sections[section][name].dtype == tensor.dtype


def test_saving_again_replaces_and_leaves_nothing_behind(tmp_path):
    path = ckpt.save(tmp_path / "last", example())
    ckpt.save(path, Checkpoint({"model": {"w": torch.ones(1)}}))
    assert ckpt.load(path).sections["model"]["w"].tolist() == [1.0]
    assert os.listdir(tmp_path) == ["last"]


@pytest.mark.parametrize("at", ["_write_file", "_sync_directory"])
def test_a_failed_save_changes_nothing(tmp_path, monkeypatch, at):
    path = ckpt.save(tmp_path / "last", example())

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ckpt, at, fail)
    with pytest.raises(OSError, match="No space left"):
        ckpt.save(path, Checkpoint({}))
    monkeypatch.undo()
    assert ckpt.load(path).meta["seed"] == 7
    assert os.listdir(tmp_path) == ["last"]


@pytest.mark.parametrize(
    ("sections", "meta", "message"),
    [
        ({"../evil": {}}, {}, "section '../evil' must match"),
        ({}, {"loss": float("nan")}, "JSON"),
    ],
)
def test_what_cannot_be_saved_is_refused(tmp_path, sections, meta, message):
    with pytest.raises(ValueError, match=message):
        ckpt.save(tmp_path / "c", Checkpoint(sections, meta))
    assert os.listdir(tmp_path) == []


def test_every_altered_byte_is_noticed(tmp_path):
    path = ckpt.save(tmp_path / "c", example())
    file = path / "events.safetensors"
    data = file.read_bytes()
    for place in range(0, len(data), 7):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CheckpointError, match=r"events\.safetensors is not what was written"):
            ckpt.load(path)
    for size in (0, len(data) - 1, len(data) + 1):
        file.write_bytes((data + b"\0")[:size])
        with pytest.raises(CheckpointError, match="events"):
            ckpt.load(path)
    file.unlink()
    with pytest.raises(CheckpointError, match="in the manifest but not on the disk"):
        ckpt.load(path)


def test_links_are_not_followed(tmp_path):
    path = ckpt.save(tmp_path / "c", example())
    file = path / "events.safetensors"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="cannot be read"):
        ckpt.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "has format 2, this tgflow reads 1"),
        ({"format": True}, "has format True"),
        ({"files": None}, "lacks files or meta"),
        ({"files": {"../../x.safetensors": {}}}, "names a file"),
        ({"files": {"events": {}}}, "names a file"),
        ({"files": {"events.safetensors": {"bytes": "3"}}}, "lacks size or digest"),
    ],
)
def test_odd_manifests_are_refused(tmp_path, change, message):
    path = ckpt.save(tmp_path / "c", example())
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | change))
    with pytest.raises(CheckpointError, match=message):
        ckpt.load(path)


def test_no_manifest_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        ckpt.load(tmp_path)
    (tmp_path / "manifest.json").write_bytes(b"\xff{")
    with pytest.raises(CheckpointError, match="is not JSON"):
        ckpt.load(tmp_path)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(CheckpointError, match="has format None"):
        ckpt.load(tmp_path)
