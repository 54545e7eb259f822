"""Counts of past events sharded by key: ranks read the log together, and query its owners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor

from tgflow.base.peers import Peers, RanksDisagree
from tgflow.plan.count_lookup import CountedPairs, CountHistory
from tgflow.plan.draws import Draws, Roots
from tgflow.plan.negatives import PairHistory
from tgflow.ranks.parcel import exchange_vectors

_MOST_EVENTS = 1 << 16
"""Most events read at once: bounds the memory of their facts."""
_MOST_PAIRS = 1 << 16
"""Most pairs of a rank queried at once, likewise."""


class ShardedCounts:
    """Counts over all ranks' shards, with the bits of the `CountHistory` of one process.

    Pairs, and what else depends on one source, are at the rank that owns the source; all other keys
    are spread by hash. To read events, each rank adds those of its own sources and sends what the
    other lists need: the source's last destinations, and whether the pair is new (for all groups of
    pair features 152 bytes an event, to all ranks). An answer takes two rounds: of the source (40
    bytes a pair, and 8 for each number and node), then of the keys found by it (24 bytes each, and
    8 for each number).

    A collective: all ranks call it, one thread each, with batches that end at the same event.
    """

    def __init__(self, history: CountHistory, peers: Peers) -> None:
        self._history, self._native, self._peers = history, history.native, peers

    def counted(self, drawn: Sequence[tuple[Draws, Roots]]) -> list[tuple[Draws, Roots]]:
        """Return queries drawn by plans of this history, at least one, with their counts.

        Raises PeerLost if another rank is gone, RanksDisagree if its batches end elsewhere, and
        ValueError if events have been deleted from the graph.
        """
        if not self._history.asked:
            return [*drawn]
        found = []
        for since, some in groupby(drawn, lambda of: of[0].graph.since(of[1].host.begin)):
            of = ShardedCounts(self._history.at(since), self._peers)
            asked = [*some]
            answers = of.answer([draws.pairs_of(roots) for draws, roots in asked])
            found += [
                (draws, replace(roots, counts=counts.to(draws.counts_dtype)))
                for (draws, roots), counts in zip(asked, answers, strict=True)
            ]
        return found

    def answer(self, pairs: Sequence[CountedPairs]) -> list[Tensor]:
        """Return the numbers of each batch's pairs, float64 `[B, 1 + m, C]`; see `counted`."""
        self._history.check_deletions()
        columns = [_columns(each) for each in pairs]
        rows = torch.cat(columns, dim=1)
        most = self._read_upto(max(each.stop for each in pairs), rows.shape[1])
        found = torch.cat(
            [
                self._answer(rows[:, start : start + _MOST_PAIRS].contiguous())
                for start in range(0, max(most, 1), _MOST_PAIRS)
            ]
        )
        parts = torch.split(found, [each.shape[1] for each in columns])
        return [
            part.view(len(each.limit), 1 + each.negative_dst.shape[1], len(self._history.asked))
            for part, each in zip(parts, pairs, strict=True)
        ]

    def _read_upto(self, stop: int, num_pairs: int) -> int:
        """Read on in the log together; return the largest number of pairs of a rank."""
        peers, native, log = self._peers, self._native, self._history.graph.log
        sizes = _gathered_sizes(peers, len(native), stop, num_pairs)
        width = native.num_facts
        for start in range(len(native), stop, _MOST_EVENTS):
            end = min(start + _MOST_EVENTS, stop)
            owner = peers.shard.owner(log.read(start, end).src)
            num_own = owner.bincount(minlength=peers.world).tolist()
            own = torch.empty(num_own[peers.rank], width, dtype=torch.int32)
            native.read_sources(end, own)
            facts = torch.empty(end - start, width, dtype=torch.int32)
            sorted_facts = _gathered(peers, own.flatten(), [width * num for num in num_own])
            facts[owner.argsort(stable=True)] = sorted_facts.view(-1, width)
            is_new = torch.empty(end - start, dtype=torch.uint8)
            native.read_others(end, facts, is_new)
            if native.continues:
                is_new = _of_any(peers, is_new)
            native.read_continuations(end, is_new)
        return max(sizes)

    def _answer(self, rows: Tensor) -> Tensor:
        """Return the numbers of pairs, int64 `[5, n]`, as float64 `[n, C]`."""
        native, shard, size = self._native, self._peers.shard, rows.shape[1]
        found = self._ask(
            shard.owner(rows[0]), torch.zeros_like(rows[0]), rows, [native.num_found],
            lambda _, asked, out: native.answer_sources(asked, out),
        )  # fmt: skip
        loads = native.loads
        keys, parts = (torch.empty(len(loads), size, dtype=torch.int64) for _ in range(2))
        native.find_keys(rows, found, keys, parts)
        owner = torch.where(parts < 0, shard.rank, shard.owner(parts)).flatten()
        others = self._ask(
            owner, torch.arange(len(loads)).repeat_interleave(size),
            torch.stack([keys.flatten(), *(rows[i].repeat(len(loads)) for i in (2, 3))]), loads,
            native.answer_keys,
        )  # fmt: skip
        out = torch.empty(size, len(self._history.asked), dtype=torch.float64)
        native.evaluate(rows, found, others.view(len(loads), size, others.shape[1]), out)
        return out

    def _ask(
        self,
        owner: Tensor,
        lookup: Tensor,
        columns: Tensor,
        widths: Sequence[int],
        answer: Callable[[Tensor, Tensor, Tensor], None],
    ) -> Tensor:
        """Return the numbers of queries, float64 `[Q, L]`, by their owners.

        `owner` and the ascending `lookup` of each query are int64 `[Q]`, `columns` int64 `[C, Q]`.
        A lookup has `widths` numbers, the most L; `answer` writes those of some queries of each
        lookup.
        """
        world, num_lookups = self._peers.world, len(widths)
        widths_of, slots = (
            torch.tensor(widths, dtype=torch.int64),
            torch.arange(max(widths, default=0)),
        )

        def filled(lookups: Tensor) -> Tensor:
            return slots < widths_of[lookups].unsqueeze(1)

        order = owner.argsort(stable=True)
        num = (owner * num_lookups + lookup).bincount(minlength=world * num_lookups)
        num = num.view(world, num_lookups)
        sizes = num.sum(1).tolist()
        received = self._exchange([*num], [num_lookups] * world, "queries")
        parts = torch.split(columns[:, order], sizes, dim=1)
        room = [len(columns) * int(each.sum()) for each in received]
        queries = self._exchange([part.contiguous().flatten() for part in parts], room, "queries")
        answers = []
        for of_lookups, asked in zip(received, queries, strict=True):
            size = int(of_lookups.sum())
            out = torch.zeros(size, len(slots), dtype=torch.float64)
            answer(of_lookups, asked.view(len(columns), size), out)
            answers.append(out[filled(torch.arange(num_lookups).repeat_interleave(of_lookups))])
        mask = filled(lookup[order])
        room = [int(each.sum()) for each in torch.split(mask, sizes)]
        numbers = torch.cat(self._exchange(answers, room, "answers"))
        found = torch.empty(len(owner), len(slots), dtype=torch.float64)
        found[order] = torch.zeros_like(found).masked_scatter_(mask, numbers)
        return found

    def _exchange(self, sends: list[Tensor], sizes: list[int], kind: str) -> list[Tensor]:
        return exchange_vectors(self._peers, sends, sizes, kind=kind)


