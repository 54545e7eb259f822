"""Rows of a model's lowest layer that threads compute beside the training.

The layered orchestration of NeutronOrch (PVLDB 17, 2024): while the batches of a super-batch are
learned, rows that several batches of the next one need are computed on the CPU, from the parameters
at the start of the super-batch. The plan decides which rows. When they are due, the training takes
the finished ones and computes the others from the same parameters, in the same units, on one
thread. So the training never waits, and its bits do not depend on timing.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor, nn

from tgflow._native import num_threads, stay_alone
from tgflow.batch import HotRows, ReuseRecord
from tgflow.nn.choice import one_thread
from tgflow.nn.embedding_ring import EmbeddingRing
from tgflow.plan.plan import Plan
from tgflow.plan.reuse import node_features, with_event_features
from tgflow.sampling.expand import Frontier, expand
from tgflow.sampling.rows import sample_neighbors

UNIT_ROWS = 256
"""Rows that are computed at once."""


class RowProducer:
    """Computes hot rows of a layer ahead, and brings them into its ring.

    Args:
        layer: Called with (inputs of nodes or None, block); a copy of it computes, in evaluation
            mode: without dropout.
        ring: Of its rows.
        plan: Whose batches take them; its graph is in host memory.
    """

    def __init__(self, layer: nn.Module, ring: EmbeddingRing, plan: Plan) -> None:
        self._layer, self._ring, self._plan = layer, ring, plan
        self._pool: ThreadPoolExecutor | None = None
        self._published: nn.Module | None = None
        self._job: _Job | None = None
        self.uses_threads = True
        """Whether threads compute rows ahead; otherwise the training computes all of them."""
        self.num_made = 0
        """Rows that came into the ring."""
        self.num_read = 0
        """Neighbors that they were made of."""
        self.num_late = 0
        """Of the rows, those that were not there in time, since this process began."""

    def begin(self, record: ReuseRecord) -> None:
        """Begin a batch: what is due comes into the ring, and what it hands over is begun.

        Raises:
            ValueError: If that is of parameters that a checkpoint should have brought, and has not.
        """
        self.finish(record.number)
        if record.hot is None:
            return
        if record.hot.number == record.number:
            self._published = copy_layer(self._layer)
        if self._published is None:
            raise ValueError(
                "the checkpoint has no parameters that rows were computed ahead with: go on from "
                'it with producer="inline", as it was made'
            )
        self._job = _Job(record.hot, self._published, self._plan)
        if self.uses_threads:
            self._job.begin(self._threads())

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            most = max(1, num_threads() - 1)  # beside the one that trains
            self._pool = ThreadPoolExecutor(most, "tgflow-producer", initializer=stay_alone)
        return self._pool

    def finish(self, number: int) -> None:
        """Bring rows into the ring that batch `number`, the next, may take.

        Raises:
            Exception: What a thread failed with.
        """
        job = self._job
        if job is None or number < job.hot.due:
            return
        self._job = self._published = None
        self._ring.put(job.hot, job.rows())
        self.num_made += len(job.hot)
        self.num_read += len(job.hot) * job.hot.k
        self.num_late += job.num_late

    def close(self) -> None:
        """Drop what is not due yet, and end the threads: at most a unit of rows is waited for."""
        self._job = self._published = None
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def saved(self, number: int) -> dict[str, Tensor]:
        """Return what `restore` takes, once what batch `number`, the next, may take is in the ring.

        Where rows are not due yet, that is the parameters that they are of.
        """
        self.finish(number)
        published = {} if self._published is None else self._published.state_dict()
        return {"made": torch.tensor([self.num_made, self.num_read])} | {
            f"published.{name}": x for name, x in published.items()
        }

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Become what was saved; by a training that computed no rows ahead: with none."""
        self.close()
        self.num_made, self.num_read = saved.get("made", torch.zeros(2, dtype=torch.int64)).tolist()
        head = "published."
        published = {
            name.removeprefix(head): x for name, x in saved.items() if name.startswith(head)
        }
        if published:
            self._published = copy_layer(self._layer)
            self._published.load_state_dict(published)


class _Job:
    """The hot rows of a super-batch, and who computes them."""

    def __init__(self, hot: HotRows, layer: nn.Module, plan: Plan) -> None:
        self.hot = hot
        self.num_late = 0
        self._layer, self._plan = layer, plan
        self._units = [slice(i, i + UNIT_ROWS) for i in range(0, len(hot), UNIT_ROWS)]
        self._futures: list[Future[Tensor] | None] = [None] * len(self._units)

    def begin(self, threads: ThreadPoolExecutor) -> None:
        """Let threads compute, in the order of units."""
        self._futures = [threads.submit(self._made, unit) for unit in self._units]

    def rows(self) -> Tensor:
        """Return all rows, `[S, dim]`; computes those that are not there, the last ones first."""
        pairs = zip(reversed(self._units), reversed(self._futures), strict=True)
        return torch.cat([self._taken(unit, future) for unit, future in pairs][::-1])

    def _taken(self, unit: slice, future: Future[Tensor] | None) -> Tensor:
        if future is not None and future.done():
            return future.result()
        if future is not None:
            future.cancel()  # one that is being computed is computed twice
        rows = self._made(unit)
        self.num_late += len(rows)
        return rows

    def _made(self, unit: slice) -> Tensor:
        """Return the rows of a unit, `[n, dim]` on the CPU."""
        graph, hot = self._plan.graph, self.hot
        nodes, t = hot.nodes[unit], hot.t[unit]
        with torch.no_grad(), one_thread():
            neighbors = sample_neighbors(
                graph, self._plan.sampler, nodes, t, hot.k, as_of=hot.position[unit]
            )
            block, below = expand(
                Frontier(nodes, t), neighbors, graph.seconds_per_tick, None, by_time=False
            )
            inputs = node_features(graph, below.nodes)
            rows: Tensor = self._layer(inputs, with_event_features(graph, block))
            return rows


def copy_layer(layer: nn.Module) -> nn.Module:
    """Return a copy of a layer on the CPU in evaluation mode, which has its present parameters."""
    memo: dict[int, Tensor] = {id(x): x.detach().to("cpu", copy=True) for x in layer.buffers()}
    for x in layer.parameters():
        memo[id(x)] = nn.Parameter(x.detach().to("cpu", copy=True), requires_grad=False)
    return copy.deepcopy(layer, memo).eval()
