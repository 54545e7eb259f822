"""Reads and decodes a topic in several processes: partition p in process p mod N.

A process sends its rows as Arrow over a socket, at most `AHEAD` batches of a partition before they
are taken. `python -m tgflow.streams.kafka.processes` is such a process.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from typing import Any

import pyarrow as pa

from tgflow.streams import errors
from tgflow.streams.errors import RowFault, SourceUnavailable, StreamError
from tgflow.streams.kafka.codecs import RecordDecoder, RecordOrigins
from tgflow.streams.kafka.config import KafkaConfig
from tgflow.streams.kafka.consumer import Cursor
from tgflow.streams.kafka.reader import PartitionReader
from tgflow.streams.kafka.retry import RetryPolicy
from tgflow.streams.rows.row_batch import EventColumns, RowBatch
from tgflow.streams.rows.schema import Checks

_log = logging.getLogger(__name__)

AHEAD = 2
"""Batches of a partition that a process sends before they are taken."""
_WAIT_SECONDS = 0.05
_STATUS_SECONDS = 0.2
_GRACE_SECONDS = 2.0


class ReaderProcesses:
    """Reads the partitions of a topic in `config.decoders` processes, as `PartitionReader` does.

    Raises:
        ValueError: If an option of `config` is not a plain value.
    """

    def __init__(
        self,
        config: KafkaConfig,
        cursors: Mapping[int, Cursor],
        join: Set[int] | None,
        policy: RetryPolicy,
    ) -> None:
        job = {
            "config": asdict(config),
            "join": None if join is None else sorted(join),
            "policy": asdict(policy),
        }
        self._decoder, self._fresh = RecordDecoder(config), policy.fresh
        self._processes: list[_Process] = []
        self._waiting: list[RowBatch] = []
        try:
            for number in range(config.decoders):
                own = [(p, asdict(x)) for p, x in cursors.items() if p % config.decoders == number]
                more = {"number": number, "cursors": own}
                self._processes.append(_Process(f"topic {config.topic}", number, job | more))
            while not all(each.is_ready for each in self._processes):  # modules are imported
                self._receive(_STATUS_SECONDS)
                self._raise_failure()
        except BaseException:
            self.close()
            raise

    @property
    def started(self) -> Mapping[int, Cursor]:
        """Start position of each partition, once `wait_started` has returned True."""
        return {p: cursor for each in self._processes for p, cursor in (each.started or {}).items()}

    @property
    def known(self) -> Set[int]:
        """Partitions of the topic, as far as known."""
        return frozenset[int]().union(*(each.known for each in self._processes))

    @property
    def ends(self) -> Mapping[int, int]:
        """End offset of each partition, as last reported by the broker."""
        return {p: end for each in self._processes for p, end in each.ends.items()}

    @property
    def reason(self) -> str:
        """Why a client has no connection, empty if all have one."""
        return next((each.reason for each in self._processes if each.reason), "")

    def caught_up(self) -> Set[int]:
        """Return the partitions taken completely, by ends requested in the last seconds."""
        since = time.monotonic() - self._fresh
        found = frozenset[int]().union(*(x.caught_up for x in self._processes if x.told_at > since))
        return found - {rows.partition for rows in self._waiting}

    def wait_started(self, timeout: float) -> bool:
        """Return whether all cursors have been checked and verified within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while any(each.started is None for each in self._processes):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._receive(left)
            self._raise_failure()
        return True

    def join(self, partitions: Set[int]) -> None:
        """Read new partitions too, from their beginning."""
        for each in self._processes:
            own = self._own(each, partitions)
            if own:
                each.send({"join": sorted(own)})

    def take(self, wanted: Set[int], timeout: float) -> list[RowBatch]:
        """Return rows of the partitions `wanted`, waiting for the first ones.

        Raises:
            StreamError: As `KafkaSource.poll`, or if a process has died.
        """
        for each in self._processes:
            each.want(self._own(each, wanted))
        deadline = time.monotonic() + timeout
        self._receive(0.0)
        while not any(rows.partition in wanted for rows in self._waiting):
            self._raise_failure()
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            self._receive(left)
        self._raise_failure()
        taken = [rows for rows in self._waiting if rows.partition in wanted]
        self._waiting = [rows for rows in self._waiting if rows.partition not in wanted]
        for rows in taken:
            self._of(rows.partition).num_taken[rows.partition] += 1
        return taken

    def counters(self) -> dict[str, float]:
        """Return counters such as rebuilds and seconds of outage and back-pressure."""
        found: Counter[str] = Counter()
        for each in self._processes:
            found.update(each.counters)
        return dict(found)

    def close(self) -> None:
        """End the processes within about two seconds."""
        for each in self._processes:
            each.end()
        deadline = time.monotonic() + _GRACE_SECONDS
        for each in self._processes:
            each.reap(deadline)

    def _of(self, partition: int) -> _Process:
        return self._processes[partition % len(self._processes)]

    def _own(self, process: _Process, partitions: Set[int]) -> Set[int]:
        return {p for p in partitions if self._of(p) is process}

    def _receive(self, timeout: float) -> None:
        """Receive what has arrived, waiting up to `timeout` seconds for the first message."""
        alive = {each.connection: each for each in self._processes if each.failure is None}
        for connection in wait([*alive], timeout):
            self._waiting += alive[connection].receive(self._decoder)  # type: ignore[index]

    def _raise_failure(self) -> None:
        """Raise the error of a process whose rows have all been taken."""
        waiting = {rows.partition for rows in self._waiting}
        for each in self._processes:
            if each.failure is not None and not self._own(each, waiting):
                raise each.failure


