"""CUDA streams of an emulated device whose work runs late, in any order that events allow.

Work is queued per stream and runs when the host waits for it: what else runs before is drawn by a
seed. Memory that is freed is overwritten as soon as PyTorch's allocator could lend it again, which
is after the work queued so far on the stream that allocated it, and on those it was kept for.
"""

import heapq
import random
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

import torch

Work = Callable[[], object]


class Point(NamedTuple):
    """The work queued on a stream so far."""

    stream: int
    count: int


def overwrite(memory):
    """Fill freed or new memory: NaN, -1, True."""
    if memory.numel():
        whole = memory.untyped_storage()
        whole.fill_(0x01 if memory.dtype == torch.bool else 0xFF)


class LateStreams:
    """Queues of work by stream. Thread-safe.

    Args:
        seed: 0 runs nothing that the host does not wait for, 1 all that can run whenever the host
            asks for anything; others draw.
    """

    def __init__(self, seed):
        self._eagerness = {0: 0.0, 1: 1.0}.get(seed, 0.5)
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._work = defaultdict(deque)
        self._queued = Counter()
        self._done = Counter()
        self._freed = deque()
        """Appended by destructors, at any moment of any thread."""
        self._waiting = defaultdict(list)
        """Freed memory by a stream whose work it waits for."""
        self._num_freed = 0
        self._graves = []
        """Freed memory to which queued kernels may have addresses."""
        self.overwritten = 0
        """Number of pieces of freed memory that were overwritten."""

    def put(self, stream, work):
        """Queue work, or a wait for work of another stream."""
        with self._lock:
            self._work[stream].append(work)
            self._queued[stream] += 1

    def point(self, stream):
        """Return the end of the work queued so far."""
        return Point(stream, self._queued[stream])

    def is_done(self, point):
        """Return whether work is done, some of which may run now."""
        with self._lock:
            self._run_others()
            return self._done[point.stream] >= point.count

    def settle(self, point):
        """Run all work until `point`, and what it waits for."""
        with self._lock:
            self._run_others()
            pending = [point]
            while pending:
                stream, count = pending[-1]
                if self._done[stream] >= count:
                    pending.pop()
                elif isinstance(head := self._work[stream][0], Point) and not self._has(head):
                    pending.append(head)
                else:
                    self._step(stream)
                    if self._random.random() < self._eagerness:
                        self._run_others(1)

    def settle_all(self):
        """Run everything."""
        with self._lock:
            for stream in [*self._work]:
                self.settle(self.point(stream))
            self._reclaim()
            self._graves.clear()

    def free(self, memory, streams):
        """Overwrite memory once the work so far on `streams` is done. Takes no lock."""
        self._freed.append((memory, [self.point(stream) for stream in streams]))

    def _has(self, point):
        return self._done[point.stream] >= point.count

    def _run_others(self, most=None):
        """Run some work that nothing holds up, `most` pieces of it or a number drawn."""
        if self._eagerness == 0:
            return
        while most is None or most > 0:
            ready = [s for s, work in self._work.items() if work and self._can_start(work[0])]
            if not ready or self._random.random() > self._eagerness:
                return
            self._step(self._random.choice(ready))
            most = None if most is None else most - 1

    def _can_start(self, work):
        return not isinstance(work, Point) or self._has(work)

    def _step(self, stream):
        work = self._work[stream].popleft()
        self._reclaim()
        if not isinstance(work, Point):
            work()
        self._done[stream] += 1
        self._overwrite(stream)

    def _reclaim(self):
        """Take in freed memory."""
        while self._freed:
            memory, points = self._freed.popleft()
            self._graves.append(memory)
            self._sort_in(memory, points)

    def _sort_in(self, memory, points):
        missing = [point for point in points if not self._has(point)]
        if not missing:
            overwrite(memory)
            self.overwritten += 1
            return
        self._num_freed += 1  # tensors have no order
        first = missing[0]
        entry = (first.count, self._num_freed, memory, missing)
        heapq.heappush(self._waiting[first.stream], entry)

    def _overwrite(self, stream):
        waiting = self._waiting[stream]
        while waiting and waiting[0][0] <= self._done[stream]:
            *_, memory, points = heapq.heappop(waiting)
            self._sort_in(memory, points)
