"""The figures of several trainings as one: their means, and how far they are apart."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

PER_RUN = ("seed", "best_epoch", "num_epochs")
"""What is another thing in each run, so that its mean says nothing."""


def average(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of each figure of several runs, its deviation as `KEY_std`, and the runs.

    The deviation is the sample's (divided by one less than the runs). Of one run: that run.
    """
    if len(results) == 1:
        return {"num_seeds": 1, **results[0]}
    out: dict[str, Any] = {
        "num_seeds": len(results),
        "seeds": [result["seed"] for result in results],
    }
    for key, value in results[0].items():
        values = [result[key] for result in results if key in result]
        if key in PER_RUN or len(values) < len(results):
            continue
        if isinstance(value, float):
            out[key] = statistics.fmean(values)
            out[f"{key}_std"] = statistics.stdev(values)
        else:
            out[key] = value
    return out | {"runs": [dict(result) for result in results]}
