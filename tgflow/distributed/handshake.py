"""How ranks become a world: rank 0 opens a store, the others enter it, and all hear one verdict."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from tgflow.distributed.facts import Facts, find_disagreement, find_other_bits
from tgflow.distributed.greeter import Greeter, Greeting, ask, listen
from tgflow.distributed.launch import Launch
from tgflow.distributed.meeting import Address, Meeting
from tgflow.peers import PeerLost, WorldError

_PAUSE = 0.02
ANSWER_SECONDS = 5.0
"""For one store to answer, and for all ranks to hear a verdict that ends them."""
_VERDICT = "verdict"


@dataclass(frozen=True, slots=True)
class Terms:
    """What a rank joins with."""

    launch: Launch
    facts: Facts
    timeout: float
    strict: bool


def lead(meeting: Meeting, terms: Terms, address: str) -> tuple[Store, list[Facts]]:
    """Open a store on `address`, wait for all ranks there, and return it with what they said.

    Raises:
        PeerLost: If ranks do not come in time.
        WorldError: If they differ in what must be alike.
        OSError: If the address cannot be listened on.
    """
    deadline = time.monotonic() + terms.timeout
    store = _open_store(address)
    store.set(_facts_key(0), terms.facts.to_bytes().decode())
    greeting = Greeting(secrets.token_hex(16), store.port)
    listener = listen(address, meeting.port, deadline)
    with Greeter(listener, greeting):
        meeting.publish(Address(address, listener.getsockname()[1], greeting.nonce))
        present = _await_ranks(store, terms.launch.world, deadline)
    error, everyone = _judge(store, present, terms)
    store.set(_VERDICT, json.dumps(None if error is None else [type(error).__name__, str(error)]))
    if error is not None:
        _await_hearing(store, present)
        raise error
    return store, everyone


def follow(meeting: Meeting, terms: Terms) -> tuple[Store, list[Facts]]:
    """Enter the store of rank 0, and return it with what all ranks said.

    Raises:
        PeerLost: If rank 0, or another rank, does not come in time.
        WorldError: If they differ in what must be alike.
    """
    deadline = time.monotonic() + terms.timeout
    while time.monotonic() < deadline:
        store = _enter(meeting.find(), terms)
        if store is not None:
            try:
                return store, _hear(store, terms, deadline)
            except RuntimeError as error:
                if isinstance(error, PeerLost):
                    raise
                # It went away meanwhile: it was that of a world that has ended.
        time.sleep(_PAUSE)
    raise PeerLost(
        f"rank {terms.launch.rank} found no rank 0 to join within {terms.timeout:g} s; see what "
        "ended it, and whether its interface can be reached from here"
    )


def _open_store(address: str) -> TCPStore:
    """Return a store that listens on this address alone; torch's own would on all interfaces."""
    listener = listen(address, 0)
    return TCPStore(
        address,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=ANSWER_SECONDS),
        master_listen_fd=listener.detach(),
    )


def _await_ranks(store: Store, world: int, deadline: float) -> list[int]:
    """Return the ranks that have said what they are: all, or those by the deadline."""
    present: list[int] = []
    while len(present) < world:
        present = [rank for rank in range(world) if store.check([_facts_key(rank)])]
        if time.monotonic() > deadline:
            break
        time.sleep(_PAUSE)
    return present


def _judge(
    store: Store, present: Sequence[int], terms: Terms
) -> tuple[PeerLost | WorldError | None, list[Facts]]:
    """Return why there is no world, if so, and what the present ranks said."""
    missing = [str(rank) for rank in range(terms.launch.world) if rank not in present]
    if missing:
        text = (
            f"{len(present)} of {terms.launch.world} ranks joined within {terms.timeout:g} s; "
            f"missing: {', '.join(missing)}"
        )
        return PeerLost(text), []
    try:
        everyone = _everyone(store, terms.launch.world)
    except ValueError as error:
        return WorldError(str(error)), []
    problem = find_disagreement(everyone)
    if problem is None and terms.strict:
        problem = find_other_bits(everyone)
    return None if problem is None else WorldError(problem), everyone


def _everyone(store: Store, world: int) -> list[Facts]:
    return [Facts.from_bytes(store.get(_facts_key(rank))) for rank in range(world)]


def _await_hearing(store: Store, present: Sequence[int]) -> None:
    """Keep the store open until the present ranks have read why there is no world."""
    deadline = time.monotonic() + ANSWER_SECONDS
    heard = [_heard_key(rank) for rank in present if rank != 0]
    while heard and not store.check(heard) and time.monotonic() < deadline:
        time.sleep(_PAUSE)


def _enter(address: Address | None, terms: Terms) -> Store | None:
    """Return the store of the rank 0 that is at `address`, if it lacks this rank."""
    greeting = None if address is None else ask(address.host, address.port)
    if address is None or greeting is None or address.nonce not in ("", greeting.nonce):
        return None
    rank = terms.launch.rank
    try:
        store = TCPStore(
            address.host,
            greeting.store_port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=ANSWER_SECONDS),
        )
        if store.add(f"joined/{rank}", 1) != 1:
            return None
        store.set(_facts_key(rank), terms.facts.to_bytes().decode())
        return store
    except RuntimeError:  # it is closing
        return None


def _hear(store: Store, terms: Terms, deadline: float) -> list[Facts]:
    """Return what all ranks said, once rank 0 has found that they are a world."""
    while not store.check([_VERDICT]):
        if time.monotonic() > deadline + ANSWER_SECONDS:
            raise PeerLost(f"rank 0 was found, and did not answer within {terms.timeout:g} s")
        time.sleep(_PAUSE)
    verdict = json.loads(store.get(_VERDICT))
    if verdict is None:
        return _everyone(store, terms.launch.world)
    store.set(_heard_key(terms.launch.rank), "")
    name, text = verdict
    raise (PeerLost if name == PeerLost.__name__ else WorldError)(text)


def _facts_key(rank: int) -> str:
    return f"facts/{rank}"


def _heard_key(rank: int) -> str:
    return f"heard/{rank}"
