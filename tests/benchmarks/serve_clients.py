"""Server clients in a separate process that imports only the standard library.

Run as `python serve_clients.py HOST:PORT PATH CLIENTS SECONDS RATE` with questions as JSON lines on
stdin: prints `ready`, sends requests for SECONDS, then prints all latencies as a JSON list.
"""

import heapq
import json
import random
import selectors
import socket
import sys
import time
from collections.abc import Sequence

END = b"\r\n\r\n"
LENGTH = b"content-length: "


class Connection:
    """A client's connection, on which one request is open at a time."""

    def __init__(self, address: str, requests: Sequence[bytes]) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests, self._next, self._read = requests, 0, b""
        self.begin = 0.0
        """Start of the open request by `time.perf_counter`."""

    def send(self) -> None:
        """Send the next request."""
        self._read, self.begin = b"", time.perf_counter()
        self.socket.sendall(self._requests[self._next % len(self._requests)])
        self._next += 1

    def receive(self) -> bool:
        """Read what has arrived; return whether the response is complete.

        Raises:
            RuntimeError: If the request is refused, or the connection closed.
        """
        found = self.socket.recv(1 << 16)
        self._read += found
        head, end, body = self._read.partition(END)
        if not found or (end and not head.startswith(b"HTTP/1.1 200")):
            raise RuntimeError(self._read.decode() or "the server has closed the connection")
        if not end:
            return False
        at = head.lower().index(LENGTH) + len(LENGTH)
        return len(body) == int(head[at:].partition(b"\r")[0])


def ask(connections: Sequence[Connection], end: float, pause: float) -> list[float]:
    """Send requests on all connections until `end`; return the latencies in seconds.

    Args:
        connections: The clients.
        end: End time by `time.perf_counter`.
        pause: Seconds between the starts of consecutive requests of a client; 0: back to back.
    """
    latencies: list[float] = []
    now = time.perf_counter()  # clients do not ask in step
    due = [(now + random.random() * pause, i) for i in range(len(connections))]
    heapq.heapify(due)
    num_open = 0
    with selectors.DefaultSelector() as selector:
        for i, connection in enumerate(connections):
            selector.register(connection.socket, selectors.EVENT_READ, i)
        while True:
            while due and due[0][0] <= time.perf_counter():
                i = heapq.heappop(due)[1]
                if time.perf_counter() < end:
                    connections[i].send()
                    num_open += 1
            if not due and not num_open:
                return latencies
            wait = max(0.0, due[0][0] - time.perf_counter()) if due else None
            for key, _ in selector.select(wait):
                connection = connections[key.data]
                if connection.receive():
                    now, num_open = time.perf_counter(), num_open - 1
                    latencies.append(now - connection.begin)
                    heapq.heappush(due, (max(connection.begin + pause, now), key.data))


def main(words: Sequence[str]) -> None:
    """Run the command line."""
    address, path = words[:2]
    clients, lasting, rate = int(words[2]), float(words[3]), float(words[4])
    requests = []
    for line in sys.stdin:
        body = line.strip().encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
        requests.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    connections = [Connection(address, requests[i:] + requests[:i]) for i in range(clients)]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    end, pause = time.perf_counter() + lasting, clients / rate if rate else 0.0
    json.dump(ask(connections, end, pause), sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
