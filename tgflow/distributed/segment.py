"""What rank 0 says to others of its stream: columns of events, that it lives, or how it ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Self

import torch
from torch import Tensor

from tgflow.distributed.control import STREAM
from tgflow.distributed.parcel import Layout, Spec, specs_of
from tgflow.events import COLUMNS, MICRO_BATCH_END, EventBatch, NewNodes, concat
from tgflow.peers import Peers, RanksDisagree

MOST_BATCHES = 8
"""Micro-batches of one segment, which ranks that must ask each other prepare together: what waits
for the slowest rank is bounded by it."""
_HEADER_WORDS = 8
_MOST_TEXT = 4_000
_NO_FEATURES = -1


class What(IntEnum):
    """What a message is."""

    EVENTS = 1
    HEARTBEAT = 2
    END = 3
    """There will be no more events."""
    FAILURE = 4
    """There will be no more events, and the stream has not ended."""
    MICRO_BATCH_END = 5
    """The micro-batch that fills up is learned as it is."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why rank 0 reads no more, as another process can know it."""

    kinds: tuple[str, ...]
    text: str
    code: int | None = None

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return what other ranks get to know of `error`."""
        kinds = tuple(kind.__name__ for kind in type(error).__mro__)
        code = getattr(error, "code", None)
        return cls(kinds, str(error)[:_MOST_TEXT], code if isinstance(code, int) else None)

    def to_tensor(self) -> Tensor:
        """Return it as JSON, uint8 `[n]`."""
        text = json.dumps([self.kinds, self.text, self.code]).encode()
        return torch.frombuffer(bytearray(text), dtype=torch.uint8)

    @classmethod
    def from_tensor(cls, text: Tensor) -> Self:
        """Return what `to_tensor` made into `text`."""
        kinds, said, code = json.loads(bytes(text.numpy()))
        return cls(tuple(kinds), said, code)


Message = EventBatch | Cause | What
"""Events, a failure, or what needs no more words."""


def segments(stream: Iterable[EventBatch], batch_size: int) -> Iterator[EventBatch]:
    """Yield the events of `stream` in 1 to 8 complete micro-batches; where it ends, or the
    micro-batch does (`MICRO_BATCH_END`, which follows), what is left.

    Nothing that is complete waits for what comes next.

    Args:
        stream: Batches of any size.
        batch_size: Events of a micro-batch; the first of them begins with the stream.
    """
    waiting: list[EventBatch] = []
    num_waiting = 0
    for batch in stream:
        if batch is MICRO_BATCH_END:
            if num_waiting:
                yield concat(waiting)
            yield batch
            waiting, num_waiting = [], 0
            continue
        waiting.append(batch)
        num_waiting += len(batch)
        if num_waiting < batch_size:
            continue
        events = concat(waiting)
        num_complete = num_waiting // batch_size * batch_size
        for start in range(0, num_complete, MOST_BATCHES * batch_size):
            yield events[start : min(start + MOST_BATCHES * batch_size, num_complete)]
        waiting, num_waiting = [events[num_complete:]], num_waiting - num_complete
    if num_waiting:
        yield concat(waiting)


def send(peers: Peers, number: int, message: Message) -> None:
    """Send message `number` to all other ranks, from rank 0: a broadcast, or two."""
    what, contents = _contents(message)
    header = torch.tensor([number, what, *_sizes(message)])
    peers.broadcast(header, kind=STREAM, group="feed")
    if contents:
        packed = Layout(STREAM, specs_of(contents)).pack(number, contents)
        peers.broadcast(packed, kind=STREAM, group="feed")


def receive(peers: Peers, number: int) -> Message:
    """Return message `number` of rank 0, on any other rank; waits for it."""
    header = torch.zeros(_HEADER_WORDS, dtype=torch.int64)
    peers.broadcast(header, kind=STREAM, group="feed")
    sent, what, *sizes = header.tolist()
    if sent != number or what not in list(What):
        raise RanksDisagree(
            f"rank 0 sent message {sent} of kind {what} of its stream, and message {number} was due"
        )
    if what == What.MICRO_BATCH_END:
        return MICRO_BATCH_END
    if what not in (What.EVENTS, What.FAILURE):
        return What(what)
    layout = Layout(STREAM, _specs(What(what), *sizes))
    packed = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    peers.broadcast(packed, kind=STREAM, group="feed")
    contents = layout.unpack(number, packed, sender=0)
    if what == What.FAILURE:
        return Cause.from_tensor(contents["text"])
    node_x = contents.pop("node_x", None)
    new_nodes = None if node_x is None else NewNodes(sizes[-1], node_x)
    return EventBatch.checked(**contents, new_nodes=new_nodes)


def _contents(message: Message) -> tuple[What, dict[str, Tensor]]:
    """Return what a message is, and its tensors by name."""
    if isinstance(message, Cause):
        return What.FAILURE, {"text": message.to_tensor()}
    if isinstance(message, What):
        return message, {}
    if message is MICRO_BATCH_END:
        return What.MICRO_BATCH_END, {}
    columns = {name: getattr(message, name) for name in COLUMNS}
    columns["node_x"] = None if message.new_nodes is None else message.new_nodes.x
    return What.EVENTS, {name: column for name, column in columns.items() if column is not None}


def _sizes(message: Message) -> tuple[int, ...]:
    """Return what `_specs` needs, and the first of the nodes whose features come with events."""
    if not isinstance(message, EventBatch):
        size = len(message.to_tensor()) if isinstance(message, Cause) else 0
        return size, 0, 0, 0, _NO_FEATURES, 0
    present = sum(1 << i for i, name in enumerate(COLUMNS) if getattr(message, name) is not None)
    new = message.new_nodes
    nodes = (0, _NO_FEATURES, 0) if new is None else (*new.x.shape, new.start)
    return len(message), message.x_dim, present, *nodes


def _specs(
    what: What, size: int, width: int, present: int, num_nodes: int, node_width: int, _: int
) -> dict[str, Spec]:
    """Return dtype and shape of each tensor of a message, in the order of `_contents`."""
    if what == What.FAILURE:
        return {"text": (torch.uint8, (size,))}
    specs: dict[str, Spec] = {}
    for i, (name, column) in enumerate(COLUMNS.items()):
        if present >> i & 1:
            specs[name] = (column.dtype, (size, width) if name == "x" else (size,))
    if node_width != _NO_FEATURES:
        specs["node_x"] = (torch.float32, (num_nodes, node_width))
    return specs


def with_new_nodes_once(segments: Iterable[EventBatch]) -> Iterator[EventBatch]:
    """Yield segments, of which none has features of nodes that one before has."""
    stop = 0
    for segment in segments:
        new = segment.new_nodes
        if new is None:
            yield segment
            continue
        yield replace(segment, new_nodes=new.since(stop))
        stop = max(stop, new.stop)
