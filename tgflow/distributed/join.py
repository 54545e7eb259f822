"""How a process joins the other ranks: the one call before anything is made together."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from tgflow.distributed.facts import Facts, find_other_bits, have_own_devices
from tgflow.distributed.handshake import ANSWER_SECONDS, Terms, follow, lead
from tgflow.distributed.interfaces import choose_interface
from tgflow.distributed.launch import read_launch
from tgflow.distributed.meeting import meeting_of
from tgflow.distributed.ranks import Ranks
from tgflow.peers import Alone, PeerLost, Peers

Found = TypeVar("Found")


def join(
    settings: Mapping[str, Any] | None = None,
    *,
    interface: str | None = None,
    device: torch.device | str = "cpu",
    timeout: float = 300.0,
    strict: bool = False,
) -> Peers:
    """Join the ranks that were started with this one, by torchrun or `--nproc`; waits for them.

    Without them it returns `Alone`, and waits for nobody. Rank 0 opens a store on an interface of
    its own choice, the others find it, and all compare what they are. Works after any restart,
    whatever dead ranks left behind. Neither the store nor what follows authenticates or encrypts:
    use a network that strangers cannot reach.

    Args:
        settings: What must be set alike on all ranks, by name, plain values; compared.
        interface: Name of the network interface to listen on, and on no other, such as "eth1"; None
            if all ranks are on one host: the loopback.
        device: Where this rank computes. Ranks with a CUDA device each use NCCL for them.
        timeout: Seconds for all ranks to come, and later for any of them to answer.
        strict: Refuse, rather than warn of, what makes the last bits other than those of one
            process: ranks with other CPU capabilities or numbers of threads.

    Returns:
        The world and this rank in it.

    Raises:
        WorldError: If ranks differ in settings or versions (the message names rank, key and both
            values), an interface is unknown or not named where it must be, or variables of the
            environment make no sense.
        PeerLost: If a rank does not come in time; the message names it.
        ValueError: If `timeout` is not above 0.

    Example:
        >>> peers = tg.join()
        >>> graph = tg.TemporalGraph(shard=peers.shard)
        >>> peers
        Alone(rank=0, world=1)
    """
    if not timeout > 0:
        raise ValueError(f"timeout must be above 0, got {timeout}")
    launch = read_launch(os.environ)
    if launch is None:
        return Alone()
    name, address = choose_interface(interface, one_host=launch.one_host)
    terms = Terms(launch, Facts.here(launch, settings or {}, torch.device(device)), timeout, strict)
    silent = f"rank {launch.rank} has found a rank 0 that does not answer: is it stopped?"
    try:
        meeting = meeting_of(launch, timeout)
        store, everyone = (
            lead(meeting, terms, address)
            if launch.rank == 0
            else call_within(timeout + 2 * ANSWER_SECONDS, partial(follow, meeting, terms), silent)
        )
    except dist.DistError as error:
        first = str(error).partition("\n")[0]
        raise PeerLost(f"rank {launch.rank} cannot reach where ranks meet: {first}") from error
    other_bits = find_other_bits(everyone)
    if other_bits is not None and launch.rank == 0:
        warnings.warn(other_bits, RuntimeWarning, stacklevel=2)
    nccl = have_own_devices(everyone)
    make = partial(
        Ranks,
        PrefixStore("ranks", store),
        launch.rank,
        launch.world,
        timeout=timeout,
        interface=name,
        nccl=nccl,
        members=[facts.member for facts in everyone],
    )
    if launch.rank == 0 or nccl:  # a thread has a current device of its own
        return make()
    return call_within(timeout + ANSWER_SECONDS, make, silent)


def call_within(seconds: float, act: Callable[[], Found], lost: str) -> Found:
    """Return the result of `act`, which runs in a daemon thread."""
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
        if found.done():  # it is what `act` has raised
            raise
        raise PeerLost(lost) from None
