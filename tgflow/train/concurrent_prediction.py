"""Prediction of a micro-batch on a second thread, while the model learns it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from operator import is_

import torch

from tgflow.base._native import num_threads, set_num_threads
from tgflow.base.choices import Precision
from tgflow.graph.batch import Batch
from tgflow.graph.stream_state import DeviceState
from tgflow.nn.linear import product_precision
from tgflow.nn.model import Scores, TemporalModel
from tgflow.train.finite import BatchPlace, check_finite


class BesideLearning:
    """Predicts micro-batches on a thread of its own, with the bits of predictions before learning.

    Both read the same state and the same parameters, which change only after both. A copy of the
    model that shares these is in evaluation mode while the model is in training mode. Each of the
    two threads computes with half of torch's threads, and with half of the core's until the
    prediction is made; learning, which takes longer, then has all of the core's.
    """

    def __init__(self, model: TemporalModel, precision: Precision) -> None:
        self._model, self._precision = model, precision
        self._copy()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tgflow-predict")

    @staticmethod
    def is_possible(model: TemporalModel) -> bool:
        """Return whether nothing that a prediction reads changes in a forward pass to learn."""
        state = model.state
        is_read_only = state is None or (isinstance(state, DeviceState) and state.capturable)
        return is_read_only and not model.marks()

    def _shared_now(self) -> list[object]:
        model = self._model
        state = [] if model.state is None else [model.state]
        return [*model.parameters(), *model.buffers(), *state]

    def _copy(self) -> None:
        self._shared = self._shared_now()
        self._copied = deepcopy(self._model, {id(each): each for each in self._shared}).eval()

    @contextmanager
    def predicting(self, batch: Batch, learned: Batch) -> Iterator[Future[Scores]]:
        """Predict `batch` during the context, in which `learned` may be learned."""
        now = self._shared_now()
        if len(now) != len(self._shared) or not all(map(is_, now, self._shared)):
            self._copy()
        threads, core_threads = torch.get_num_threads(), num_threads()
        state = self._model.state
        torch.set_num_threads(max(1, threads // 2))
        try:
            with ExitStack() as stack:
                if isinstance(state, DeviceState):
                    nodes = torch.cat([batch.nodes, learned.nodes])
                    stack.enter_context(state.covering(int(nodes.max()) + 1 if len(nodes) else 0))
                set_num_threads(max(1, core_threads // 2))
                yield self._thread.submit(self._predict, batch, core_threads)
        finally:
            torch.set_num_threads(threads)
            set_num_threads(core_threads)

    def _predict(self, batch: Batch, core_threads: int) -> Scores:
        try:
            with torch.no_grad(), product_precision(self._precision, torch.device("cpu")):
                scores: Scores = self._copied(batch)
        finally:  # before the result is there: a callback may run after the next prediction starts
            set_num_threads(core_threads)
        check_finite(BatchPlace.of(batch), scores.positive, scores.negative, None, scores.classes)
        return scores
