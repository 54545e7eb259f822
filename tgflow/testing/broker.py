"""A local broker with Kafka's protocol, to try streams and to test them."""

from __future__ import annotations

import ctypes
import json
import platform
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

CUT = -195
"""The error for which the mock closes the connection instead of answering."""
PRODUCE, FETCH, OFFSET_COMMIT = 0, 1, 8
"""Request types, by their number in the protocol."""

_VOID, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_INT16, _INT32, _INT64 = ctypes.c_int16, ctypes.c_int32, ctypes.c_int64
_CALLS: dict[str, list[Any]] = {
    "topic_create": [_VOID, _TEXT, _INT, _INT],
    "topic_delete": [_VOID, _TEXT],
    "topic_set_error": [_VOID, _TEXT, _INT],
    "broker_set_down": [_VOID, _INT32],
    "broker_set_up": [_VOID, _INT32],
    "broker_set_rtt": [_VOID, _INT32, _INT],
    "broker_set_host_port": [_VOID, _INT32, _TEXT, _INT],
    "partition_set_leader": [_VOID, _TEXT, _INT32, _INT32],
    "partition_delete_records": [_VOID, _TEXT, _INT32, _INT64],
    "clear_request_errors": [_VOID, _INT16],
    "group_initial_rebalance_delay_ms": [_VOID, _INT32],
}


class MockBroker(AbstractContextManager["MockBroker"]):
    """A cluster of mock brokers in a child process."""

    api_version = (2, 3)
    """API version for clients of kafka-python, which cannot detect it."""

    def __init__(self, brokers: int = 1) -> None:
        if sys.platform != "linux":
            raise OSError(f"the mock broker needs Linux, and this is {platform.system()}")
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(brokers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.servers: list[str] = self._answer()["servers"]

    def __exit__(self, *error: object) -> None:
        self.close()

    def url(self, topic: str) -> str:
        """Return the URL of a topic."""
        return f"kafka://{','.join(self.servers)}/{topic}"

    def create(self, topic: str, partitions: int = 1) -> None:
        """Create a topic, with as many replicas as there are brokers, up to 3."""
        self("topic_create", topic, partitions, min(3, len(self.servers)))

    def fail(self, request: int, errors: list[int]) -> None:
        """Answer the next requests of one kind with these errors; `CUT` cuts the connection."""
        self("push_request_errors", request, errors)

    def __call__(self, call: str, *args: object) -> int:
        """Return the result of a function of the mock cluster, named without its prefix.

        Raises:
            RuntimeError: If the child has ended.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([call, *args]) + "\n")
        self._process.stdin.flush()
        return int(self._answer()["result"])

    def wait(self) -> None:
        """Block until the child process has ended."""
        self._process.wait()

    def kill(self) -> None:
        """Kill the child process; its contents are lost."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill the child process, and close the pipes to it."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        assert self._process.stderr is not None
        said = self._process.stderr.read().strip().splitlines()
        raise RuntimeError(f"the mock broker has ended: {said[-1] if said else 'no output'}")


class _Cluster:
    def __init__(self, brokers: int) -> None:
        self._library = _librdkafka()
        make = self._function("rd_kafka_new", _VOID, [_INT, _VOID, _TEXT, ctypes.c_size_t])
        settings = self._function("rd_kafka_conf_new", _VOID, [])
        error = ctypes.create_string_buffer(256)
        handle = make(0, settings(), error, len(error))
        if not handle:
            raise RuntimeError(error.value.decode())
        new = self._function("rd_kafka_mock_cluster_new", _VOID, [_VOID, _INT])
        self._cluster = new(handle, brokers)
        servers = self._function("rd_kafka_mock_cluster_bootstraps", _TEXT, [_VOID])
        self.servers = servers(self._cluster).decode().split(",")

    def call(self, name: str, *args: Any) -> int:
        """Call a function of the mock cluster."""
        if name == "push_request_errors":
            self._push_errors(*args)
            return 0
        function = self._function(f"rd_kafka_mock_{name}", _INT, _CALLS[name])
        given = [arg.encode() if isinstance(arg, str) else arg for arg in args]
        return int(function(self._cluster, *given))

    def _push_errors(self, request: int, errors: list[int]) -> None:
        numbers = (_INT * len(errors))(*errors)
        kinds = [_VOID, _INT16, ctypes.c_size_t, ctypes.POINTER(_INT)]
        push = self._function("rd_kafka_mock_push_request_errors_array", None, kinds)
        push(self._cluster, request, len(errors), numbers)

    def _function(self, name: str, result: Any, arguments: list[Any]) -> Any:
        function = getattr(self._library, name)
        function.restype, function.argtypes = result, arguments
        return function


def _librdkafka() -> ctypes.CDLL:
    """Return the library that confluent-kafka has loaded into this process."""
    import confluent_kafka

    _ = confluent_kafka
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return ctypes.CDLL(next(line.split()[-1] for line in maps if "librdkafka" in line))


def _serve(brokers: int) -> None:
    cluster = _Cluster(brokers)
    _say({"servers": cluster.servers})
    for line in sys.stdin:
        name, *args = json.loads(line)
        _say({"result": cluster.call(name, *args)})


def _say(what: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
