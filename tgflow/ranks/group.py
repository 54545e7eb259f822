"""Communication between several ranks over `torch.distributed`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _abort_process_group

from tgflow.base.describe import described
from tgflow.base.peers import Group, PeerLost, Peers, Shard, check_buffers, check_chunks
from tgflow.ranks.rank_info import Member

_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_BESIDE: tuple[Group, ...] = ("plan", "feed", "save")
_RESPONSE_SECONDS = 2.0
"""Seconds for other ranks to report after one is lost, so that the silent ones are known."""
_PAUSE = 0.01
Found = TypeVar("Found")


@described
class Ranks(Peers):
    """This rank of a world. Made by `tgflow.join`; see `tgflow.base.peers.Peers` for its methods.

    All transfers use gloo, from a device by way of host memory; but transfers of the group "train"
    from CUDA devices use NCCL, if the world has it. Such a call does not synchronize, and its
    seconds are those of the launch. Headers, orders and status are in host memory, and so use gloo.

    It makes the default process group of `torch.distributed`, which it closes, or groups beside
    those of an existing one, `group`. All ranks construct it together, with a store of their own;
    PeerLost if the others do not join within `timeout`. `members` name a lost rank.
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
        self._store = store
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
                    store=self._store,
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
        sent, received = [*map(len, sends)], [*map(len, receives)]
        arrived = self._all_to_all(torch.cat([*sends]), sent, received, kind, group)
        for buffer, part in zip(receives, torch.split(arrived, received), strict=True):
            buffer.copy_(part)

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
        call = partial(dist.all_to_all_single, arrived, here, received, sent)
        self._call(call, kind, group, sum(sent) - sent[self.rank])
        return arrived.to(flat.device)

    def broadcast(self, tensor: Tensor, *, kind: str, group: Group = "train") -> None:
        """Overwrite `tensor` with that of rank 0. See `Peers.broadcast`."""
        if not tensor.is_contiguous():
            raise ValueError("tensor must be contiguous; take tensor.contiguous()")
        if tensor.numel() == 0:
            return
        flat = tensor.detach().reshape(-1).view(torch.uint8)
        here = self._carried(flat, group)
        call = partial(dist.broadcast, here, group_src=0)
        self._call(call, kind, group, len(flat) * (self.world - 1) if self.rank == 0 else 0)
        if here is not flat:
            flat.copy_(here)

    def publish_error(self, text: str) -> None:
        """Publish why this rank ends, before it leaves; "" if only as another one is lost."""
        with suppress(RuntimeError):  # the store is gone
            self._store.set(f"end/{self.rank}", text)

    def close(self) -> None:
        """Leave the world. See `Peers.close`."""
        if self._groups:
            self._groups, is_aborted = {}, self._nccl and self.failure is not None
            if self.failure is None:
                self.failure = PeerLost("this rank has left the world")
            if self._is_owner:  # otherwise they end with the group: torch would reuse their names
                # destroying flushes the transfers of groups that are not aborted
                (_abort_process_group if is_aborted else dist.destroy_process_group)()

    def _why(self, first: str) -> str:
        """Return the reasons of ranks that ended, or which ranks do not respond within 2 s."""
        try:
            reasons, silent = call_within(2 * _RESPONSE_SECONDS, self._responses, "no answer")
        except RuntimeError:
            where = f"{self._others[0]} or torchrun" if self.rank > 0 else "torchrun"
            return f"the store of the ranks does not answer, which {where} serves; {first}"
        if reasons:
            return " and ".join(f"rank {rank} has ended: {why}" for rank, why in reasons.items())
        what = "all ranks respond"
        if silent:
            what = (
                f"{' and '.join(map(str, silent))} did not respond within {_RESPONSE_SECONDS:g} s: "
                "ended, stopped or out of reach"
            )
        way_out = "if one is only slow, wait longer: join(timeout=), --set ranks.timeout=S"
        return f"{what}; {way_out}; {first}"

    def _responses(self) -> tuple[dict[int, str], list[Member]]:
        """Respond; return the reasons of other ranks, and the ranks that did not respond."""
        self.publish_error("")
        reasons, silent = dict[int, str](), self._others
        deadline = time.monotonic() + _RESPONSE_SECONDS
        while silent and not reasons and time.monotonic() < deadline:
            time.sleep(_PAUSE)
            found = [each.rank for each in silent if self._store.check([f"end/{each.rank}"])]
            said = {rank: self._store.get(f"end/{rank}").decode() for rank in found}
            reasons |= {rank: why for rank, why in said.items() if why}
            silent = [each for each in silent if each.rank not in found]
        return reasons, silent

    def _carried(self, flat: Tensor, group: Group) -> Tensor:
        """Return `flat` on a device that the backend can read: the only choice of a backend."""
        by_nccl = self._nccl and group == "train" and not flat.is_cpu
        return flat if by_nccl else flat.cpu()

    def _call(self, call: Callable[..., Any], kind: str, group: Group, num_bytes: int) -> None:
        """Complete a collective; one of the group "save" ends also if another group has failed."""
        start = time.perf_counter()
        with self._losing_peers():
            if group == "save":
                done = _started(partial(call, group=self._groups[group]))
                while not done.done():
                    self._check()
                    time.sleep(_PAUSE)
                done.result()
            else:
                call(group=self._groups[group])
        self.traffic.count(kind, num_bytes, time.perf_counter() - start)

    def _check(self) -> None:
        if self.failure is not None:
            raise PeerLost(str(self.failure))

    @contextmanager
    def _losing_peers(self) -> Iterator[None]:
        """Raise any communication error as `PeerLost`, and from then on at once."""
        self._check()
        try:
            yield
        except PeerLost:
            raise
        except RuntimeError as error:
            if self._nccl and self.failure is None and (train := self._groups.get("train")):
                train.abort()  # a kernel that waits for the lost rank would hold up all later ones
            first = str(error).partition("\n")[0]
            text = f"rank {self.rank} lost another one: {self._why(first)}"
            if self.failure is None:
                self.failure = PeerLost(text)
            raise PeerLost(text) from error


def call_within(seconds: float, act: Callable[[], Found], lost: str) -> Found:
    """Return the result of `act`, run in a daemon thread; raise PeerLost if it takes longer."""
    # torch's store waits without a timeout for a reply, so a stopped rank 0 would block its callers
    found = _started(act)
    try:
        return found.result(seconds)
    except TimeoutError:
        if found.done():  # raised by `act` itself
            raise
        raise PeerLost(lost) from None


def _started(act: Callable[[], Found]) -> Future[Found]:
    """Run `act` in a daemon thread, which may be left behind."""
    found: Future[Found] = Future()

    def run() -> None:
        try:
            found.set_result(act())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name="started", daemon=True).start()
    return found


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
