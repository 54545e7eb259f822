"""Online selection among candidate scorers by their merits, as of any log position."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

import torch
from torch import Tensor

from tgflow.graph.batch import Batch


class Choice:
    """The candidate with the highest merit, such as average precision, summed over batches.

    A `StreamState` that can be read as of every position, so that replayed events are scored as
    they were. It takes 16 bytes per change of the leader.
    """

    def __init__(self, num: int) -> None:
        self.num = num
        self.reset()

    def reset(self) -> None:
        self._merits = torch.zeros(self.num, dtype=torch.float64)
        self._since, self._leads = [0], [0]
        self._is_settled = False

    def keep_past(self, num_events: int) -> None:
        """Do nothing: all changes of the leader are kept anyway."""

    def settle(self) -> None:
        """Keep the current leader, whatever follows."""
        self._is_settled = True

    @property
    def lead(self) -> int:
        return self._leads[-1]

    def of_batch(self, batch: Batch) -> Tensor:
        """Return the candidate that led when the batch of each event started, int64 `[B]` or `[1]`.

        The result is on the CPU; synchronizes only if there are replayed events.
        """
        if batch.num_new == len(batch):
            return torch.tensor([self._at(batch.host.begin)])
        position = batch.position
        if len(batch.nodes):  # a plan with a frontier has them per row
            position = position.index_select(0, batch.src_row)
        return torch.tensor([self._at(each) for each in position.tolist()])

    def _at(self, position: int) -> int:
        return self._leads[bisect_right(self._since, position) - 1]

    def add(self, merits: Tensor, position: int) -> None:
        if self._is_settled:
            return
        self._merits += merits.cpu()
        best = int(self._merits.argmax())
        if best != self.lead:
            self._since.append(position)
            self._leads.append(best)

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "merits": self._merits.clone(),
            "since": torch.tensor(self._since),
            "leads": torch.tensor(self._leads),
            "is_settled": torch.tensor(self._is_settled),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        merits, since, leads = state["merits"], state["since"], state["leads"]
        is_settled = bool(state["is_settled"])
        if len(merits) != self.num:
            raise ValueError(f"a choice among {len(merits)} does not fit one among {self.num}")
        self._merits = merits.cpu().clone()
        self._since, self._leads, self._is_settled = since.tolist(), leads.tolist(), is_settled
