"""The loop of libraries whose batches come from an iterator, as in their examples."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.own import Task
from benchmarks.race import link_loss


class Loop:
    """Trains `modules` on `_batches`; a batch is stored after it is scored."""

    task: Task
    modules: nn.ModuleList
    optimizer: torch.optim.Optimizer
    _batches: Iterator[Any]

    def train(self, num_batches: int) -> list[float]:
        """Train on the next batches; returns their losses."""
        self.modules.train()
        return [self._step(batch) for batch in islice(self._batches, num_batches)]

    @torch.no_grad()
    def evaluate(self) -> tuple[Tensor, Tensor]:
        """Score the held-out events, storing each batch after it is scored."""
        self.modules.eval()
        scores = []
        for batch in self._load(self.task.train_stop, len(self.task.events)):
            scores.append(self._scores(batch))
            self._store(batch)
        positive, negative = zip(*scores, strict=True)
        return torch.cat(positive), torch.cat(negative)

    def _step(self, batch: Any) -> float:
        self.optimizer.zero_grad()
        loss = link_loss(*self._scores(batch))
        self._store(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self._detach()
        return loss.item()

    def _load(self, start: int, stop: int) -> Iterator[Any]:
        raise NotImplementedError

    def _scores(self, batch: Any) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def _store(self, batch: Any) -> None:
        """Update the model's state by the batch, of which the library may have stored the edges."""

    def _detach(self) -> None:
        """Detach the state from the autograd graph."""
