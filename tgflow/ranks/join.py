"""Rendezvous of the ranks, to be completed before any other call that involves them.

All ranks share a store of torch: of torchrun's agent, of rank 0, of an existing process group, or a
file. It may hold keys of dead ranks, as agents keep theirs after a restart. So rank 0 begins an
*attempt* by publishing a random name, under which all later keys are; another rank enters an
attempt only once and only for its own number of ranks, and leaves it for a newer one until rank 0
has published a verdict. The name prevents mistakes but is not a secret: nothing here authenticates.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
import warnings
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_store

from tgflow.base.peers import PeerLost, Peers, WorldError
from tgflow.ranks.group import Ranks, call_within
from tgflow.ranks.launch import Launch, choose_interface, read_launch
from tgflow.ranks.rank_info import Facts, find_disagreement, find_other_bits, have_own_devices

ANSWER_SECONDS = 5.0
"""Seconds for one store to answer, and for all ranks to read a verdict that ends them."""
_PAUSE = 0.02
_ATTEMPT, _VERDICT = "tgflow/attempt", "verdict"
_SILENT = "rank {} has found a rank 0 that does not answer: is it stopped?"


def join(
    settings: Mapping[str, Any] | None = None,
    *,
    interface: str | None = None,
    device: torch.device | str = "cpu",
    timeout: float = 300.0,
    strict: bool = False,
    group: dist.ProcessGroup | None = None,
) -> Peers:
    """Join the ranks that a launcher started; blocks until all have joined.

    The ranks are those of an existing process group of `torch.distributed`, as Ray Train, Lightning
    and Accelerate make one; else those of torchrun, `--nproc`, a Kubeflow PyTorchJob, Slurm or
    mpirun, by their environment variables; else this process alone. All compare settings and
    versions. Works after any restart, despite stale data of dead ranks. Neither the store nor later
    traffic is authenticated or encrypted: use a trusted network.

    Args:
        settings: Settings that must be equal on all ranks, by name, plain values; compared.
        interface: Name of the only network interface to listen on, such as "eth1"; None if all
            ranks are on one host: the loopback. None with a process group: the backend's choice.
        device: Device of this rank. Ranks with a CUDA device each use NCCL for them.
        timeout: Seconds for all ranks to join, and later for any of them to answer.
        strict: Raise, instead of warn, if results may differ in the last bits from those of one
            process: ranks with other CPU capabilities or numbers of threads.
        group: Process group whose ranks join, all of them; it stays open after `close`. None: the
            default group, if there is one.

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
    if group is None and dist.is_initialized():
        group = dist.group.WORLD
    if group is None:
        launch, name, host = read_launch(os.environ), None, ""
        if launch is not None and launch.world > 1:
            name, host = choose_interface(interface, one_host=launch.one_host)
    else:
        rank, world = dist.get_rank(group), dist.get_world_size(group)
        launch, name, host = Launch(rank, world, rank, 1), interface, ""
    if launch is None or launch.world == 1:
        return Peers()
    facts = Facts.here(launch, settings or {}, torch.device(device))
    deadline = time.monotonic() + timeout
    silent = _SILENT.format(launch.rank)
    if launch.rank == 0:
        try:
            store = _open_store(launch, host, deadline, group)
        except TimeoutError as error:
            raise PeerLost(f"rank 0 cannot reach torchrun's store: {error}") from None
        found = _lead(store, facts, deadline, timeout, strict)
    else:
        follow = partial(_follow, launch, facts, deadline, timeout, group)
        found = call_within(timeout + 2 * ANSWER_SECONDS, follow, silent)
    attempt, everyone = found
    other_bits = find_other_bits(everyone)
    if other_bits is not None and launch.rank == 0:
        warnings.warn(other_bits, RuntimeWarning, stacklevel=2)
    nccl = have_own_devices(everyone)
    make = partial(
        Ranks,
        attempt,
        launch.rank,
        launch.world,
        timeout=timeout,
        interface=name,
        nccl=nccl,
        members=[facts.member for facts in everyone],
        group=group,
    )
    if launch.rank == 0 or nccl:  # the current device is per thread
        return make()
    return call_within(timeout + ANSWER_SECONDS, make, silent)


def _open_store(
    launch: Launch, host: str, deadline: float, group: dist.ProcessGroup | None
) -> Store:
    """Return the store that the ranks share; on rank 0 without an agent, serve it on `host`."""
    if group is not None:
        return PrefixStore(f"tgflow/{group.group_name}", _get_default_store())
    if launch.meeting is not None:
        return FileStore(str(Path(launch.meeting) / "store"), launch.world)
    assert launch.address is not None
    is_client = launch.rank > 0 or launch.has_agent
    if is_client:
        _wait_for_listener(launch.address, deadline)
    left = timedelta(seconds=max(ANSWER_SECONDS, deadline - time.monotonic()))
    if is_client:
        return TCPStore(*launch.address, is_master=False, wait_for_workers=False, timeout=left)
    port = launch.address[1]
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=left,
        master_listen_fd=listen(host, port, deadline).detach(),
    )


