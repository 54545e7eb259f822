"""Interfaces of a model's state of the stream, beside its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from torch import Tensor

from tgflow.graph.batch import Batch


class StreamState(Protocol):
    """State that `TemporalModel.store` updates: a memory per node, counts, or a set of pairs.

    A trainer resets it at the start of an epoch, and checkpoints store it as tensors; neither
    uses more of it than this. It may be a `torch.nn.Module`, such as `tgflow.nn.NodeMemory`, and
    then follows the model's `to`; any other class must move its tensors to the model's device.

    The attribute `num_rows` of a state, if any, is reported in a run's metrics.
    """

    def reset(self) -> None:
        """Discard all events; `keep_past` stays in effect."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return all of it as tensors by name: copies that later events do not change.

        The names match `[a-z0-9_.-]`. Equal states give equal tensors, so runs can be compared.
        """

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace the state by a result of `state_dict`, possibly from another device.

        Raises:
            KeyError: If a tensor is missing.
            ValueError: If the state has another shape; nothing has changed then.
        """

    def keep_past(self, num_events: int) -> None:
        """Keep the changes of the last `num_events` events from now on.

        The state can then be read as of that many events ago, less a micro-batch. A trainer
        with replay calls it before the first event, or after `load_state_dict`, so that replayed
        events read the state as of their time (`Batch.position`). A state without
        history may ignore it: then replay reads the present state.
        """


@runtime_checkable
class PartedState(StreamState, Protocol):
    """A state per node, which checkpoints may store by parts of the nodes.

    A node is in part `node % tg.peers.PARTS`. A part's contents depend on the stream alone, not
    on which process holds which nodes, nor on earlier reads.
    """

    def forget(self, first: int, tick: int) -> None:
        """Give the initial state to the nodes whose last event is before a horizon; free memory.

        The horizon begins at log position `first`, where the log's clock is `tick`. Called between
        micro-batches, whenever it has moved, at log positions that depend on the log alone. What is
        read later has no event before `tick`, or is initial.
        """

    def frozen(self) -> Callable[[], dict[str, Tensor]]:
        """Return a function that returns `state_dict` as of now; called once, on any thread."""

    def parted(self) -> Callable[[int], dict[str, Tensor]]:
        """Return a function from part to tensors by name, as of now; called on one thread."""

    def load_parted(self, read: Callable[[int], Mapping[str, Tensor]]) -> None:
        """Replace the state by a result of `parted`, possibly from another device.

        `read` returns the tensors of a part; it is called for the parts that are held here. Raises
        as `load_state_dict`.
        """


@runtime_checkable
class SpreadState(PartedState, Protocol):
    """A state sharded over ranks by node; a rank fetches what it reads of other ranks' nodes.

    `store` gets the messages of whole batches, of which those to nodes of other ranks may have
    any value; checkpoints are written by all ranks together.
    """

    def ask(self, micro_batches: Sequence[Iterable[Batch]]) -> list[Callable[[], None]]:
        """Send owners the reads to come; return a function per micro-batch that fetches them.

        All ranks call it together, with as many micro-batches, each the batches that the rank
        computes, in the order of the group "plan". They also call the returned functions together,
        once everything before the micro-batch is stored; a call does nothing if the data was
        fetched already. PeerLost if another rank is gone.
        """


@runtime_checkable
class DeviceState(StreamState, Protocol):
    """A state that a trainer on a GPU uses without synchronizing, unlike any other."""

    @property
    def capturable(self) -> bool:
        """Whether CUDA graphs may capture its operations; for a `torch.nn.Module`, its buffers."""

    def covering(self, num_nodes: int) -> AbstractContextManager[None]:
        """Enclose reads and writes of nodes below `num_nodes` only."""

    def unless(self, is_lost: Tensor) -> AbstractContextManager[None]:
        """Make writes no-ops if `is_lost`, bool `[]` on the device, is True when they run."""
