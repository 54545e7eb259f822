"""The stream of all ranks: rank 0 alone reads it, and sends what it reads to the others."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple, Self

import safetensors.torch
import torch

from tgflow.distributed.control import STREAM
from tgflow.events import COLUMNS, MICRO_BATCH_END, EventBatch, NewNodes, concat
from tgflow.peers import PeerLost, Peers, RanksDisagree

MOST_BATCHES = 8
"""Micro-batches of one segment, which ranks that must ask each other prepare together: what waits
for the slowest rank is bounded by it."""
_MOST_TEXT = 4_000


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


class Cause(NamedTuple):
    """Why rank 0 reads no more, as plain values."""

    kinds: tuple[str, ...]
    text: str
    code: int | None = None

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return what other ranks get to know of `error`."""
        kinds = tuple(kind.__name__ for kind in type(error).__mro__)
        code = getattr(error, "code", None)
        return cls(kinds, str(error)[:_MOST_TEXT], code if isinstance(code, int) else None)


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
    what, data = _encoded(message)
    peers.broadcast(torch.tensor([number, what, len(data)]), kind=STREAM, group="feed")
    if data:
        packed = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        peers.broadcast(packed, kind=STREAM, group="feed")


def receive(peers: Peers, number: int) -> Message:
    """Return message `number` of rank 0, on any other rank; waits for it."""
    header = torch.zeros(3, dtype=torch.int64)
    peers.broadcast(header, kind=STREAM, group="feed")
    sent, what, size = header.tolist()
    if sent != number or what not in list(What):
        raise RanksDisagree(
            f"rank 0 sent message {sent} of kind {what} of its stream, and message {number} was due"
        )
    if what == What.MICRO_BATCH_END:
        return MICRO_BATCH_END
    if what not in (What.EVENTS, What.FAILURE):
        return What(what)
    packed = torch.zeros(size, dtype=torch.uint8)
    peers.broadcast(packed, kind=STREAM, group="feed")
    data = packed.numpy().tobytes()
    if what == What.FAILURE:
        kinds, text, code = json.loads(data)
        return Cause(tuple(kinds), text, code)
    contents, new_nodes = safetensors.torch.load(data), None
    if "node_x" in contents:
        new_nodes = NewNodes(int(contents.pop("node_start")), contents.pop("node_x"))
    return EventBatch.checked(**contents, new_nodes=new_nodes)


def _encoded(message: Message) -> tuple[What, bytes]:
    if isinstance(message, Cause):
        return What.FAILURE, json.dumps(message).encode()
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
"""Of silence: then rank 0 says that it lives, which also shows whether the others do."""
_QUEUED = 2
_PAUSE = 0.1
_GRACE_SECONDS = 5.0


def heartbeat_of(timeout: float) -> float:
    """Return how long rank 0 may be silent, in seconds, if it is lost after `timeout` of them."""
    return min(HEARTBEAT_SECONDS, timeout / 3)


class LeaderFailed(RuntimeError):
    """Rank 0 reads no more, and its stream has not ended.

    Args:
        cause: Why.
    """

    def __init__(self, cause: Cause) -> None:
        super().__init__(f"rank 0 has ended: {cause.text}")
        self.kinds = cause.kinds
        """The names of the classes of what rank 0 raised, the nearest first."""
        self.exit_code = cause.code
        """What rank 0 ends with, where its error says so itself."""


class FeedClosed(Exception):
    """Nobody wants more of the stream here: it has not ended."""