def read_pairs(history: PairHistory, peers: Peers, stop: int) -> None:
    """Read the pairs of the events before `stop` of a shard's history, together with all ranks.

    Sends a byte an event to every rank. Raises PeerLost, and RanksDisagree if a rank reads up to
    another event.
    """
    native = history.upto(stop).native
    _gathered_sizes(peers, native.num_pair_events, stop, 0)
    for start in range(native.num_pair_events, stop, _MOST_EVENTS):
        end = min(start + _MOST_EVENTS, stop)
        is_first = torch.empty(end - start, dtype=torch.uint8)
        native.find_pairs(end, is_first)
        native.mark_pairs(end, _of_any(peers, is_first))


def _gathered_sizes(peers: Peers, start: int, stop: int, size: int) -> list[int]:
    """Return the size on each rank; raise unless all are to read the events `[start, stop)`."""
    states = _gathered(peers, torch.tensor([start, stop, size]), [3] * peers.world).view(-1, 3)
    for rank, (begin, end, _) in enumerate(states.tolist()):
        if (begin, end) != (start, stop):
            raise RanksDisagree(
                f"rank {rank} counts events {begin} to {end}, and rank {peers.rank} {start} to "
                f"{stop}; all ranks must prepare the same batches"
            )
    sizes: list[int] = states[:, 2].tolist()
    return sizes


def _of_any(peers: Peers, is_it: Tensor) -> Tensor:
    """Return what is true on any rank, uint8 `[N]`."""
    return _gathered(peers, is_it, [len(is_it)] * peers.world).view(peers.world, -1).amax(0)


def _gathered(peers: Peers, mine: Tensor, sizes: Sequence[int]) -> Tensor:
    return peers.gather(mine, sizes, kind="queries", group="plan")


def _columns(pairs: CountedPairs) -> Tensor:
    """Return sources, destinations, times, limits and relations of all pairs, int64 `[5, n]`."""
    events, width = pairs.events, 1 + pairs.negative_dst.shape[1]
    first = events.src.unsqueeze(1)
    sources = first.expand(-1, width)
    if pairs.negative_src is not None:
        sources = torch.cat([first, pairs.negative_src], 1)
    relation = torch.zeros_like(events.t) if events.relation is None else events.relation
    return torch.stack(
        [
            sources.flatten(),
            torch.cat([events.dst.unsqueeze(1), pairs.negative_dst], 1).flatten(),
            *(x.repeat_interleave(width) for x in (events.t, pairs.limit, relation)),
        ]
    )
