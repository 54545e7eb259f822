"""A Kafka topic as a source of events: exactly once, whatever the broker does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

from tgflow.ids import NodeIds
from tgflow.streams.clock import Clock, SystemClock
from tgflow.streams.errors import SourceUnavailable
from tgflow.streams.kafka.commits import GroupCommits
from tgflow.streams.kafka.config import KafkaConfig, kafka_client
from tgflow.streams.kafka.patience import Patience
from tgflow.streams.kafka.poller import Poller
from tgflow.streams.kafka.positions import Place
from tgflow.streams.kafka.records import RecordDecoder
from tgflow.streams.kafka.session import Chunk
from tgflow.streams.rows.row_batch import PolledRows, Position

TURN = 0.2
"""Seconds after which one who waits asks whether to stop."""
HANG_SECONDS = 30.0
"""Seconds beyond three times its timeout after which a call of kafka-python hangs."""

_log = logging.getLogger(__name__)


class KafkaSource:
    """The events of a topic, partition by partition; a `PartitionedSource`.

    Positions are ours, not a consumer group's: partition, offset, and row within a record.

    Args:
        config: The topic, its schema and how it is read.
        clock: What to measure by; None takes the machine's.
        stop: Asked whenever it waits; once it returns True, `start` returns with nothing begun,
            and `poll` returns nothing. It may be set later, as the attribute `stop`.

    Raises:
        ImportError: If kafka-python is not installed.
    """

    def __init__(
        self,
        config: KafkaConfig,
        *,
        clock: Clock | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        kafka_client()
        self.stop = stop
        form = config.form
        self.name = f"topic {config.topic}"
        self.unit = form.time.tick
        self.x_dim = sum(form.widths)
        self.id_kind = form.ids
        self.ids = NodeIds(config.bipartite)
        self.num_events: int | None = None
        self._config = config
        self._clock = clock or SystemClock()
        self._patience = Patience(self.name, config.max_outage, self._clock)
        self._decoder = RecordDecoder(config)
        self._commits = GroupCommits(config) if config.group_id else None
        self._poller: Poller | None = None
        self._places: dict[int, Place] = {}
        self._begins: dict[int, int] = {}
        self._untold: set[int] = set()
        self._paused_seconds = 0.0
        self._num_hung = 0
        self._has_told = False

    def start(self, positions: Mapping[int, Position]) -> None:
        """Begin, or go on, at `positions`; a partition without one is read from its beginning.

        It waits for the broker up to `max_outage` seconds, or until `stop` says so.

        With `until_end` the ends are settled at the first start and are part of the positions, so
        that a run which is killed stops where it would have: a partition that is not in
        `positions` is new since, and beyond the end. Once all ends have been reached, the next
        start settles new ones, and takes in new partitions.

        Raises:
            SourceExpired: If a partition no longer holds what comes next.
            SourceTruncated: If a partition ends before its position.
            SourceMismatch: If the record before a position is not the one that was read then.
            SourceUnavailable: If the broker cannot be reached in time; at once if it has no such
                topic, or refuses.
        """
        given = {p: Place.from_position(position) for p, position in positions.items()}
        self._halt()
        if all(place.ended for place in given.values()):
            given = {p: replace(place, end=None) for p, place in given.items()}
            fixed = False
        else:
            fixed = self._config.until_end
        self._patience.contact()  # its time begins now
        self._launch(given, frozenset() if fixed else None)
        if not self._wait_started():
            return
        self._places = dict(self._live().started or {})
        self._begins = {p: place.offset for p, place in self._places.items()}
        self._untold = {p for p, place in self._places.items() if given.get(p) != place}

    def partitions(self) -> Sequence[int]:
        """Return the partitions there are, known after `start`."""
        return sorted(self._places)

    def look_for_partitions(self) -> Sequence[int]:
        """Return the partitions that came since, and read them from their beginning from now on.

        What the broker told within the last half minute is what is known (`metadata_max_age_ms`).
        With `until_end` there are none: the end was settled at the start. That is said once.
        """
        poller = self._live()
        new = frozenset(poller.known) - frozenset(self._places)
        if new and self._config.until_end:
            self._tell_ignored(new)
            return []
        if not new:
            return []
        poller.join(new)
        for partition in new:
            self._places[partition] = Place(0)
            self._begins[partition] = 0
        return sorted(new)

    def poll(self, wanted: Set[int], timeout: float) -> list[PolledRows]:
        """Return what has arrived in the partitions `wanted`, waiting up to `timeout` seconds.

        Raises:
            SourceUnavailable: If there has been no broker for `max_outage` seconds.
            SourceCorrupt: If the same bytes come damaged however often they are read.
            SourceExpired: If retention was faster than we are.
            SourceTruncated: If the topic was made anew meanwhile, and is shorter.
            SourceMismatch: If it was, and is not.
        """
        self._watch()
        arrived: list[PolledRows] = []
        for chunk in self._take(wanted, timeout):
            arrived += self._decoder.arrivals(chunk, self._places[chunk.partition].row)
            self._places[chunk.partition] = chunk.place
            self._untold.discard(chunk.partition)
        return arrived

    def ended(self) -> Set[int]:
        """Return the partitions that were read to the end, with `until_end`.

        One that is empty is polled once before, so that its end comes to be known.
        """
        return {p for p, place in self._places.items() if place.ended} - self._untold

    def lag(self) -> Mapping[int, int]:
        """Return how many offsets lie between what was polled and the end of each partition."""
        ends = self._poller.ends if self._poller else {}
        return {p: max(0, ends[p] - place.offset) for p, place in self._places.items() if p in ends}

    def progress(self) -> float:
        """Return which share has been polled, with `until_end`; else 0."""
        total = done = 0
        for partition, place in self._places.items():
            if place.end is not None:
                begin = min(self._begins.get(partition, 0), place.end)
                total += place.end - begin
                done += min(place.offset, place.end) - begin
        return done / total if total else float(bool(self._places) and self._config.until_end)

    def counters(self) -> Mapping[str, float]:
        """Return rebuilds, seconds of outage and of back-pressure, and the like."""
        paused = self._poller.paused_seconds if self._poller else 0.0
        return {
            "rebuilds": self._patience.rebuilds,
            "corrupt_reads": self._patience.corrupt,
            "hung_polls": self._num_hung,
            "outage_seconds": self._patience.outage_seconds,
            "paused_seconds": self._paused_seconds + paused,
            "group_commits": self._commits.done if self._commits else 0,
            "group_commit_failures": self._commits.failed if self._commits else 0,
        }

    def committed(self, positions: Mapping[int, Position]) -> None:
        """Tell the consumer group, if one is named, in the background; never raises."""
        if self._commits is not None:
            offsets = {p: position.get("offset") for p, position in positions.items()}
            self._commits.tell({p: o for p, o in offsets.items() if isinstance(o, int)})

    def close(self) -> None:
        """Give the consumer back; waits for no more than about two seconds."""
        self._halt()
        if self._commits is not None:
            self._commits.close(1.0)

    def _halt(self) -> None:
        if self._poller is not None:
            self._poller.close(2.0)
            self._paused_seconds += self._poller.paused_seconds
            self._poller = None

    def _live(self) -> Poller:
        if self._poller is None:
            raise RuntimeError("the source has not been started; call start(positions)")
        return self._poller

    def _wait_started(self) -> bool:
        """Return whether it has started; False if it is to stop first."""
        poller, limit = self._live(), self._config.max_outage
        deadline = self._clock.monotonic() + limit
        while not poller.wait_started(TURN):
            if self.stop():
                return False
            if self._clock.monotonic() >= deadline:
                text = f"no answer from {', '.join(self._config.servers)} within {limit:.0f} s"
                way_out = "see that it runs and that the address and the options are right"
                raise SourceUnavailable(self.name, "unavailable", f"{text}; {way_out}")
        return True

    def _take(self, wanted: Set[int], timeout: float) -> list[Chunk]:
        """Return what has come, once something has, the time is up, or it is to stop."""
        deadline = self._clock.monotonic() + timeout
        while not self.stop():
            left = max(0.0, deadline - self._clock.monotonic())
            chunks = self._live().take(wanted, min(TURN, left))
            if chunks or left <= TURN:
                return chunks
        return []

    def _tell_ignored(self, partitions: Set[int]) -> None:
        if not self._has_told:
            text = "%s: partitions %s are new, and are left out: the end was settled at the start"
            _log.warning(text, self.name, sorted(partitions))
        self._has_told = True

    def _launch(self, places: dict[int, Place], join: Set[int] | None) -> None:
        self._poller = Poller(self._config, places, join, self._patience, self._clock)

    def _watch(self) -> None:
        """Leave a thread behind that hangs in a call, and read on with a new one."""
        poller = self._live()
        limit = 3 * self._config.poll_timeout + HANG_SECONDS
        stuck = poller.stuck_for()
        if stuck <= limit:
            return
        text = "%s: a call of kafka-python has not returned for %.0f s; reading on without it"
        _log.error(text, self.name, stuck)
        self._num_hung += 1
        self._patience.failed(TimeoutError(f"a poll took longer than {limit:.0f} s"))
        poller.close(0.0)
        self._paused_seconds += poller.paused_seconds
        self._launch(dict(self._places), frozenset())
