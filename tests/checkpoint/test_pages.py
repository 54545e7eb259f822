"""The bytes of tensors come in pieces, wherever the tensors are."""

import pytest
import torch

from helpers.devices import apart, cuda, place_of
from tgflow.checkpoint import tensors
from tgflow.checkpoint.tensors import pages

for_each_place = pytest.mark.parametrize("device", ["cpu", apart, cuda])


@for_each_place
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000])
def test_pieces_are_the_bytes_in_order(device, dtype, size):
    values = torch.arange(size).to(dtype)
    found = [bytes(page) for page in pages(values.to(place_of(device)), 64)]
    assert b"".join(found) == values.numpy().tobytes()
    assert all(len(page) == 64 for page in found[:-1])


@for_each_place
def test_a_section_has_the_same_bytes_from_any_device(device, monkeypatch):
    monkeypatch.setattr(tensors, "CHUNK_BYTES", 1 << 10)
    section = {"long": torch.randn(40, 13), "flag": torch.tensor(True), "none": torch.zeros(0, 4)}
    there = {name: x.to(place_of(device)) for name, x in section.items()}
    expected, found = tensors.encode(section), tensors.encode(there)
    assert b"".join(map(bytes, found.chunks())) == b"".join(map(bytes, expected.chunks()))
    assert found.num_bytes == sum(map(len, expected.chunks()))


@pytest.mark.parametrize("device", [apart, cuda])
def test_the_host_holds_no_more_of_a_device_than_a_piece(device):
    values = torch.arange(4096, device="cpu").to(place_of(device))
    assert max(map(len, pages(values, 256))) == 256
