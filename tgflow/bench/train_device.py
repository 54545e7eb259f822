"""How fast TGN and TGAT train where graph, features and model are all on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from tgflow.bench.options import Options
from tgflow.bench.own import Own, own_tgat, own_tgn
from tgflow.bench.row import Params, Row
from tgflow.bench.task import Task
from tgflow.bench.turns import seconds_of
from tgflow.cuda.device import Device

BATCHES = (200, 600, 4000)
TARGETS = {"TGN": (0.5e6, 1.2e6, 3e6), "TGAT": (0.3e6, 0.6e6, 1.2e6)}
"""Events a second to reach on one H200, for each size of batches."""
AHEAD_TARGET = 2.0
"""How many times faster an epoch is to be that is prepared ahead."""
TURN = 25
SECONDS = 4.0
"""That a model may train for."""

Make = Callable[[Task, int, str | Device], Own]
MODELS: dict[str, Make] = {"TGN": own_tgn, "TGAT": own_tgat}


def device_rows(
    task: Task, params: Params, device: str | Device, options: Options
) -> Iterator[Row]:
    """Events a second of both models for each size of batches, and what look-ahead is worth."""
    for model, make in MODELS.items():
        for batch_size, target in zip(BATCHES, TARGETS[model], strict=True):
            options.say(f"train: {model}, batches of {batch_size:,} on a device")
            sized = replace(task, batch_size=batch_size)
            ahead, alone = (speed(make(sized, n, device), options) for n in (1, 0))
            given = params | {"batch": batch_size, "device": "cuda"}
            yield Row(f"{model} training on the device", ahead, "events/s", given, target)
            given = given | {"model": model}
            yield Row("epoch with look-ahead", ahead / alone, "x", given, AHEAD_TARGET)


def speed(own: Own, options: Options) -> float:
    """Return events a second, the first turn left out: kernels are compiled in it."""
    kind = own.learner.device.type
    own.train(1 if options.quick else TURN)
    turns, spent = 0, 0.0
    while own.num_left > TURN and spent < SECONDS and not (options.quick and turns):
        spent += seconds_of(partial(own.train, TURN), kind)
        turns += 1
    return turns * TURN * own.task.batch_size / spent if turns else math.nan
