"""Speed of heuristics and counts on a stream, and of ranking one event against many."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.options import THREADS, Options, restored_threads, set_threads
from benchmarks.results import Params, Row
from tgflow.graph import TemporalGraph
from tgflow.graph.events import EventBatch
from tgflow.models import EdgeBank, Recency, SmoothedCounts
from tgflow.nn.model import TemporalModel
from tgflow.train.config import ContinualConfig, OfflineConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.observe import BatchRecord, Callback
from tgflow.train.offline import OfflineTrainer
from tgflow.train.protocols import protocol_settings

PREQUENTIAL: dict[str, tuple[Callable[[], TemporalModel], float]] = {
    "recency": (Recency, 150_000),
    "edgebank": (EdgeBank, 150_000),
    "counts of the paper": (partial(SmoothedCounts, groups=["shares"], hidden=(), gain=1), 30_000),
}
"""Models, and the target in events per second."""
MANY: dict[str, tuple[Callable[[], TemporalModel], float]] = {
    "recency": (Recency, 5),
    "counts of the paper": (partial(SmoothedCounts, groups=["shares"], hidden=(), gain=1), 15),
}
"""Models, and the target in seconds of a pass."""
CHUNK = 4096


def run(options: Options) -> list[Row]:
    """Measure on the standard stream."""
    name, events = options.wikipedia()
    params: Params = {"stream": name, "events": len(events), "threads": THREADS}
    with restored_threads():
        set_threads()
        return [*prequential_rows(events, params, options), *pass_rows(events, params, options)]


def prequential_rows(events: EventBatch, params: Params, options: Options) -> Iterator[Row]:
    """Yield the best of three runs that rank every event among 20 negatives."""
    for model, (make, target) in PREQUENTIAL.items():
        options.say(f"rules: {model}, prequential")
        seconds = []
        for _ in range(3):
            config = ContinualConfig(mrr_every=1, mrr_negatives=20)
            trainer = ContinualTrainer(make(), TemporalGraph(), config)
            chunks = [events[at : at + CHUNK] for at in range(0, len(events), CHUNK)]
            begin = time.perf_counter()
            trainer.run(chunks, progress=False)
            seconds.append(time.perf_counter() - begin)
        named = params | {"model": model}
        yield Row("rules, prequential", len(events) / min(seconds), "events/s", named, target)


def pass_rows(events: EventBatch, params: Params, options: Options) -> Iterator[Row]:
    """Yield the seconds of a validation pass that ranks each event among 999 negatives."""
    config = OfflineConfig(**protocol_settings("tgbl/1") | {"mrr_negatives": 999, "epochs": 1})
    for model, (make, target) in MANY.items():
        options.say(f"rules: {model}, one against 999")
        timer = _PassTimer()
        graph = TemporalGraph.from_events(events, "bipartite")
        OfflineTrainer(make(), graph, config, observer=timer).fit(progress=False)
        named = params | {"model": model}
        yield Row("one against 999, validation pass", timer.seconds("val"), "s", named, target)


class _PassTimer(Callback):
    """Times of the batches of each stage."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = defaultdict(list)

    def on_batch(self, record: BatchRecord) -> None:
        self._times[record.stage].append(time.perf_counter())

    def seconds(self, stage: str) -> float:
        """Return the seconds of a pass, from the intervals between its batches."""
        first, *_, last = times = self._times[stage]
        return (last - first) * len(times) / (len(times) - 1)