class Feed:
    """The stream of rank 0: iterating it reads it, and sends it to all others.

    A context manager; entered, the other ranks hear from this one. Left, they hear that there is
    no more, or why.

    Args:
        peers: The ranks; this one is rank 0.
        stream: Batches of any size, in order; an error that it raises ends all ranks.
        batch_size: Events of a micro-batch.
        lost: Called by the thread that sends if another rank is gone: whoever waits for the stream
            does not notice.
        heartbeat: Seconds of silence.

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
        heartbeat: float = HEARTBEAT_SECONDS,
    ) -> None:
        self.unit = getattr(stream, "unit", None)
        """What a tick is, if the stream says so."""
        self.ids = getattr(stream, "ids", None)
        """Of its nodes, if the stream has them."""
        self._peers, self._stream, self._batch_size = peers, stream, batch_size
        self._lost, self._heartbeat = lost, heartbeat
        self._messages: queue.Queue[Message] = queue.Queue(_QUEUED)
        self._has_ended = False
        self._failure: PeerLost | None = None
        self._thread = threading.Thread(target=self._send_all, name="tgflow-feed", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._has_ended:
            self._end(What.END if error is None else Cause.of(error))
        self._thread.join(_GRACE_SECONDS)

    def __iter__(self) -> Iterator[EventBatch]:
        """Read the stream, and yield what was put on its way to the others.

        Raises:
            PeerLost: If another rank is gone; else what the stream raises.
            FeedClosed: If it was left.
        """
        num_nodes = 0  # whose features were sent
        try:
            for read in segments(self._stream, self._batch_size):
                segment, new = read, read.new_nodes
                if new is not None:
                    segment = replace(read, new_nodes=new.since(num_nodes))
                    num_nodes = max(num_nodes, new.stop)
                self._put(segment)
                yield segment
        except Exception as error:
            self._end(Cause.of(error))
            raise
        self._end(What.END)

    def _end(self, last: Message) -> None:
        self._has_ended = True
        with suppress(PeerLost, FeedClosed):  # who is gone needs none; another error ends this rank
            self._put(last)

    def _put(self, message: Message) -> None:
        """Let a message wait to be sent; wait for room while anybody sends."""
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
        """Send what waits, in order, and a heartbeat where nothing does; until the last one."""
        number, message = 0, None
        try:
            while not isinstance(message, Cause) and message != What.END:
                try:
                    message = self._messages.get(timeout=self._heartbeat)
                except queue.Empty:
                    message = What.HEARTBEAT
                send(self._peers, number, message)
                number += 1
        except PeerLost as error:
            self._failure = error
            self._lost(error)


class Followed:
    """The stream of any other rank: what rank 0 sends, in the same segments; nothing is opened.

    A context manager; left, it takes nothing more.

    Args:
        peers: The ranks.
        unit: What a tick is.
        x_dim: Width of the edge features, 0 without them.
    """

    def __init__(self, peers: Peers, unit: str, x_dim: int = 0) -> None:
        self.unit = unit
        self.x_dim = x_dim
        self._peers = peers
        self._arrived: queue.Queue[Message | Exception] = queue.Queue(_QUEUED)
        self._is_closed = False
        self._thread = threading.Thread(target=self._receive_all, name="tgflow-feed", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
        self._thread.join(0.0 if any(error) else _GRACE_SECONDS)

    def close(self) -> None:
        """Let whoever waits for events go; a second time does nothing. From any thread."""
        self._is_closed = True

    def __iter__(self) -> Iterator[EventBatch]:
        """Yield what rank 0 has read; waits for it.

        Raises:
            FeedClosed: If it was closed.
            LeaderFailed: If rank 0 cannot read on, or stops.
            PeerLost: If it is gone.
            RanksDisagree: If it sends something else than is due.
        """
        while not self._is_closed:
            try:
                message = self._arrived.get(timeout=_PAUSE)
            except queue.Empty:
                continue
            if isinstance(message, EventBatch):
                yield message
            elif isinstance(message, Cause):
                raise LeaderFailed(message)
            elif isinstance(message, Exception):
                raise message
            else:
                return
        raise FeedClosed

    def _receive_all(self) -> None:
        """Receive until the last message, or until what is received is of no use any more."""
        number, message = 0, None
        try:
            while not isinstance(message, Cause) and message != What.END:
                message = receive(self._peers, number)
                number += 1
                if message != What.HEARTBEAT:
                    self._put(message)
        except Exception as error:
            self._put(error)

    def _put(self, message: Message | Exception) -> None:
        """Let a message wait to be taken; wait for room while anybody takes it."""
        while not self._is_closed:
            with suppress(queue.Full):
                self._arrived.put(message, timeout=_PAUSE)
                return


def read_by_rank_0(
    peers: Peers, stream: Iterable[EventBatch], batch_size: int, unit: str
) -> AbstractContextManager[Iterable[EventBatch]]:
    """Return what, entered, gives all ranks the stream of rank 0; who is alone has its own."""
    if peers.world == 1:
        return nullcontext(stream)
    if peers.rank > 0:
        return Followed(peers, unit)
    return Feed(peers, stream, batch_size)
