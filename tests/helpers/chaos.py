"""A TCP proxy in front of a broker that cuts, delays, corrupts and drops traffic."""

from __future__ import annotations

import asyncio
import random
import threading


class ChaosProxy:
    """Forwards connections to a broker; its public fields say what goes wrong.

    Args:
        upstream: Host and port of the broker, as "host:port".
        seed: Of when connections are cut.
    """

    def __init__(self, upstream, seed=1):
        host, _, port = upstream.rpartition(":")
        self._upstream = host, int(port)
        self._random = random.Random(seed)
        self.cut_every = 0  # bytes to the client, on average
        self.closed = False  # connections are refused
        self.damage = None  # changes a chunk of bytes to the client
        self.num_cuts = 0
        self.port = 0
        self._connections = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    @property
    def server(self):
        return f"127.0.0.1:{self.port}"

    def advertise(self, broker, number=1):
        broker("broker_set_host_port", number, "127.0.0.1", self.port)
        return self

    def refuse(self, closed):
        self.closed = closed
        if closed:
            self._loop.call_soon_threadsafe(self._abort_all)

    def close(self):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)

    async def _main(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        self._abort_all()

    def _abort_all(self):
        for writer in list(self._connections):
            writer.transport.abort()

    async def _accept(self, reader, writer):
        if self.closed:
            writer.transport.abort()
            return
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, upstream_writer}
        self._connections |= pair
        await asyncio.gather(
            self._pipe(reader, upstream_writer, pair, False),
            self._pipe(upstream_reader, writer, pair, True),
        )
        self._connections -= pair

    async def _pipe(self, reader, writer, pair, to_client):
        left = self._random.expovariate(1 / self.cut_every) if self.cut_every else float("inf")
        try:
            while data := await reader.read(65536):
                if to_client:
                    if self.damage is not None:
                        data = self.damage(data)
                    left -= len(data)
                    if left <= 0:
                        writer.write(data[: len(data) // 2])
                        self.num_cuts += 1
                        return
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            for end in pair:
                end.transport.abort()
