"""Server clients in a separate process that imports only the standard library.

Run as `python serve_clients.py HOST:PORT PATH CLIENTS SECONDS RATE` with questions as JSON lines on
stdin: prints `ready`, sends requests for SECONDS, then prints all latencies as a JSON list.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence

HEADERS = {"Content-Type": "application/json"}


def ask(
    address: str,
    path: str,
    questions: Iterator[bytes],
    end: float,
    pause: float,
    seconds: list[float],
) -> None:
    """Send requests over one connection until `end`.

    Args:
        address: Address of the server.
        path: Path of the questions.
        questions: Request bodies.
        end: End time by `time.perf_counter`.
        pause: Seconds between the starts of consecutive requests; 0: back to back.
        seconds: List that receives the latencies.

    Raises:
        RuntimeError: If one is refused.
    """
    connection = http.client.HTTPConnection(address, timeout=60)
    time.sleep(random.random() * pause)  # clients do not ask in step
    due = time.perf_counter()
    while (begin := time.perf_counter()) < end:
        connection.request("POST", path, next(questions), HEADERS)
        answer = connection.getresponse()
        said = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {said.decode()}")
        seconds.append(time.perf_counter() - begin)
        due = max(due + pause, time.perf_counter())
        time.sleep(max(0.0, min(due, end) - time.perf_counter()) if pause else 0.0)
    connection.close()


def main(words: Sequence[str]) -> None:
    """Run the command line."""
    address, path = words[:2]
    clients, lasting, rate = int(words[2]), float(words[3]), float(words[4])
    questions = [line.strip().encode() for line in sys.stdin]
    seconds: list[list[float]] = [[] for _ in range(clients)]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    end, pause = time.perf_counter() + lasting, clients / rate if rate else 0.0
    threads = [
        threading.Thread(
            target=ask,
            args=(
                address,
                path,
                itertools.cycle(questions[i:] + questions[:i]),
                end,
                pause,
                seconds[i],
            ),
        )
        for i in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    json.dump([each for one in seconds for each in one], sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
