"""What a device store holds, counted when asked for."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from tgflow.cuda.device import Device
from tgflow.cuda.structs import StoreView

_THREADS = 256


@dataclass(frozen=True, slots=True)
class DeviceTier:
    """What the latest version of the graph has in a tier."""

    num_blocks: int
    num_entries: int
    capacity: int
    """Entries that its blocks have room for."""
    bytes: int
    """Of its chunks."""


@dataclass(frozen=True, slots=True)
class DeviceStats:
    """What a device store holds and what it costs."""

    device: DeviceTier
    host: DeviceTier
    max_blocks: int
    """Blocks of the node that has most."""
    reads: tuple[int, int]
    """Neighbors read from each tier, counted where there is a budget."""
    bytes: int
    """All memory, that of directories, heads and tables included."""

    @property
    def num_entries(self) -> int:
        """Entries of both tiers."""
        return self.device.num_entries + self.host.num_entries


def count(
    gpu: Device, store: StoreView, reads: Tensor, chunk_bytes: tuple[int, int], other: int
) -> DeviceStats:
    """Count a store's blocks, node by node. Synchronizes.

    Args:
        gpu: The device.
        store: As readers find it.
        reads: Neighbors read from each tier, int64 `[2]` on the device.
        chunk_bytes: Of each tier.
        other: Bytes of all but chunks.
    """
    counts = torch.zeros(7, dtype=torch.int64, device=gpu.device)
    blocks = -(-max(store.num_nodes, 1) // _THREADS)
    gpu.kernels.launch("count_store", blocks, _THREADS, store, ctypes.c_uint64(counts.data_ptr()))
    found = counts.tolist()
    device, host = (
        DeviceTier(found[tier], found[2 + tier], found[4 + tier], chunk_bytes[tier])
        for tier in range(2)
    )
    hits, misses = reads.tolist()
    return DeviceStats(device, host, found[6], (hits, misses), sum(chunk_bytes) + other)
