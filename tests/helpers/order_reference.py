"""Slow, obvious reference of ordering: event by event, sorted at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from helpers.partitioned import Row
from tgflow.streams.ingest.config import OrderConfig


@dataclass
class Expected:
    """Outcome of a partition's rows; all lists have row numbers."""

    accepted: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    duplicate: list[int] = field(default_factory=list)
    forced: int = 0


def judge_rows(
    rows: Sequence[Row], config: OrderConfig, share: int | None = None, start: float = float("-inf")
) -> Expected:
    """Return the outcome of each row of a partition, of which at most `share` is buffered."""
    out = Expected()
    max_t = floor = float("-inf")
    first_seen: dict[int, int] = {}
    for seq, row in enumerate(rows):
        watermark = max(floor, max_t - config.allowed_lateness, start)
        before = first_seen.get(row.event_id) if row.event_id is not None else None
        if row.bad:
            out.bad[seq] = row.bad
            continue
        if config.dedup_window and before is not None and seq - before <= config.dedup_window:
            out.duplicate.append(seq)
            continue
        if row.event_id is not None:
            first_seen[row.event_id] = seq
        if not config.first_t <= row.t <= config.last_t:
            out.bad[seq] = "time_range"
        elif config.jump is not None and row.t > max_t + config.jump:
            if max_t == float("-inf"):
                out.accepted.append(seq)
                max_t = row.t
            else:
                out.bad[seq] = "time_jump"
        elif row.t < watermark:
            out.late.append(seq)
        else:
            out.accepted.append(seq)
            max_t = max(max_t, row.t)
            if share is not None:
                floor_before = floor
                while True:
                    least = max(floor, max_t - config.allowed_lateness)
                    held = [rows[s].t for s in out.accepted if rows[s].t >= least]
                    if len(held) <= share:
                        break
                    floor = min(held) + 1
                out.forced += floor != floor_before
    return out


def in_order(
    partitions: Mapping[int, Sequence[Row]], accepted: Mapping[int, Sequence[int]]
) -> list[Row]:
    """Return the accepted rows of all partitions in release order."""
    keys = [(partitions[p][seq].t, p, seq) for p, seqs in accepted.items() for seq in seqs]
    return [partitions[p][seq] for _, p, seq in sorted(keys)]
