"""Checkpoints round-trip, and nothing else is accepted as one."""

import os

import pytest
import torch

from helpers.devices import apart, cuda, place_of
from helpers.forged import sign_manifest
from tgflow import checkpoint as ckpt
from tgflow.checkpoint import Checkpoint, CheckpointDamaged, CheckpointVersion, UntrustedCheckpoint
from tgflow.checkpoint import tensors as encoding


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


def test_sections_round_trip_and_are_read_on_demand(tmp_path):
    """Digests are checked on load, or only later; a copy of a loaded checkpoint is equal."""
    saved = example()
    saved.put_part("memory", 7, lambda: {"x": torch.arange(3)})
    saved.put_sealed("events-2-000000", lambda: {"x": torch.arange(2)})
    path = ckpt.save(tmp_path / "runs" / "a", saved)
    loaded = ckpt.load(path)
    assert loaded.meta == example().meta == ckpt.read_manifest(path)["meta"]
    assert loaded.sections.keys() == example().sections.keys()
    for section, tensors in example().sections.items():
        assert loaded.sections[section].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(loaded.sections[section][name], tensor)
    assert loaded.get("memory-p07")["x"].tolist() == [0, 1, 2]
    copy = ckpt.save(tmp_path / "b", loaded)
    first, second = (ckpt.read_manifest(each)["state_sha256"] for each in (path, copy))
    assert first == second
    for name in ("memory-p07", "events-2-000000"):
        ckpt.save(path, saved)
        (path / f"{name}.safetensors").write_bytes(b"no tensors")
        with pytest.raises(CheckpointDamaged, match=name):
            ckpt.load(path)
        found = ckpt.load(path, check_all=False)
        with pytest.raises(CheckpointDamaged, match=name):
            found.get(name)


@pytest.mark.parametrize(
    ("sections", "meta", "message"),
    [({"../evil": {}}, {}, "section '../evil' must match"), ({}, {"loss": float("nan")}, "JSON")],
)
def test_unsupported_values_are_refused(tmp_path, sections, meta, message):
    with pytest.raises(ValueError, match=message):
        ckpt.save(tmp_path / "c", Checkpoint(sections, meta))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"format": 3}, CheckpointVersion, "has format 3, this tgflow reads 2"),
        ({"format": True}, CheckpointVersion, "has format True"),
        ({"files": None}, UntrustedCheckpoint, "files is None, expected dict"),
    ],
)
def test_malformed_manifests_are_refused(tmp_path, change, error, message):
    path = ckpt.save(tmp_path / "c", example())
    (path / "manifest.json").write_bytes(sign_manifest(ckpt.read_manifest(path) | change))
    with pytest.raises(error, match=message):
        ckpt.load(path)


@pytest.mark.parametrize("device", ["cpu", apart, cuda])
def test_section_bytes_do_not_depend_on_the_device(device, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 1 << 10)
    section = {"long": torch.randn(40, 13), "flag": torch.tensor(True), "none": torch.zeros(0, 4)}
    there = {name: x.to(place_of(device)) for name, x in section.items()}
    expected, found = encoding.encode(section), encoding.encode(there)
    assert b"".join(map(bytes, found.chunks())) == b"".join(map(bytes, expected.chunks()))
    assert found.num_bytes == sum(map(len, expected.chunks()))
