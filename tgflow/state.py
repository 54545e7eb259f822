"""What a model keeps of the stream it has seen, beside its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from torch import Tensor

from tgflow.batch import Batch


class StreamState(Protocol):
    """What `TemporalModel.store` writes: a memory per node, a table of counts, a set of pairs.

    A trainer resets it at the start of an epoch, and a checkpoint has all of it as tensors; neither
    knows more of it than this. A `torch.nn.Module` may be one (`tgflow.nn.NodeMemory` is) and then
    follows the model's `to`; any other class keeps its tensors where the model runs by itself.

    A state with an attribute `num_rows` is counted in a run's metrics.
    """

    def reset(self) -> None:
        """Forget every event; what `keep_past` has asked for stays asked for."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return all of it as tensors by name: copies, so that later events do not change them.

        The names match `[a-z0-9_.-]`. Equal states give equal tensors, by which runs are compared.
        """

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Become what `state_dict` returned, perhaps on another device; earlier content is gone.

        Raises:
            KeyError: If a tensor is missing.
            ValueError: If the state is one of another shape; nothing has changed then.
        """

    def keep_past(self, num_events: int) -> None:
        """Keep from now on what the last `num_events` events have changed.

        So the state can be read as of that many events ago, less those of a micro-batch. A trainer
        that replays calls it before the first event, or after `load_state_dict`, so that
        replayed events read what was known when they happened (`Batch.position`). A state that
        cannot look back may do nothing: then replay reads its present.
        """


@runtime_checkable
class PartedState(StreamState, Protocol):
    """A state of which each node has its own: checkpoints may have it by parts of the nodes.

    A node is in part `node % tgflow.peers.PARTS`. What a part holds depends on the stream alone,
    not on which process holds which nodes, nor on what it has read.
    """

    def parted(self) -> Callable[[int], dict[str, Tensor]]:
        """Return what gives a part's tensors by name: copies, until the next event is stored."""

    def load_parted(self, read: Callable[[int], Mapping[str, Tensor]]) -> None:
        """Become what `parted` gave, perhaps on another device; earlier content is gone.

        Args:
            read: Returns the tensors of a part; asked for the parts that are held here.

        Raises:
            KeyError: If a tensor is missing.
            ValueError: If the state is one of another shape; nothing has changed then.
        """


@runtime_checkable
class SpreadState(PartedState, Protocol):
    """A state of which each rank has that of its own nodes, and fetches what it reads of others.

    `store` gets the messages of whole batches, of which those to nodes of other ranks may be
    anything; checkpoints are written by all ranks together.
    """

    def ask(self, micro_batches: Sequence[Iterable[Batch]]) -> list[Callable[[], None]]:
        """Let owners know what will be read; return of each micro-batch what fetches it.

        All ranks call it together, with as many micro-batches, in the order of the group "plan".
        What is returned they call together too, once everything before the micro-batch is stored;
        it does nothing where that was fetched already.

        Args:
            micro_batches: Of each, the batches that this rank computes.

        Raises:
            PeerLost: If another rank is gone.
        """


@runtime_checkable
class DeviceState(StreamState, Protocol):
    """A state that a trainer on a GPU need not wait for; it waits at each step for any other."""

    @property
    def capturable(self) -> bool:
        """Whether CUDA graphs may capture what it does; a `torch.nn.Module`, by its buffers."""

    def covering(self, num_nodes: int) -> AbstractContextManager[None]:
        """Enclose reading and writing of nodes below `num_nodes` alone."""

    def unless(self, is_lost: Tensor) -> AbstractContextManager[None]:
        """Let writing change nothing if `is_lost`, bool `[]` on the device, when it is run."""
