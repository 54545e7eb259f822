"""Communication between several ranks over `torch.distributed`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from tgflow.describe import described
from tgflow.distributed.facts import Member, find_lost
from tgflow.peers import (
    Group,
    PeerLost,
    Peers,
    Shard,
    check_buffers,
    check_chunks,
)

_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_SIGN_SECONDS = 2.0
"""Seconds for other ranks to report after one is lost, so that the silent ones are known."""
Found = TypeVar("Found")


@described
class Ranks(Peers):
    """This rank of a world. Made by `tgflow.join`; see `tgflow.peers.Peers` for its methods.

    All transfers use gloo, from a device by way of host memory; but transfers of the group "train"
    from CUDA devices use NCCL, if the world has it. Such a call does not synchronize, and its
    seconds are those of the launch.

    It makes the default process group of `torch.distributed`, which it closes, or groups beside
    those of an existing one. All ranks construct it together.

    Args:
        store: Rendezvous store; used by this world alone.
        rank: This rank.
        world: Number of ranks.
        timeout: Seconds after which a rank that does not answer is lost.
        interface: Name of the network interface to listen on, as `lo`; None: gloo's choice.
        nccl: Whether tensors on CUDA devices use NCCL; the same on all ranks, each with its own
            device.
        members: All ranks, to name a lost one.
        group: An existing process group of these ranks; None: initialize the default one.

    Raises:
        PeerLost: If the others do not join within `timeout`.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world: int,
        *,
        timeout: float,
        interface: str | None = None,
        nccl: bool = False,
        members: Sequence[Member] = (),
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(Shard(rank, world))
        self.store = store
        """Key-value store shared by all ranks; for messages out of step, from any thread."""
        self._others = [member for member in members if member.rank != rank]
        self._nccl = nccl
        self._is_owner = group is None
        self._groups = self._open(timedelta(seconds=timeout), interface, group)

    def _open(
        self, timeout: timedelta, interface: str | None, group: dist.ProcessGroup | None
    ) -> dict[Group, dist.ProcessGroup | None]:
        backend = "cpu:gloo,cuda:nccl" if self._nccl else "gloo"
        with _listening_on(interface), self._losing_peers():
            if group is None:
                dist.init_process_group(
                    backend,
                    store=self.store,
                    rank=self.rank,
                    world_size=self.world,
                    timeout=timeout,
                )
                group = dist.group.WORLD
            ranks = dist.get_process_group_ranks(group)
            found: dict[Group, dist.ProcessGroup | None] = {"train": group}
            beside: tuple[Group, ...] = _BESIDE if self._is_owner else ("train", *_BESIDE)
            for name in beside:
                found[name] = dist.new_group(
                    ranks,
                    backend=backend if name == "train" else "gloo",
                    timeout=timeout,
                    use_local_synchronization=not self._is_owner,
                )
            return found

    def exchange(
        self,
        sends: Sequence[Tensor],
        receives: Sequence[Tensor],
        *,
        kind: str,
        group: Group = "train",
    ) -> None:
        """Send a buffer to each rank, and fill one from each. See `Peers.exchange`."""
        check_buffers(self, sends, receives)
        sent, received = (
            [len(buffer) if rank != self.rank else 0 for rank, buffer in enumerate(buffers)]
            for buffers in (sends, receives)
        )
        own = sends[self.rank]
        others = [buffer for rank, buffer in enumerate(sends) if rank != self.rank]
        arrived = self._all_to_all(torch.cat([own[:0], *others]), sent, received, kind, group)
        parts = torch.split(arrived, received)
        for rank, buffer in enumerate(receives):
            buffer.copy_(own if rank == self.rank else parts[rank])

    def gather(
        self, mine: Tensor, sizes: Sequence[int], *, kind: str, group: Group = "train"
    ) -> Tensor:
        """Return the concatenated chunks of all ranks. See `Peers.gather`."""
        check_chunks(self, mine, sizes)
        flat = mine.contiguous().view(torch.uint8)
        # Chunks may differ in length, which gloo's all-gather refuses and its all-to-all does not.
        sent = [len(flat)] * self.world
        received = [size * mine.element_size() for size in sizes]
        return self._all_to_all(flat.repeat(self.world), sent, received, kind, group).view(
            mine.dtype
        )

    def _all_to_all(
        self, flat: Tensor, sent: list[int], received: list[int], kind: str, group: Group
    ) -> Tensor:
        """Send consecutive parts of `flat` to the ranks; return the received parts, by rank."""
        here = self._carried(flat, group)
        arrived = here.new_empty(sum(received))
        with self._counted(kind, sum(sent) - sent[self.rank]):
            dist.all_to_all_single(arrived, here, received, sent, group=self._groups[group])
        return arrived.to(flat.device)

    def broadcast(self, tensor: Tensor, *, kind: str, group: Group = "train") -> None:
        """Overwrite `tensor` with that of rank 0. See `Peers.broadcast`."""
        if not tensor.is_contiguous():
            raise ValueError("tensor must be contiguous; take tensor.contiguous()")
        if tensor.numel() == 0:
            return
        flat = tensor.detach().reshape(-1).view(torch.uint8)
        here = self._carried(flat, group)
        with self._counted(kind, len(flat) * (self.world - 1) if self.rank == 0 else 0):
            dist.broadcast(here, group_src=0, group=self._groups[group])
        if here is not flat:
            flat.copy_(here)

    def is_gone(self, rank: int) -> bool:
        """Return at once whether the process of a rank has ended. See `Peers.is_gone`."""
        return any(each.rank == rank and each.condition() == "gone" for each in self._others)

    def say_why(self, text: str) -> None:
        """Publish why this rank ends, before it leaves; rank 0 informs the others."""
        if self.rank > 0:
            with suppress(RuntimeError):  # rank 0 is gone
                self.store.set(_words_key(self.rank), text)

    def close(self) -> None:
        """Leave the world. See `Peers.close`."""
        if self._groups:
            self._groups = {}
            if self.failure is None:
                self.failure = PeerLost("this rank has left the world")
            if self._is_owner:  # otherwise they end with the group: torch would reuse their names
                dist.destroy_process_group()

    def _why(self, first: str) -> str:
        """Return why another rank is lost: its own message, or its state as visible from here."""
        said = self._last_words()
        if not said:
            seen = find_lost(self._others) or self._find_silent()
            said = self._last_words() or f"{seen}; {first}"
        return said

    def _find_silent(self) -> str:
        """Return a sentence on which ranks give no sign, by the store; waits 2 s for them."""
        others = {member.rank: member for member in self._others}

        def act() -> None:
            self.store.set(_sign_key(self.rank), "")
            deadline = time.monotonic() + _SIGN_SECONDS
            while others and time.monotonic() < deadline:
                for rank in [*others]:
                    if self.store.check([_sign_key(rank)]):
                        del others[rank]
                time.sleep(0.02)

        with suppress(RuntimeError):  # the store is gone, with rank 0 or an agent
            call_within(2 * _SIGN_SECONDS, act, "no answer")
        if not others:
            return "no rank that can be seen from here has ended"
        silent = " and ".join(map(str, others.values()))
        return (
            f"{silent} gave no sign within {_SIGN_SECONDS:g} s: ended, stopped or out of reach; if "
            "one is only slow, wait longer: join(timeout=), --rank-timeout"
        )

    def _last_words(self) -> str:
        """Return the messages that ranks left before they ended; only rank 0 can read them."""
        if self.rank > 0:
            return ""
        keys = {rank: _words_key(rank) for rank in range(1, self.world)}
        said = {rank: self.store.get(key) for rank, key in keys.items() if self.store.check([key])}
        return " and ".join(
            f"rank {rank} has ended: {text.decode()}" for rank, text in said.items()
        )

    def _carried(self, flat: Tensor, group: Group) -> Tensor:
        """Return `flat` on a device that the backend can read: the only choice of a backend."""
        by_nccl = self._nccl and group == "train" and flat.is_cuda
        return flat if by_nccl else flat.cpu()

    @contextmanager
    def _counted(self, kind: str, num_bytes: int) -> Iterator[None]:
        start = time.perf_counter()
        with self._losing_peers():
            yield
        self.traffic.count(kind, num_bytes, time.perf_counter() - start)

    @contextmanager
    def _losing_peers(self) -> Iterator[None]:
        """Raise any communication error as `PeerLost`, and from then on at once."""
        if self.failure is not None:
            raise PeerLost(str(self.failure))
        try:
            yield
        except RuntimeError as error:
            first = str(error).partition("\n")[0]
            text = f"rank {self.rank} lost another one: {self._why(first)}"
            if self.failure is None:
                self.failure = PeerLost(text)
            raise PeerLost(text) from error


def _words_key(rank: int) -> str:
    return f"end/{rank}"


def _sign_key(rank: int) -> str:
    return f"sign/{rank}"


def call_within(seconds: float, act: Callable[[], Found], lost: str) -> Found:
    """Return the result of `act`, run in a daemon thread; raise PeerLost if it takes longer."""
    # torch's store waits without a timeout for a reply, so a stopped rank 0 would block its callers
    found: Future[Found] = Future()

    def run() -> None:
        try:
            found.set_result(act())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name="within", daemon=True).start()
    try:
        return found.result(seconds)
    except TimeoutError:
        if found.done():  # raised by `act` itself
            raise
        raise PeerLost(lost) from None


_BESIDE: tuple[Group, ...] = ("plan", "feed")


@contextmanager
def _listening_on(interface: str | None) -> Iterator[None]:
    """Make gloo and NCCL open their sockets on this interface, by their environment variables."""
    before = {name: os.environ.get(name) for name in _INTERFACE_VARIABLES}
    try:
        if interface is not None:
            os.environ.update(dict.fromkeys(_INTERFACE_VARIABLES, interface))
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
