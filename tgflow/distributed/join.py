"""Rendezvous of the ranks, to be completed before any other call that involves them.

Rank 0 opens a store, publishes its address, and waits for the others there; the others enter that
store, and all read one verdict. An address may be stale: after a restart, torchrun's agents keep
values published by dead ranks. So a rank uses an address only if the store there has the published
nonce, and no rank has entered it under this number; else it retries until the timeout. The nonce
prevents mistakes but is not a secret: nothing here authenticates.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from tgflow.distributed.facts import (
    Facts,
    find_disagreement,
    find_other_bits,
    have_own_devices,
)
from tgflow.distributed.launch import Launch, choose_interface, read_launch
from tgflow.distributed.ranks import Ranks
from tgflow.durable.fs import replacing
from tgflow.peers import PeerLost, Peers, WorldError

Found = TypeVar("Found")

ANSWER_SECONDS = 5.0
"""Seconds for one store to answer, and for all ranks to read a verdict that ends them."""
_PAUSE = 0.02
_PROBE_SECONDS = 1.0
_ADDRESS, _NONCE, _VERDICT = "tgflow/rank-0", "nonce", "verdict"


def join(
    settings: Mapping[str, Any] | None = None,
    *,
    interface: str | None = None,
    device: torch.device | str = "cpu",
    timeout: float = 300.0,
    strict: bool = False,
) -> Peers:
    """Join the ranks started by torchrun or `--nproc`; blocks until all have joined.

    A single process gets `Peers` at once. Rank 0 opens a store on an interface that it chooses, the
    others find it, and all compare settings and versions. Works after any restart, despite stale
    data of dead ranks. Neither the store nor later traffic is authenticated or encrypted: use a
    trusted network.

    Args:
        settings: Settings that must be equal on all ranks, by name, plain values; compared.
        interface: Name of the only network interface to listen on, such as "eth1"; None if all
            ranks are on one host: the loopback.
        device: Device of this rank. Ranks with a CUDA device each use NCCL for them.
        timeout: Seconds for all ranks to join, and later for any of them to answer.
        strict: Raise, instead of warn, if results may differ in the last bits from those of one
            process: ranks with other CPU capabilities or numbers of threads.

    Returns:
        The world and this rank in it.

    Raises:
        WorldError: If ranks differ in settings or versions (the message names rank, key and both
            values), an interface is unknown or missing, or environment variables are invalid.
        PeerLost: If a rank does not join in time; the message names it.
        ValueError: If `timeout` is not above 0.

    Example:
        >>> peers = tg.join()
        >>> graph = tg.TemporalGraph(shard=peers.shard)
        >>> peers
        Peers(rank=0, world=1)
    """
    if not timeout > 0:
        raise ValueError(f"timeout must be above 0, got {timeout}")
    launch = read_launch(os.environ)
    if launch is None:
        return Peers()
    name, host = choose_interface(interface, one_host=launch.one_host)
    facts = Facts.here(launch, settings or {}, torch.device(device))
    deadline = time.monotonic() + timeout
    silent = f"rank {launch.rank} has found a rank 0 that does not answer: is it stopped?"
    try:
        meeting = Meeting(launch, timeout)
        if launch.rank == 0:
            store, everyone = _lead(meeting, facts, host, deadline, timeout, strict)
        else:
            follow = partial(_follow, meeting, facts, deadline, timeout)
            store, everyone = call_within(timeout + 2 * ANSWER_SECONDS, follow, silent)
    except dist.DistError as error:
        first = str(error).partition("\n")[0]
        raise PeerLost(f"rank {launch.rank} cannot reach the rendezvous: {first}") from error
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
    if launch.rank == 0 or nccl:  # the current device is per thread
        return make()
    return call_within(timeout + ANSWER_SECONDS, make, silent)


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


class Address(NamedTuple):
    """Address of the store of rank 0; `nonce` identifies this start of it, "" if unknown."""

    host: str
    port: int
    nonce: str


class Meeting:
    """Where rank 0 publishes its address: a directory, the store of torchrun, or nowhere."""

    def __init__(self, launch: Launch, timeout: float) -> None:
        self._file = None if launch.meeting is None else Path(launch.meeting) / "rank-0.json"
        self._agents: Store | None = None
        self._fixed: Address | None = None
        if self._file is None:
            assert launch.address is not None
            if launch.has_agent:
                self._agents = _enter_store(*launch.address, timeout)
            else:
                self._fixed = Address(*launch.address, "")
        self.port = 0 if self._fixed is None else self._fixed.port
        """Port on which rank 0 must listen; 0: any."""

    def publish(self, address: Address) -> None:
        """Publish an address in place of the previous one."""
        text = json.dumps(address)
        if self._file is not None:
            with replacing(self._file, sync=False) as partial:
                partial.write_text(text)
        elif self._agents is not None:
            self._agents.set(_ADDRESS, text)

    def find(self) -> Address | None:
        """Return the latest published address, perhaps of a rank 0 that has ended; None if none."""
        if self._file is not None:
            text = self._file.read_bytes() if self._file.exists() else b""
        elif self._agents is not None:
            text = self._agents.get(_ADDRESS) if self._agents.check([_ADDRESS]) else b""
        else:
            return self._fixed
        try:
            host, port, nonce = json.loads(text)
            return Address(str(host), int(port), str(nonce))
        except (ValueError, TypeError):
            return None


def _enter_store(host: str, port: int, timeout: float) -> TCPStore:
    return TCPStore(
        host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout)
    )


def _lead(
    meeting: Meeting, facts: Facts, host: str, deadline: float, timeout: float, strict: bool
) -> tuple[Store, list[Facts]]:
    listener = listen(host, meeting.port, deadline)
    port, nonce = listener.getsockname()[1], secrets.token_hex(16)
    store = TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=ANSWER_SECONDS),
        master_listen_fd=listener.detach(),
    )
    store.set(_NONCE, nonce)
    store.set(_facts_key(0), facts.to_bytes().decode())
    meeting.publish(Address(host, port, nonce))
    present: list[int] = []
    while len(present) < facts.world:
        present = [rank for rank in range(facts.world) if store.check([_facts_key(rank)])]
        if time.monotonic() > deadline:
            break
        time.sleep(_PAUSE)
    error, everyone = _judge(store, present, facts.world, timeout, strict)
    store.set(_VERDICT, json.dumps(None if error is None else [type(error).__name__, str(error)]))
    if error is None:
        return store, everyone
    last = time.monotonic() + ANSWER_SECONDS  # lets the present ranks read the reason
    read = [_read_key(rank) for rank in present if rank != 0]
    while read and not store.check(read) and time.monotonic() < last:
        time.sleep(_PAUSE)
    raise error


def listen(host: str, port: int, deadline: float = 0.0) -> socket.socket:
    """Return a socket that listens on this address alone.

    A fixed port is retried until `deadline`, as its previous process may still be ending.

    Raises:
        OSError: If the address cannot be bound.
    """
    while True:
        try:
            return socket.create_server((host, port), backlog=1024)
        except OSError as error:
            if port == 0:
                raise
            if time.monotonic() > deadline:
                text = f"rank 0 cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}"
                raise OSError(error.errno, f"{text}; choose another MASTER_PORT") from error
        time.sleep(_PAUSE)


def _judge(
    store: Store, present: list[int], world: int, timeout: float, strict: bool
) -> tuple[PeerLost | WorldError | None, list[Facts]]:
    """Return the error that prevents a world, if any, and the facts of all ranks."""
    missing = [str(rank) for rank in range(world) if rank not in present]
    if missing:
        return PeerLost(
            f"{len(present)} of {world} ranks joined within {timeout:g} s; "
            f"missing: {', '.join(missing)}"
        ), []
    try:
        everyone = _everyone(store, world)
    except ValueError as error:
        return WorldError(str(error)), []
    problem = find_disagreement(everyone)
    if problem is None and strict:
        problem = find_other_bits(everyone)
    return None if problem is None else WorldError(problem), everyone


def _everyone(store: Store, world: int) -> list[Facts]:
    return [Facts.from_bytes(store.get(_facts_key(rank))) for rank in range(world)]


def _follow(
    meeting: Meeting, facts: Facts, deadline: float, timeout: float
) -> tuple[Store, list[Facts]]:
    while time.monotonic() < deadline:
        store = _enter(meeting.find(), facts)
        if store is not None:
            try:
                return store, _read_verdict(store, facts, deadline, timeout)
            except RuntimeError as error:
                if isinstance(error, PeerLost):
                    raise
                # It went away meanwhile: it was that of a world that has ended.
        time.sleep(_PAUSE)
    raise PeerLost(
        f"rank {facts.member.rank} found no rank 0 to join within {timeout:g} s; see what "
        "ended it, and whether its interface can be reached from here"
    )


def _enter(address: Address | None, facts: Facts) -> Store | None:
    """Return the store of the rank 0 at `address`, if it is published and lacks this rank."""
    if address is None:
        return None
    rank = facts.member.rank
    try:
        socket.create_connection(address[:2], timeout=_PROBE_SECONDS).close()
        enter = partial(_enter_store, address.host, address.port, ANSWER_SECONDS)
        store = call_within(ANSWER_SECONDS, enter, "no store answers")
        nonce = store.get(_NONCE).decode() if store.check([_NONCE]) else None
        if nonce is None or address.nonce not in ("", nonce) or store.add(f"joined/{rank}", 1) != 1:
            return None
        store.set(_facts_key(rank), facts.to_bytes().decode())
        return store
    except (OSError, RuntimeError):  # no listener, not a store, or closing
        return None


def _read_verdict(store: Store, facts: Facts, deadline: float, timeout: float) -> list[Facts]:
    """Return the facts of all ranks, once rank 0 has accepted them as a world."""
    while not store.check([_VERDICT]):
        if time.monotonic() > deadline + ANSWER_SECONDS:
            raise PeerLost(f"rank 0 was found, and did not answer within {timeout:g} s")
        time.sleep(_PAUSE)
    verdict = json.loads(store.get(_VERDICT))
    if verdict is None:
        return _everyone(store, facts.world)
    store.set(_read_key(facts.member.rank), "")
    name, text = verdict
    raise (PeerLost if name == PeerLost.__name__ else WorldError)(text)


def _facts_key(rank: int) -> str:
    return f"facts/{rank}"


def _read_key(rank: int) -> str:
    return f"read/{rank}"
