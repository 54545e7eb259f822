"""Readers of a topic's partitions: in this process, or in several, partition p in process p mod N.

A process sends its rows over a socket, at most `AHEAD` batches of a partition before they are
taken.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any, NamedTuple

from tgflow.streams.errors import SourceUnavailable, StreamError
from tgflow.streams.kafka.avro import RegistryDown
from tgflow.streams.kafka.codecs import RecordDecoder
from tgflow.streams.kafka.config import KafkaConfig
from tgflow.streams.kafka.consumer import Chunk, Cursor, Poller
from tgflow.streams.kafka.retry import RetryPolicy, RetryState
from tgflow.streams.rows.row_batch import RowBatch

_log = logging.getLogger(__name__)

AHEAD = 2
"""Batches of a partition that a process sends before they are taken."""
_WAIT_SECONDS = 0.05
_STATUS_SECONDS = 0.2
_GRACE_SECONDS = 2.0


class Status(NamedTuple):
    """What is known of the partitions that are read, but for their rows."""

    started: Mapping[int, Cursor] | None = None
    """Start position of each; None before `wait_started` has returned True."""
    known: Set[int] = frozenset()
    """Partitions of the topic, as far as known."""
    ends: Mapping[int, int] = {}
    """End offset of each, as last reported by the broker."""
    caught_up: Set[int] = frozenset()
    """Those taken completely, by ends requested in the last seconds."""
    counters: Mapping[str, float] = {}
    """Counters such as rebuilds and seconds of outage and back-pressure."""
    reason: str = ""
    """Why a client has no connection, empty if it has one."""


class PartitionReader:
    """Reads in a thread of this process, and decodes in the thread that takes the rows.

    Args:
        cursors: Where to read on in known partitions.
        join: Other partitions to read from their beginning; None: all.
        number: Which of `config.decoders` parts of the partitions to read; None: all of them.
    """

    def __init__(
        self,
        config: KafkaConfig,
        cursors: Mapping[int, Cursor],
        join: Set[int] | None,
        policy: RetryPolicy,
        number: int | None = None,
    ) -> None:
        self._config, self._number = config, number
        self._retry = RetryState(f"topic {config.topic}", config.max_outage, policy)
        self._retry.note_contact()  # the outage timer starts here
        self._decoder = RecordDecoder(config)
        self._registry = RetryState(f"registry {config.registry}", config.max_outage, policy)
        self._pending: list[Chunk] = []
        """Chunks that wait for the registry."""
        self._not_before = 0.0
        self._paused_seconds, self._num_hung = 0.0, 0
        self._cursors = dict(cursors)
        self._poller = self._poll_on(join)

    def _poll_on(self, join: Set[int] | None) -> Poller:
        return Poller(self._config, dict(self._cursors), join, self._retry, self._number)

    def status(self) -> Status:
        """Return what is known of the partitions."""
        poller, retry = self._poller, self._retry
        counters = {
            "rebuilds": retry.rebuilds,
            "corrupt_reads": retry.corrupt,
            "hung_polls": self._num_hung,
            "outage_seconds": retry.outage_seconds + self._registry.outage_seconds,
            "paused_seconds": self._paused_seconds + poller.paused_seconds,
        }
        caught_up = poller.caught_up() - {chunk.partition for chunk in self._pending}
        ends = dict(poller.ends)
        return Status(poller.started, poller.known, ends, caught_up, counters, poller.reason)

    def wait_started(self, timeout: float) -> bool:
        """Return whether all cursors have been checked and verified within `timeout` seconds."""
        if has_started := self._poller.wait_started(timeout):
            self._cursors = dict(self._poller.started or {})
        return has_started

    def join(self, partitions: Set[int]) -> None:
        """Read new partitions too, from their beginning."""
        self._poller.join(partitions)
        self._cursors |= dict.fromkeys(partitions, Cursor(0))

    def take(self, wanted: Set[int], timeout: float) -> list[RowBatch]:
        """Return rows of the partitions `wanted`, waiting for the first ones."""
        self._watch()
        if (left := self._not_before - time.monotonic()) > 0:
            time.sleep(min(left, timeout))
            return []
        if not any(chunk.partition in wanted for chunk in self._pending):
            chunks = self._poller.take(wanted, timeout)
            self._cursors |= {chunk.partition: chunk.cursor for chunk in chunks}
            self._pending += chunks
        decoded = []
        try:
            for chunk in [chunk for chunk in self._pending if chunk.partition in wanted]:
                decoded.append(self._decoder.decode(chunk))
                self._registry.note_contact()
                self._pending.remove(chunk)
        except RegistryDown as error:
            wait = self._registry.note_failure(error)
            self._not_before = time.monotonic() + wait
            text = "registry %s: %s; asking again in %.1f s"
            _log.warning(text, self._config.registry, error, wait)
        return decoded

    def close(self) -> None:
        """Stop reading; a thread that does not end within two seconds is abandoned."""
        self._poller.close(2.0)

    def _watch(self) -> None:
        """Abandon a thread that hangs in a call, and continue with a new one."""
        limit = 3 * self._config.poll_timeout + self._retry.policy.hang
        stuck = self._poller.stuck_for()
        if stuck <= limit:
            return
        text = "topic %s: a call of kafka-python has not returned for %.0f s; continuing without it"
        _log.error(text, self._config.topic, stuck)
        self._num_hung += 1
        self._retry.note_failure(TimeoutError(f"a poll took longer than {limit:.0f} s"))
        self._poller.close(0.0)
        self._paused_seconds += self._poller.paused_seconds
        self._poller = self._poll_on(frozenset())


class ReaderProcesses:
    """Reads the partitions of a topic in `config.decoders` processes, as `PartitionReader` does.

    Raises:
        ValueError: If an option of `config` cannot be sent to another process.
    """

    def __init__(
        self,
        config: KafkaConfig,
        cursors: Mapping[int, Cursor],
        join: Set[int] | None,
        policy: RetryPolicy,
    ) -> None:
        self._decoder, self._fresh = RecordDecoder(config), policy.fresh
        self._processes: list[_Process] = []
        self._waiting: list[RowBatch] = []
        try:
            for number in range(config.decoders):
                own = {p: x for p, x in cursors.items() if p % config.decoders == number}
                self._processes.append(_Process((config, own, join, policy, number)))
            while not all(each.told_at for each in self._processes):  # modules are imported
                self._receive(_STATUS_SECONDS)
                self._raise_failure()
        except BaseException:
            self.close()
            raise

    def status(self) -> Status:
        """Return what is known of the partitions, as far as the processes have sent it."""
        since, every = time.monotonic() - self._fresh, [each.status for each in self._processes]
        caught_up = [each.status.caught_up for each in self._processes if each.told_at > since]
        counters: Counter[str] = Counter()
        for own in every:
            counters.update(own.counters)
        return Status(
            dict(ChainMap(*(dict(own.started or {}) for own in every))),
            frozenset().union(*(own.known for own in every)),
            dict(ChainMap(*(dict(own.ends) for own in every))),
            frozenset().union(*caught_up) - {rows.partition for rows in self._waiting},
            counters,
            next((own.reason for own in every if own.reason), ""),
        )

    def wait_started(self, timeout: float) -> bool:
        """Return whether all cursors have been checked and verified within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while any(each.status.started is None for each in self._processes):
            if (left := deadline - time.monotonic()) <= 0:
                return False
            self._receive(left)
            self._raise_failure()
        return True

    def join(self, partitions: Set[int]) -> None:
        """Read new partitions too, from their beginning."""
        for each in self._processes:
            if own := self._own(each, partitions):
                each.send(own)

    def take(self, wanted: Set[int], timeout: float) -> list[RowBatch]:
        """Return rows of the partitions `wanted`, waiting for the first ones."""
        for each in self._processes:
            each.want(self._own(each, wanted))
        deadline = time.monotonic() + timeout
        self._receive(0.0)
        while not any(rows.partition in wanted for rows in self._waiting):
            self._raise_failure()
            if (left := deadline - time.monotonic()) <= 0:
                return []
            self._receive(left)
        self._raise_failure()
        taken = [rows for rows in self._waiting if rows.partition in wanted]
        self._waiting = [rows for rows in self._waiting if rows.partition not in wanted]
        for rows in taken:
            self._processes[rows.partition % len(self._processes)].num_taken[rows.partition] += 1
        return taken

    def close(self) -> None:
        """End the processes within about two seconds."""
        for each in self._processes:
            each.connection.close()
        deadline = time.monotonic() + _GRACE_SECONDS
        for each in self._processes:
            each.reap(deadline)

    def _own(self, process: _Process, partitions: Set[int]) -> Set[int]:
        return {p for p in partitions if self._processes[p % len(self._processes)] is process}

    def _receive(self, timeout: float) -> None:
        alive = {each.connection: each for each in self._processes if each.failure is None}
        for connection in wait([*alive], timeout):
            for rows in alive[connection].receive():  # type: ignore[index]
                origins = replace(rows.locate, decoder=self._decoder)  # type: ignore[type-var]
                self._waiting.append(replace(rows, locate=origins))

    def _raise_failure(self) -> None:
        waiting = {rows.partition for rows in self._waiting}
        for each in self._processes:
            if each.failure is not None and not self._own(each, waiting):
                raise each.failure