class _Process:
    """One process, as seen by the one that started it."""

    def __init__(self, name: str, number: int, job: Mapping[str, Any]) -> None:
        self._name, self.number = name, number
        try:
            text = json.dumps(job)
        except TypeError as error:
            raise ValueError(
                f"decoders={job['config']['decoders']} passes the options to other processes, so "
                f"they must be plain values: {error}; pass others, or decoders=1"
            ) from None
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is for this process
            )
        self.connection = Connection(ours.detach())
        self.failure: StreamError | RuntimeError | None = None
        """Why it has ended; None while it runs."""
        self.is_ready = False
        """Whether it has begun to read."""
        self.started: dict[int, Cursor] | None = None
        self.known: Set[int] = frozenset()
        self.ends: dict[int, int] = {}
        self.caught_up: Set[int] = frozenset()
        self.told_at = 0.0
        self.counters: dict[str, float] = {}
        self.reason = ""
        self.num_taken: Counter[int] = Counter()
        """Batches taken of each partition."""
        self._asked: object = None
        self.connection.send_bytes(text.encode())

    def want(self, partitions: Set[int]) -> None:
        """Ask for rows of these partitions, and report those taken, if either has changed."""
        asked = sorted(partitions), sorted(self.num_taken.items())
        if asked != self._asked:
            self._asked = asked
            self.send({"wanted": asked[0], "taken": asked[1]})

    def send(self, command: Mapping[str, Any]) -> None:
        """Send a command; whether the process has died is found when its messages are read."""
        with suppress(OSError):
            self.connection.send_bytes(json.dumps(command).encode())

    def receive(self, decoder: RecordDecoder) -> Iterator[RowBatch]:
        """Yield the rows that have arrived, and take over what else has."""
        try:
            while self.connection.poll():
                data = self.connection.recv_bytes()
                header, body = _split(data)
                if "partition" in header:
                    self.caught_up -= {header["partition"]}
                    yield _unpacked(header, body, decoder)
                elif "error" in header:
                    self.failure = _error_of(self.number, **header["error"])
                    return
                else:
                    self._take_status(header)
        except (EOFError, OSError):
            self.failure = self._end_of_child()

    def _take_status(self, status: Mapping[str, Any]) -> None:
        self.is_ready = True
        for level, text, *args in status["log"]:
            _log.log(level, text, *args)
        if "started" in status:
            self.started = {p: Cursor(**cursor) for p, cursor in status["started"]}
        self.known, self.ends = frozenset(status["known"]), dict(status["ends"])
        self.caught_up, self.told_at = frozenset(status["caught_up"]), time.monotonic()
        self.counters, self.reason = status["counters"], status["reason"]

    def _end_of_child(self) -> SourceUnavailable:
        code = self._child.wait(_GRACE_SECONDS)
        how = f"ended with {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        text = (
            f"decoder {self.number} (process {self._child.pid}) {how}; its records are not lost: "
            "resume to continue"
        )
        return SourceUnavailable(self._name, "unavailable", text)

    def end(self) -> None:
        """Make the process end."""
        self.connection.close()

    def reap(self, deadline: float) -> None:
        """Wait until it has ended, and kill it after `deadline`."""
        try:
            self._child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def _error_of(number: int, kind: str, **said: str) -> StreamError | RuntimeError:
    """Return the error that a process has sent."""
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, StreamError):
        return found(**said)
    return RuntimeError(f"decoder {number}: {kind}: {said['text']}")


