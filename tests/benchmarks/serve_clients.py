"""Server clients in a separate process that imports only the standard library.

Run as `python serve_clients.py HOST:PORT PATH CLIENTS SECONDS RATE` with questions as JSON lines on
stdin: prints `ready`, sends requests for SECONDS, then prints all latencies as a JSON list.
"""

import asyncio
import json
import random
import re
import sys
import time
from collections.abc import Sequence


async def ask(
    address: str, requests: Sequence[bytes], end: float, pause: float, latencies: list[float]
) -> None:
    """Send requests on a connection until `end`, one at a time, and add their seconds.

    Args:
        address: Host and port.
        requests: The requests.
        end: End time by `time.perf_counter`.
        pause: Seconds between the starts of consecutive requests; 0: back to back.
        latencies: Extended by the seconds of each answer.

    Raises:
        RuntimeError: If a request is refused.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await asyncio.sleep(random.random() * pause)  # clients do not ask in step
    for number in range(sys.maxsize):
        begin = time.perf_counter()
        if begin >= end:
            break
        writer.write(requests[number % len(requests)])
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(body.decode())
        latencies.append(time.perf_counter() - begin)
        await asyncio.sleep(max(0.0, begin + pause - time.perf_counter()))
    writer.close()


async def main(words: Sequence[str]) -> None:
    """Run the command line."""
    address, path = words[:2]
    clients, lasting, rate = int(words[2]), float(words[3]), float(words[4])
    requests: list[bytes] = []
    for line in sys.stdin:
        body = line.strip().encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
        requests.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    print("ready", flush=True)
    end, pause = time.perf_counter() + lasting, clients / rate if rate else 0.0
    latencies: list[float] = []
    turns = (requests[i:] + requests[:i] for i in range(clients))
    await asyncio.gather(*(ask(address, each, end, pause, latencies) for each in turns))
    json.dump(latencies, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
