"""Optimizers and learning rate schedules: by name with settings, or by a callable."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from tgflow.train.config import LR_SCHEDULERS, OPTIMIZERS, TrainingConfig, parse_named

OptimizerLike: TypeAlias = (
    str | Mapping[str, Any] | Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]
)
SchedulerLike: TypeAlias = str | Mapping[str, Any] | Callable[[torch.optim.Optimizer], LRScheduler]


def optimizer_of(
    optimizer: OptimizerLike, parameters: Sequence[nn.Parameter], config: TrainingConfig
) -> torch.optim.Optimizer:
    if callable(optimizer):
        made = optimizer(parameters)
        if not isinstance(made, torch.optim.Optimizer):
            raise ValueError(
                f"optimizer must return a torch.optim.Optimizer, got {type(made).__name__}"
            )
        return made
    name, settings = parse_named("optimizer", optimizer, OPTIMIZERS)
    settings = {"lr": config.learning_rate, "weight_decay": 0.0, **settings}
    if name in ("adam", "adamw"):
        settings = {"fused": True, "capturable": parameters[0].is_cuda, **settings}
    try:
        made = getattr(torch.optim, OPTIMIZERS[name])(parameters, **settings)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"optimizer {name!r}: {error}") from None
    assert isinstance(made, torch.optim.Optimizer)
    return made


def scheduler_of(
    scheduler: SchedulerLike | None, optimizer: torch.optim.Optimizer
) -> LRScheduler | None:
    """Return the learning rate schedule of an optimizer; None: a constant learning rate."""
    if scheduler is None:
        return None
    if callable(scheduler):
        made = scheduler(optimizer)
        if not isinstance(made, LRScheduler):
            raise ValueError(f"lr_scheduler must return an LRScheduler, got {type(made).__name__}")
        state = made.state_dict()
        try:
            survives = json.loads(json.dumps(state)) == state
        except (TypeError, ValueError):
            survives = False
        if not survives:
            raise ValueError(
                f"the state of {type(made).__name__} cannot be saved as JSON, so that a run could "
                "not resume: use a schedule whose state has only numbers and lists, such as StepLR"
            )
        return made
    name, settings = parse_named("lr_scheduler", scheduler, LR_SCHEDULERS)
    try:
        made = getattr(lr_scheduler, LR_SCHEDULERS[name])(optimizer, **settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"lr_scheduler {name!r}: {error}") from None
    assert isinstance(made, LRScheduler)
    return made


def skips_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether `optimizer` skips a step on its device where `found_inf` is set."""
    return isinstance(optimizer, torch.optim.Adam) and all(
        group.get("fused") for group in optimizer.param_groups
    )
