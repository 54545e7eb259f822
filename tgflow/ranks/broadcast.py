"""The stream of all ranks: only rank 0 reads it, and broadcasts it to the others."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from enum import IntEnum
from typing import Any, Self

import safetensors.torch
import torch

from tgflow.base.peers import PeerLost, Peers, RanksDisagree
from tgflow.graph.event_stream import EventStream
from tgflow.graph.events import COLUMNS, MICRO_BATCH_END, EventBatch, NewNodes, concat
from tgflow.ranks.control import STREAM, Order
from tgflow.ranks.parcel import broadcast_json

MOST_BATCHES = 8
"""Most micro-batches of a segment, which ranks with sharded graphs prepare together: it bounds the
wait for the slowest rank."""
_MOST_TEXT = 4_000


class What(IntEnum):
    """Kind of a message."""

    EVENTS = 1
    HEARTBEAT = 2
    END = 3
    FAILURE = 4
    """No more events, but the stream has not ended."""
    MICRO_BATCH_END = 5
    """Learn the micro-batch being filled as it is."""


class LeaderFailed(RuntimeError):
    """Raised on the other ranks when rank 0 stopped reading before the end of its stream.

    `kinds` are the class names of its error, the most derived first; `exit_code` if that has one.
    """

    def __init__(self, kinds: Sequence[str], text: str, exit_code: int | None = None) -> None:
        super().__init__(f"rank 0 has ended: {text}")
        self.kinds, self.text, self.exit_code = kinds, text, exit_code

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return what other ranks raise for an error of this one."""
        code = getattr(error, "code", None)
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return cls(kinds, str(error)[:_MOST_TEXT], code if isinstance(code, int) else None)

    def to_json(self) -> list[Any]:
        """Return its arguments as plain values."""
        return [self.kinds, self.text, self.exit_code]


class Lead(AbstractContextManager["Lead"]):
    """Context of rank 0 until its config is sent; an error in it is sent to the other ranks."""

    def __init__(self, peers: Peers | None = None) -> None:
        self.peers: Peers = Peers() if peers is None else peers
        self._is_over = False

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not self._is_over and self.peers.failure is None:
            with suppress(PeerLost):  # `error` ends this rank already
                broadcast_json(self.peers, {"failure": LeaderFailed.of(error).to_json()})

    def send_config(self, config: Any) -> None:
        """Broadcast plain values to the other ranks, which call `receive_config`."""
        self._is_over = True
        broadcast_json(self.peers, {"config": config})


def receive_config(peers: Peers) -> Any:
    """Receive the value of `Lead.send_config` on any rank but 0; blocks."""
    received = broadcast_json(peers)
    if "failure" in received:
        raise LeaderFailed(*received["failure"])
    return received["config"]


Message = EventBatch | LeaderFailed | What
"""A message: events, a failure, or a kind without payload."""


