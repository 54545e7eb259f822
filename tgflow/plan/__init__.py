"""The plan: batches as pure functions of (seed, epoch, index), prefetched by threads."""

from tgflow.plan.count_lookup import CountHistory
from tgflow.plan.in_order import BatchError
from tgflow.plan.loader import Loader
from tgflow.plan.negatives import NegativeFunction, NegativeSampler
from tgflow.plan.plan import Plan
from tgflow.plan.replay import ExperienceReplay

__all__ = [
    "BatchError", "CountHistory", "ExperienceReplay", "Loader", "NegativeFunction",
    "NegativeSampler", "Plan",
]  # fmt: skip