# Messages: the length of a header, the header as JSON, and Arrow streams

_LENGTH_BYTES = 8


def _message(header: Mapping[str, Any], *streams: bytes | pa.Buffer) -> bytes:
    text = json.dumps(header).encode()
    return b"".join([len(text).to_bytes(_LENGTH_BYTES, "little"), text, *streams])


def _split(data: bytes) -> tuple[dict[str, Any], memoryview]:
    size = int.from_bytes(data[:_LENGTH_BYTES], "little")
    end = _LENGTH_BYTES + size
    return json.loads(data[_LENGTH_BYTES:end]), memoryview(data)[end:]


def _packed(rows: RowBatch) -> bytes:
    """Return rows and the records they come from as a message."""
    columns = rows.events.columns()
    columns |= {"index": rows.index} if rows.index is not None else {}
    columns["written"] = rows.written
    width = 0
    if (x := columns.get("x")) is not None:
        width = x.shape[1]
        columns["x"] = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), width)
    origins = rows.locate
    assert isinstance(origins, RecordOrigins)
    values = pa.array(origins.values, pa.large_binary())
    records = {"offset": origins.offsets, "num_rows": origins.num_rows, "value": values}
    header = {
        "partition": rows.partition,
        "position": rows.position,
        "num_rows": rows.num_rows,
        "counts": dict(rows.counts),
        "gaps": [*rows.gaps],
        "faults": [asdict(fault) for fault in rows.faults],
        "x_dim": width,
    }
    return _message(header, _stream(columns), _stream(records))


def _stream(columns: Mapping[str, Any]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([pa.array(x) for x in columns.values()], [*columns])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _unpacked(header: Mapping[str, Any], body: memoryview, decoder: RecordDecoder) -> RowBatch:
    source = pa.BufferReader(body)
    [events], [records] = ([*pa.ipc.open_stream(source)] for _ in range(2))  # reads to their ends
    columns = {name: events[name] for name in events.schema.names}
    for name in columns.keys() - {"src", "dst", "event_id", "x"}:
        columns[name] = columns[name].to_numpy()
    if "x" in columns:
        columns["x"] = columns["x"].flatten().to_numpy().reshape(-1, header["x_dim"])
    index, written = columns.pop("index", None), columns.pop("written")
    empty = dict.fromkeys(("label", "x"))
    return RowBatch(
        EventColumns(**empty | columns),
        index,
        [RowFault(**fault) for fault in header["faults"]],
        header["num_rows"],
        RecordOrigins(
            header["partition"],
            records["offset"].to_numpy(),
            records["num_rows"].to_numpy(),
            _Values(records["value"]),
            decoder,
        ),
        header["position"],
        header["partition"],
        header["counts"],
        [(begin, end) for begin, end in header["gaps"]],
        written,
    )


class _Values(Sequence[bytes]):
    """The records of an Arrow column, each copied when it is read."""

    def __init__(self, column: pa.LargeBinaryArray) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, row: Any) -> Any:
        return self._column[row].as_py()


