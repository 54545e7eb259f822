"""Messages between ranks: payloads of tensors with a checked header, vectors, and JSON values."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from tgflow.base.peers import Group, Peers, RanksDisagree

Spec = tuple[torch.dtype, tuple[int, ...]]
"""Dtype and shape of one tensor."""
HEADER_BYTES = 16
_ALIGNMENT = 8


class Layout:
    """Tensors of a payload and their offsets; known to both sender and receiver.

    A payload has a buffer in host memory, with a header, and one on a device if tensors are there.
    So headers are checked, and values read, without waiting for the device.
    """

    def __init__(
        self, kind: str, specs: Mapping[str, Spec], on_device: Collection[str] = ()
    ) -> None:
        self.kind = kind
        self.specs = specs
        self._places: dict[str, tuple[int, slice]] = {}
        """Number of the buffer, and bytes there."""
        self.num_bytes = [HEADER_BYTES, 0]
        """Size of the buffers in host memory, header included, and on the device."""
        for name, (dtype, shape) in specs.items():
            buffer = int(name in on_device)
            start = -(-self.num_bytes[buffer] // _ALIGNMENT) * _ALIGNMENT
            self.num_bytes[buffer] = end = start + prod(shape) * dtype.itemsize
            self._places[name] = buffer, slice(start, end)
        described = (
            f"{kind} {[(name, str(dtype), *shape) for name, (dtype, shape) in specs.items()]}"
        )
        self._signature = zlib.crc32(described.encode())

    @property
    def item_bytes(self) -> dict[str, int]:
        """Bytes of each tensor, by name, without header and alignment."""
        return {name: place.stop - place.start for name, (_, place) in self._places.items()}

    def pack(
        self, step: int, tensors: Mapping[str, Tensor], devices: Sequence[Any]
    ) -> list[Tensor]:
        """Return the buffers of `step`, uint8, one on each of `devices`."""
        buffers = [
            torch.zeros(size, dtype=torch.uint8, device=device)
            for size, device in zip(self.num_bytes, devices, strict=False)
        ]
        buffers[0][:HEADER_BYTES].copy_(torch.tensor([self._signature, step]).view(torch.uint8))
        for name, (buffer, place) in self._places.items():
            flat = tensors[name].detach().contiguous().reshape(-1).view(torch.uint8)
            buffers[buffer][place].copy_(flat)
        return buffers

    def check(self, step: int, buffer: Tensor, sender: int) -> None:
        """Raise RanksDisagree if the host buffer of `sender` is not of this layout and step."""
        signature, sent = buffer[:HEADER_BYTES].view(torch.int64).tolist()
        if signature != self._signature:
            raise RanksDisagree(
                f"rank {sender} sent other tensors than those of {self.kind!r} {step}: the ranks "
                "differ in code or settings"
            )
        if sent != step:
            raise RanksDisagree(f"rank {sender} is at {self.kind} {sent} and this one at {step}")

    def unpack(self, buffers: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a payload by name, as views of its buffers."""
        return {
            name: buffers[buffer][place].view(self.specs[name][0]).view(self.specs[name][1])
            for name, (buffer, place) in self._places.items()
        }


def specs_of(tensors: Mapping[str, Tensor]) -> dict[str, Spec]:
    """Return dtype and shape of each tensor."""
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def exchange_parcels(
    peers: Peers,
    kind: str,
    step: int,
    sends: Sequence[Mapping[str, Tensor]],
    expected: Sequence[Mapping[str, Spec]],
) -> list[dict[str, Tensor]]:
    """Send tensors to each rank and return those of each, in the group "train".

    One collective for tensors in host memory, in any number; and one more if some are on a device:
    those of a name on one device on all ranks, each of which sends some. `step` numbers the
    payloads of a kind alike on all ranks. `expected` must be right: gloo ends the process if sizes
    differ. In `peers.traffic` each tensor counts under its own name, headers under `kind`. Does not
    synchronize with the device where the group has NCCL. Raises PeerLost, and RanksDisagree if a
    rank is at another step or sent other tensors of the same size.
    """
    on_device = {name: x.device for each in sends for name, x in each.items() if not x.is_cpu}
    devices = [torch.device("cpu"), *{*on_device.values()}]
    outgoing = [Layout(kind, specs_of(tensors), on_device) for tensors in sends]
    incoming = [Layout(kind, specs, on_device) for specs in expected]
    packed = [x.pack(step, each, devices) for x, each in zip(outgoing, sends, strict=True)]
    arrived: list[list[Tensor]] = []
    for number, buffers in enumerate(zip(*packed, strict=True)):
        arrived.append([buffers[0].new_empty(layout.num_bytes[number]) for layout in incoming])
        peers.exchange(buffers, arrived[-1], kind=kind)
        if number == 0:
            for rank, layout in enumerate(incoming):
                layout.check(step, arrived[0][rank], rank)
    for rank, layout in enumerate(outgoing):
        if rank != peers.rank:
            peers.traffic.itemize(kind, layout.item_bytes)
    received = zip(incoming, zip(*arrived, strict=True), strict=True)
    return [layout.unpack(buffers) for layout, buffers in received]


def exchange_vectors(
    peers: Peers, sends: Sequence[Tensor], sizes: Sequence[int], *, kind: str
) -> list[Tensor]:
    """Send each rank a vector in the group "plan", and return those received from each rank."""
    receives = [sends[0].new_empty(size) for size in sizes]
    peers.exchange(
        [each.view(torch.uint8) for each in sends],
        [each.view(torch.uint8) for each in receives],
        kind=kind,
        group="plan",
    )
    return receives


def broadcast_json(peers: Peers, value: Any = None, *, group: Group = "train") -> Any:
    """Return on all ranks the `value` of rank 0, sent as JSON; all call it together."""
    kind, data = f"json, {group}", _packed(value if peers.rank == 0 else None)
    size = torch.tensor([len(data)])
    peers.broadcast(size, kind=kind, group=group)
    data = data if peers.rank == 0 else torch.zeros(int(size), dtype=torch.uint8)
    peers.broadcast(data, kind=kind, group=group)
    return json.loads(bytes(data.numpy()))


def collect_json(peers: Peers, value: Any, *, group: Group = "train") -> list[Any]:
    """Return on rank 0 the values of all ranks, sent as JSON; nothing on others."""
    kind, data, nothing = f"json, {group}", _packed(value), torch.zeros(0, dtype=torch.uint8)
    sizes = peers.gather(torch.tensor([len(data)]), [1] * peers.world, kind=kind, group=group)
    room = [torch.zeros(n if peers.rank == 0 else 0, dtype=torch.uint8) for n in sizes.tolist()]
    peers.exchange([data, *[nothing] * (peers.world - 1)], room, kind=kind, group=group)
    return [json.loads(bytes(each.numpy())) for each in room if peers.rank == 0]


def _packed(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
