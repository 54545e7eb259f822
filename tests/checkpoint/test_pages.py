"""The bytes of tensors come in pieces, wherever the tensors are."""

import pytest
import torch

from helpers.devices import apart, cuda, place_of
from tgflow.checkpoint import tensors

for_each_place = pytest.mark.parametrize("device", ["cpu", apart, cuda])


@for_each_place
def test_a_section_has_the_same_bytes_from_any_device(device, monkeypatch):
    monkeypatch.setattr(tensors, "CHUNK_BYTES", 1 << 10)
    section = {"long": torch.randn(40, 13), "flag": torch.tensor(True), "none": torch.zeros(0, 4)}
    there = {name: x.to(place_of(device)) for name, x in section.items()}
    expected, found = tensors.encode(section), tensors.encode(there)
    assert b"".join(map(bytes, found.chunks())) == b"".join(map(bytes, expected.chunks()))
    assert found.num_bytes == sum(map(len, expected.chunks()))