class _Process:
    """One process, as seen by the one that started it; `job` is the arguments of its reader."""

    def __init__(self, job: tuple[KafkaConfig, Any, Any, RetryPolicy, int]) -> None:
        self._config, *_, self.number = job
        try:
            sent = pickle.dumps(job)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise ValueError(
                f"decoders={self._config.decoders} passes the options to other processes, so "
                f"they must be plain values: {error}; pass others, or decoders=1"
            ) from None
        ours, theirs = socket.socketpair()
        with theirs:
            code = f"from {__name__} import main; main({theirs.fileno()})"
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is for this process
            )
        self.connection = Connection(ours.detach())
        self.failure: Exception | None = None
        """Why it has ended; None while it runs."""
        self.status, self.told_at = Status(), 0.0
        """What it sent last, and when; 0 before it has begun to read."""
        self.num_taken: Counter[int] = Counter()
        """Batches taken of each partition."""
        self._asked: object = None
        self.connection.send_bytes(sent)

    def want(self, partitions: Set[int]) -> None:
        """Ask for rows of these partitions, and report those taken, if either has changed."""
        asked = partitions, dict(self.num_taken)
        if asked != self._asked:
            self._asked = asked
            self.send(asked)

    def send(self, command: object) -> None:
        """Send a command; whether the process has died is found when its messages are read."""
        with suppress(OSError):
            self.connection.send(command)

    def receive(self) -> Iterator[RowBatch]:
        """Yield the rows that have arrived, and take over what else has."""
        try:
            while self.connection.poll():
                match self.connection.recv():
                    case RowBatch() as rows:
                        left = self.status.caught_up - {rows.partition}
                        self.status = self.status._replace(caught_up=left)
                        yield rows
                    case Status() as status:
                        self.status, self.told_at = status, time.monotonic()
                    case logging.LogRecord() as record:
                        _log.handle(record)
                    case Exception() as error:
                        self.failure = error
                        return
        except (EOFError, OSError):
            code = self._child.wait(_GRACE_SECONDS)
            name = signal.Signals(-code).name if code < 0 else ""
            how = f"was killed by {name}" if name else f"ended with {code}"
            text = f"decoder {self.number} (process {self._child.pid}) {how}; its records are not "
            text += "lost: resume to continue"
            self.failure = SourceUnavailable(f"topic {self._config.topic}", "unavailable", text)

    def reap(self, deadline: float) -> None:
        """Wait until it has ended, and kill it after `deadline`."""
        try:
            self._child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def _serve(connection: Connection, job: Any) -> None:
    messages: SimpleQueue[logging.LogRecord] = SimpleQueue()
    handler = QueueHandler(messages)
    handler.setLevel(logging.WARNING)
    logging.getLogger("tgflow").addHandler(handler)
    reader = PartitionReader(*job)
    wanted, taken, sent = frozenset[int](), dict[int, int](), Counter[int]()
    has_started, told = False, 0.0
    while True:
        while not messages.empty():
            connection.send(messages.get())
        if time.monotonic() - told > _STATUS_SECONDS:
            told = time.monotonic()
            connection.send(reader.status())
        if not has_started and (has_started := reader.wait_started(_WAIT_SECONDS)):
            connection.send(reader.status())
        allowed = {p for p in wanted if has_started and sent[p] - taken.get(p, 0) < AHEAD}
        timeout = 0.0 if allowed else _WAIT_SECONDS
        while connection.poll(timeout):
            command, timeout = connection.recv(), 0.0
            if isinstance(command, tuple):
                wanted, taken = command
            else:
                reader.join(command)
        for rows in reader.take(allowed, _WAIT_SECONDS) if allowed else ():
            connection.send(without_decoder(rows))
            sent[rows.partition] += 1


def without_decoder(rows: RowBatch) -> RowBatch:
    """Return rows of a topic as they are sent: their origins lack the decoder."""
    return replace(rows, locate=replace(rows.locate, decoder=None))  # type: ignore[type-var]


def main(fd: int) -> None:
    """Run a process of `ReaderProcesses` that is connected by this file descriptor."""
    connection = Connection(fd)
    job = connection.recv()
    try:
        _serve(connection, job)
    except (EOFError, ConnectionError):  # the other end is closed
        return
    except Exception as error:
        text = f"decoder {job[-1]}: {type(error).__name__}: {error}"
        with suppress(OSError):
            connection.send(error if isinstance(error, StreamError) else RuntimeError(text))