def _wait_for_listener(address: tuple[str, int], deadline: float) -> None:
    """Block until there is one; torch's client would print a stack trace for each attempt."""
    while time.monotonic() < deadline:
        try:
            socket.create_connection(address, timeout=1.0).close()
        except OSError:
            time.sleep(_PAUSE)
        else:
            return
    raise TimeoutError(f"nothing listens on {address[0]}:{address[1]}")


def listen(host: str, port: int, deadline: float = 0.0) -> socket.socket:
    """Return a socket that listens on this address alone, where torch's store listens on all.

    It is retried until `deadline`, as the port's previous process may still be ending.
    """
    while True:
        try:
            return socket.create_server((host, port), backlog=1024)
        except OSError as error:
            if time.monotonic() > deadline:
                text = f"rank 0 cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}"
                raise OSError(error.errno, f"{text}; choose another MASTER_PORT") from error
        time.sleep(_PAUSE)


def _lead(
    store: Store, facts: Facts, deadline: float, timeout: float, strict: bool
) -> tuple[Store, list[Facts]]:
    """Begin an attempt, and return its store and the facts of all ranks."""
    name = f"{facts.world} {secrets.token_hex(16)}"
    attempt = PrefixStore(name, store)
    attempt.set(_facts_key(0), facts.to_bytes().decode())
    store.set(_ATTEMPT, name)
    present = [0]
    while len(present) < facts.world and time.monotonic() <= deadline:
        time.sleep(_PAUSE)
        present = [rank for rank in range(facts.world) if attempt.check([_facts_key(rank)])]
    error, everyone = _find_problem(attempt, present, facts.world, timeout, strict)
    attempt.set(_VERDICT, json.dumps(None if error is None else [type(error).__name__, str(error)]))
    if error is None:
        return attempt, everyone
    last = time.monotonic() + ANSWER_SECONDS  # lets the present ranks read the reason
    read = [_read_key(rank) for rank in present if rank != 0]
    while read and not attempt.check(read) and time.monotonic() < last:
        time.sleep(_PAUSE)
    raise error


def _find_problem(
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
    launch: Launch, facts: Facts, deadline: float, timeout: float, group: dist.ProcessGroup | None
) -> tuple[Store, list[Facts]]:
    """Return the store of an attempt of rank 0 and the facts of all ranks, once it is accepted."""
    last = f"rank {launch.rank} found no rank 0 to join within {timeout:g} s"
    while time.monotonic() < deadline:
        try:
            store = _open_store(launch, "", deadline, group)
            last = f"rank {launch.rank} found no attempt of rank 0 to join within {timeout:g} s"
            return _enter(store, facts, deadline + ANSWER_SECONDS)
        except TimeoutError:
            break
        except RuntimeError as error:
            if isinstance(error, PeerLost):
                raise
            time.sleep(_PAUSE)  # the store went away: it was that of a world that has ended
    raise PeerLost(
        f"{last}; see what ended it, whether it has as many ranks ({launch.world}), and whether "
        "its interface can be reached from here"
    )


def _enter(store: Store, facts: Facts, until: float) -> tuple[Store, list[Facts]]:
    rank, name, attempt = facts.member.rank, b"", None
    while time.monotonic() < until:
        newest = store.get(_ATTEMPT) if store.check([_ATTEMPT]) else b""
        if newest != name and newest.startswith(f"{facts.world} ".encode()):
            name, attempt = newest, PrefixStore(newest.decode(), store)
            if attempt.add(f"joined/{rank}", 1) != 1:  # by this rank before its restart
                attempt = None
            else:
                attempt.set(_facts_key(rank), facts.to_bytes().decode())
        if attempt is not None and attempt.check([_VERDICT]):
            verdict = json.loads(attempt.get(_VERDICT))
            if verdict is None:
                return attempt, _everyone(attempt, facts.world)
            attempt.set(_read_key(rank), "")
            kind, text = verdict
            raise (PeerLost if kind == PeerLost.__name__ else WorldError)(text)
        time.sleep(_PAUSE)
    raise TimeoutError if attempt is None else PeerLost(_SILENT.format(rank))


def _facts_key(rank: int) -> str:
    return f"facts/{rank}"


def _read_key(rank: int) -> str:
    return f"read/{rank}"