def segments(stream: Iterable[EventBatch], batch_size: int) -> Iterator[EventBatch]:
    """Yield the events of `stream` in 1 to 8 complete micro-batches; at its end, or at
    `MICRO_BATCH_END`, which follows, the remainder.

    A complete micro-batch is yielded without waiting for later events.
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
    """Broadcast message `number` from rank 0, in one or two broadcasts."""
    what, data = _encoded(message)
    peers.broadcast(torch.tensor([number, what, len(data)]), kind=STREAM, group="feed")
    if data:
        packed = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        peers.broadcast(packed, kind=STREAM, group="feed")


def receive(peers: Peers, number: int) -> Message:
    """Return message `number` of rank 0, on any other rank; blocks until it arrives."""
    header = torch.zeros(3, dtype=torch.int64)
    peers.broadcast(header, kind=STREAM, group="feed")
    sent, what, size = header.tolist()
    if sent != number or what not in list(What):
        raise RanksDisagree(
            f"rank 0 sent message {sent} of kind {what} of its stream, expected message {number}"
        )
    if what == What.MICRO_BATCH_END:
        return MICRO_BATCH_END
    if what not in (What.EVENTS, What.FAILURE):
        return What(what)
    packed = torch.zeros(size, dtype=torch.uint8)
    peers.broadcast(packed, kind=STREAM, group="feed")
    data = packed.numpy().tobytes()
    if what == What.FAILURE:
        return LeaderFailed(*json.loads(data))
    contents, new_nodes = safetensors.torch.load(data), None
    if "node_x" in contents:
        new_nodes = NewNodes(int(contents.pop("node_start")), contents.pop("node_x"))
    return EventBatch.checked(**contents, new_nodes=new_nodes)


def _encoded(message: Message) -> tuple[What, bytes]:
    if isinstance(message, LeaderFailed):
        return What.FAILURE, json.dumps(message.to_json()).encode()
    if isinstance(message, What):
        return message, b""
    if message is MICRO_BATCH_END:
        return What.MICRO_BATCH_END, b""
    columns = {name: getattr(message, name) for name in COLUMNS}
    if (new := message.new_nodes) is not None:
        columns |= {"node_x": new.x, "node_start": torch.tensor(new.start)}
    copies = {  # as safetensors refuses columns that share memory
        name: column.clone(memory_format=torch.contiguous_format)
        for name, column in columns.items()
        if column is not None
    }
    return What.EVENTS, safetensors.torch.save(copies)


HEARTBEAT_SECONDS = 4.0
"""Most seconds of silence until rank 0 sends a heartbeat, which also detects lost ranks."""
_QUEUED = 2
_PAUSE = 0.1
_GRACE_SECONDS = 5.0


class FeedClosed(Exception):
    """Raised when the feed was closed before the end of the stream."""


class Feed(EventStream):
    """The stream of rank 0: iterating reads it, and broadcasts it to all other ranks.

    A context manager: on entry it starts sending; on exit it sends the end of the stream or the
    error, which ends all ranks. The sending thread calls `lost` if another rank is gone, as a
    thread that waits for the stream cannot detect it, and `on_requests` with the requests of all
    ranks (`Order`), which are the answers to a heartbeat: that comes after a third of `timeout`.

    Example:
        >>> with Feed(peers, stream, batch_size=200) as feed:  # on rank 0
        ...     trainer.run(feed)
        >>> with Followed(peers, unit="s") as followed:  # on all others
        ...     trainer.run(followed)
    """

    def __init__(
        self,
        peers: Peers,
        stream: Iterable[EventBatch],
        batch_size: int,
        *,
        lost: Callable[[PeerLost], object] = lambda error: None,
        on_requests: Callable[[Sequence[int]], object] = lambda asked: None,
        timeout: float = 3 * HEARTBEAT_SECONDS,
    ) -> None:
        super().__init__(stream)
        self._peers, self._batch_size = peers, batch_size
        self._lost, self._on_requests = lost, on_requests
        self._heartbeat = min(HEARTBEAT_SECONDS, timeout / 3)
        self._messages: queue.Queue[Message] = queue.Queue(_QUEUED)
        self._has_ended = False
        self._failure: PeerLost | None = None
        self._thread = threading.Thread(target=self._send_all, name="tgflow-feed", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._has_ended:
            self._end(What.END if error is None else LeaderFailed.of(error))
        self._thread.join(_GRACE_SECONDS)

    def __iter__(self) -> Iterator[EventBatch]:
        """Read the stream, and yield the batches queued for the other ranks.

        Raises PeerLost if another rank is gone, FeedClosed if it was closed, and errors of the
        stream.
        """
        num_nodes = 0  # nodes whose features were sent
        try:
            for read in segments(self.source, self._batch_size):
                segment, new = read, read.new_nodes
                if new is not None:
                    segment = replace(read, new_nodes=new.since(num_nodes))
                    num_nodes = max(num_nodes, new.stop)
                self._put(segment)
                yield segment
        except Exception as error:
            self._end(LeaderFailed.of(error))
            raise
        self._end(What.END)

    def _end(self, last: Message) -> None:
        self._has_ended = True
        with suppress(PeerLost, FeedClosed):  # lost ranks need no message
            self._put(last)

    def _put(self, message: Message) -> None:
        """Queue a message to send; block while the queue is full and the sender is running."""
        while True:
            is_sending = self._thread.is_alive()
            if self._failure is not None:
                raise PeerLost(str(self._failure)) from self._failure
            if not is_sending:
                raise FeedClosed
            with suppress(queue.Full):
                self._messages.put(message, timeout=_PAUSE)
                return

    def _send_all(self) -> None:
        """Send queued messages in order, and a heartbeat when idle; until the last one."""
        number, message = 0, None
        try:
            while not isinstance(message, LeaderFailed) and message != What.END:
                try:
                    message = self._messages.get(timeout=self._heartbeat)
                except queue.Empty:
                    message = What.HEARTBEAT
                send(self._peers, number, message)
                if message == What.HEARTBEAT:
                    self._on_requests(_answers(self._peers, Order.NONE))
                number += 1
        except PeerLost as error:
            self._failure = error
            self._lost(error)


class Followed:
    """The stream on ranks other than 0: the segments that rank 0 sends; opens nothing itself.

    A context manager; receives nothing more after exit. `request` returns the requests of this
    rank, sent with the answers to heartbeats.
    """

    def __init__(
        self,
        peers: Peers,
        unit: str,
        x_dim: int = 0,
        request: Callable[[], Order] = lambda: Order.NONE,
    ) -> None:
        self.unit = unit
        self.x_dim = x_dim
        self._peers, self._request = peers, request
        # not bounded: rank 0, at the same micro-batch, waits for answers to its heartbeats
        self._arrived = queue.SimpleQueue[Message | Exception]()
        self._is_closed = False
        self._thread = threading.Thread(target=self._receive_all, name="tgflow-feed", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
        self._thread.join(0.0 if any(error) else _GRACE_SECONDS)

    def close(self) -> None:
        """Release threads that wait for events. Idempotent; callable from any thread."""
        self._is_closed = True

    def __iter__(self) -> Iterator[EventBatch]:
        """Yield the segments read by rank 0; blocks until they arrive.

        Raises LeaderFailed if rank 0 failed to read or stopped, PeerLost if it is gone,
        RanksDisagree at an unexpected message, and FeedClosed if it was closed.
        """
        while not self._is_closed:
            try:
                message = self._arrived.get(timeout=_PAUSE)
            except queue.Empty:
                continue
            if isinstance(message, EventBatch):
                yield message
            elif isinstance(message, Exception):
                raise message
            else:
                return
        raise FeedClosed

    def _receive_all(self) -> None:
        """Receive until the last message, and answer heartbeats."""
        number, message = 0, None
        try:
            while not isinstance(message, LeaderFailed) and message != What.END:
                message = receive(self._peers, number)
                number += 1
                if message == What.HEARTBEAT:
                    _answers(self._peers, self._request())
                else:
                    self._arrived.put(message)
        except Exception as error:
            self._arrived.put(error)


def _answers(peers: Peers, own: Order) -> list[int]:
    """Return the requests of all ranks: the answers to a heartbeat."""
    mine, sizes = torch.tensor([int(own)]), [1] * peers.world
    found: list[int] = peers.gather(mine, sizes, kind=STREAM, group="feed").tolist()
    return found


def read_by_rank_0(
    peers: Peers, stream: Iterable[EventBatch], batch_size: int, unit: str
) -> AbstractContextManager[Iterable[EventBatch]]:
    """Return a context manager that gives all ranks the stream of rank 0; one process its own."""
    if peers.world == 1:
        return nullcontext(stream)
    if peers.rank > 0:
        return Followed(peers, unit)
    return Feed(peers, stream, batch_size)
