"""Memory parallelism: ranks train one model on stretches of the events, each with its own memory.

DistTGL, arXiv:2307.07649: Zhou, Zheng, Song, Karypis, Prasanna; SC 2023.

Differs from the paper:
    * A stretch has one rank, and its batches are whole: i = j = 1 of the paper's i x j x k.
    * A rank keeps its stretch, and memory moves; there, a rank moves through all stretches.
    * The learning rate is as given; there, it is scaled with the number of ranks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import torch
from safetensors.torch import load, save

from tgflow.base.peers import Peers
from tgflow.graph.batch import Batch, JointBatch
from tgflow.graph.stream_state import StreamState
from tgflow.nn.model import TemporalModel

MEMORY = "memory handed on"
"""Name of the transfers of memory in `Traffic`."""
_CHOICE = "epoch"
_WAIT = -1
_SIGN_SECONDS = 1.0


class Stretches:
    """The stretch of the training batches that this rank learns, and its memory between epochs.

    Stretches are consecutive, and differ by one batch at most. Rank r of k has stretch k - 1 - r:
    rank 0, which evaluates, has the last one. A stretch begins each epoch with the memory that the
    stretch before it had at the end of the last epoch, so that no memory comes from later events;
    the first stretch always begins with an empty memory, and all others in the first epoch. From
    epoch k on the memory of the last stretch has seen all events in order.

    All ranks take the same steps: one by the mean of the gradients of their batches. In the last
    step of an epoch some ranks may have no batch.

    Args:
        peers: The ranks, one for each stretch.
        num_batches: Training batches of an epoch.

    Raises:
        ValueError: If there are fewer batches than stretches.
    """

    def __init__(self, peers: Peers, num_batches: int) -> None:
        world = peers.world
        if num_batches < world:
            raise ValueError(
                f"parallel='memory={world}' needs a batch for each of {world} stretches, training "
                f"has {num_batches}; give a smaller batch_size, or fewer stretches"
            )
        number = world - 1 - peers.rank
        self.batches = range(num_batches * number // world, num_batches * (number + 1) // world)
        """Indices of this rank's batches."""
        self.num_steps = -(-num_batches // world)
        """Steps of an epoch."""
        self._peers, self._num_batches = peers, num_batches
        self._received: bytes | None = None
        self._signed = time.monotonic()

    @property
    def leads(self) -> bool:
        """Whether this rank evaluates."""
        return self._peers.rank == 0

    def steps(self, epoch: int, batches: Iterable[Batch]) -> Iterator[JointBatch]:
        """Yield this rank's part of each step, given its batches of an epoch."""
        mine, world = iter(batches), self._peers.world
        for step in range(self.num_steps):
            num_active = min(world, self._num_batches - step * world)
            yield JointBatch(epoch, step, next(mine, None), 1 / num_active, world)

    def begin(self, state: StreamState) -> None:
        """Begin an epoch with the memory of the stretch before, or with an empty one."""
        if self._received is None:
            state.reset()
        else:
            state.load_state_dict(load(self._received))

    def hand_on(self, state: StreamState) -> None:
        """Send the memory to the rank of the next stretch, and keep the one received. Collective.

        Takes host memory for several copies of the model's memory.
        """
        rank, world = self._peers.rank, self._peers.world
        empty = torch.empty(0, dtype=torch.uint8)
        sends, receives = [empty] * world, [empty] * world
        if rank > 0:
            held = {name: x.contiguous() for name, x in state.state_dict().items()}
            sends[rank - 1] = torch.frombuffer(bytearray(save(held)), dtype=torch.uint8)
        size = torch.tensor([sum(map(len, sends))])
        sizes = self._peers.gather(size, [1] * world, kind=MEMORY).tolist()
        if rank + 1 < world:
            receives[rank + 1] = torch.empty(sizes[rank + 1], dtype=torch.uint8)
        self._peers.exchange(sends, receives, kind=MEMORY)
        if rank + 1 < world:
            self._received = receives[rank + 1].numpy().tobytes()

    def sign(self) -> None:
        """Let the other ranks wait on; rank 0 calls it often while it alone computes."""
        if time.monotonic() - self._signed > _SIGN_SECONDS:
            self._peers.broadcast(torch.tensor(_WAIT), kind=_CHOICE)
            self._signed = time.monotonic()

    def agree(self, epoch: int) -> int:
        """Return the epoch that rank 0 has chosen, on all ranks; waits until it has."""
        chosen = torch.tensor(epoch)
        self._peers.broadcast(chosen, kind=_CHOICE)
        while int(chosen) == _WAIT:
            self._peers.broadcast(chosen, kind=_CHOICE)
        return int(chosen)


def check_memories(model: TemporalModel, memories: int) -> None:
    """Raise ValueError if a model cannot be trained with several memories."""
    if memories == 1:
        return
    name, setting = type(model).__name__, f"parallel='memory={memories}'"
    if not any(x.requires_grad for x in model.parameters()):
        raise ValueError(
            f"{setting} averages gradients, and {name} has no parameters; leave it out"
        )
    if model.state is None:
        raise ValueError(
            f"{setting} is for models with a memory, and {name} has none; let ranks share its "
            f"batches instead: slices={memories}"
        )