# A process


class _Job:
    """Reads and decodes one part of the partitions, and sends the rows as they are wanted."""

    def __init__(self, connection: Connection, log: _Messages) -> None:
        job = json.loads(connection.recv_bytes())
        config = job["config"]
        config["checks"] = Checks(**config["checks"])
        cursors = {p: Cursor(**cursor) for p, cursor in job["cursors"]}
        join = None if job["join"] is None else frozenset(job["join"])
        policy = RetryPolicy(**job["policy"])
        self._connection, self._log = connection, log
        self._reader = PartitionReader(KafkaConfig(**config), cursors, join, policy, job["number"])
        self._wanted: Set[int] = frozenset()
        self._sent: Counter[int] = Counter()
        self._taken: Mapping[int, int] = {}

    def run(self) -> None:
        """Serve until the other end of the connection is closed."""
        self._connection.send_bytes(_message(self._status()))
        while not self._reader.wait_started(_WAIT_SECONDS):
            self._obey(_STATUS_SECONDS)
            self._connection.send_bytes(_message(self._status()))
        started = [(p, asdict(cursor)) for p, cursor in self._reader.started.items()]
        self._connection.send_bytes(_message({"started": started} | self._status()))
        told = time.monotonic()
        while True:
            allowed = {p for p in self._wanted if self._sent[p] - self._taken.get(p, 0) < AHEAD}
            self._obey(0.0 if allowed else _WAIT_SECONDS)
            if time.monotonic() - told > _STATUS_SECONDS:
                self._connection.send_bytes(_message(self._status()))
                told = time.monotonic()
            for rows in self._reader.take(allowed, _WAIT_SECONDS) if allowed else ():
                self._connection.send_bytes(_packed(rows))
                self._sent[rows.partition] += 1

    def _status(self) -> dict[str, Any]:
        reader, log = self._reader, self._log.take()
        known, ends = sorted(reader.known), [*reader.ends.items()]
        status = {"known": known, "ends": ends, "caught_up": sorted(reader.caught_up())}
        return status | {"counters": reader.counters(), "log": log, "reason": reader.reason}

    def _obey(self, timeout: float = 0.0) -> None:
        """Take over the commands that have arrived."""
        while self._connection.poll(timeout):
            command = json.loads(self._connection.recv_bytes())
            if "join" in command:
                self._reader.join(frozenset(command["join"]))
            else:
                self._wanted, self._taken = frozenset(command["wanted"]), dict(command["taken"])
            timeout = 0.0


class _Messages(logging.Handler):
    """Keeps log messages until they are sent."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: list[tuple[Any, ...]] = []

    def emit(self, record: logging.LogRecord) -> None:
        args = (arg if isinstance(arg, int | float) else str(arg) for arg in record.args or ())
        self._kept.append((record.levelno, record.msg, *args))

    def take(self) -> list[tuple[Any, ...]]:
        """Return the messages since the last call."""
        taken, self._kept = self._kept, []
        return taken


def _run(connection: Connection) -> None:
    messages = _Messages()
    logging.getLogger("tgflow").addHandler(messages)
    try:
        _Job(connection, messages).run()
    except (EOFError, ConnectionError):  # the other end is closed
        return
    except StreamError as error:
        said = {"where": error.where, "code": error.code, "text": error.text}
        said["kind"] = type(error).__name__
    except Exception as error:
        said = {"kind": type(error).__name__, "text": str(error)}
    with suppress(OSError):
        connection.send_bytes(_message({"error": said}))


if __name__ == "__main__":
    _run(Connection(int(sys.argv[1])))
