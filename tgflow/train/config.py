"""Settings of the trainers. Does not import torch: the command line builds its help from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, get_args

from annotated_types import Ge, Gt, Le, Lt

from tgflow.base.choices import (
    ContinualProtocol,
    ListKind,
    Loss,
    NegativeKind,
    OfflineProtocol,
    Precision,
    Strategy,
    Visibility,
)
from tgflow.base.describe import described
from tgflow.base.setting import EXPERT, Duration, Parsed, Setting, Size, check_ranges
from tgflow.train.tasks.config import TaskConfig

OPTIMIZERS: Mapping[str, str] = MappingProxyType(
    {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "rmsprop": "RMSprop", "adagrad": "Adagrad"}
)
"""Named optimizers: classes of `torch.optim`."""
LR_SCHEDULERS: Mapping[str, str] = MappingProxyType(
    {
        "constant": "ConstantLR",
        "linear": "LinearLR",
        "exponential": "ExponentialLR",
        "step": "StepLR",
        "cosine": "CosineAnnealingLR",
        "cosine_restarts": "CosineAnnealingWarmRestarts",
    }
)
"""Named learning rate schedules: classes of `torch.optim.lr_scheduler`."""


FURTHER = {"historical": "mrr_hist", "source": "mrr_source", "recent": "mrr_recent"}
"""Further kinds of negatives to rank among, in the order of their columns, and their metrics."""


def parse_named(
    field: str, given: str | Mapping[str, Any], names: Mapping[str, str]
) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of "sgd:momentum=0.9", or of a mapping with a name."""
    if isinstance(given, str):
        name, _, rest = given.partition(":")
        settings = dict(_parse_pair(field, pair) for pair in rest.split(",")) if rest else {}
    else:
        settings = dict(given)
        name = str(settings.pop("name", ""))
    if name not in names:
        raise ValueError(f"{field} must be one of {', '.join(names)}, got {name!r}")
    return name, settings


def _parse_kinds(text: str, kinds: Sequence[str]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for part in text.split(","):
        kind, _, number = (word.strip() for word in part.partition(":"))
        if kind not in kinds or not number.isdecimal() or not 0 < int(number) <= 1_000_000:
            raise ValueError(
                f"a list of negatives has {', '.join(kinds)} with numbers of at least 1, such as "
                f'"{kinds[0]}:64,{kinds[1]}:24", got {part.strip()!r}; the kinds to test with are '
                "test_negatives"
            )
        if kind in numbers:
            raise ValueError(
                f"a list of negatives has each kind once, got {kind} twice in {text!r}"
            )
        numbers[kind] = int(number)
    return numbers


def parse_further(text: str | None) -> dict[str, Any]:
    """Return the numbers of further negatives to rank among, in the order of their columns."""
    numbers = {} if text is None else _parse_kinds(text, [*FURTHER])
    return {kind: numbers[kind] for kind in FURTHER if kind in numbers}


def parse_negatives(text: str) -> dict[str, int]:
    """Return the numbers of negatives of a list by kind, of "random:64,source:24,recent:32"."""
    numbers = _parse_kinds(text, get_args(ListKind))
    others = {kind: number for kind, number in numbers.items() if kind != "historical"}
    if len(others) < len(numbers) and others not in ({}, {"random": 1}):
        raise ValueError(
            "historical negatives have other sources, so they go beside random:1 alone, "
            f"got {text!r}"
        )
    return numbers


def _parse_pair(field: str, pair: str) -> tuple[str, bool | int | float]:
    key, _, value = (part.strip() for part in pair.partition("="))
    if value in ("true", "false"):
        return key, value == "true"
    for number in (int, float):
        try:
            return key, number(value)
        except ValueError:
            continue
    raise ValueError(
        f"{field} takes settings as NAME:KEY=VALUE,KEY=VALUE with numbers, true or false, "
        f"got {pair!r}"
    )


@described
@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionConfig:
    """How a trainer computes; results differ by rounding at most."""

    precision: Precision = "fp32"
    """Matrix products: fp32; bf16 on a CPU with AVX512_BF16, which rounds their factors to 7 bits;
    tf32 on a GPU, which rounds them to 10."""
    capture: bool = True
    """On a GPU, replay steps whose shapes recur as CUDA graphs."""
    scratch: str | None = None
    """Directory of temporary files, for labels that may come late; None: the system's."""
    beside: bool = False
    """On the CPU, predict a micro-batch on a second thread while it is learned, each with half of
    torch's threads. Not with `scores=True`, slices or ranks."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings that both trainers have."""

    seed: Annotated[int, Ge(0)] = 0
    """Seed of negatives, replay, sampled neighbors and dropout."""
    batch_size: Annotated[int, Ge(1)] = 200
    """Events per batch."""
    slices: Annotated[int, Ge(1)] = 1
    """Slices of a batch, computed separately and summed; ranks can share them."""
    learning_rate: Annotated[float, Gt(0), Setting(flags=("--learning-rate", "--lr"))] = 1e-3
    """Learning rate of the optimizer."""
    optimizer: str = "adam"
    """adam, adamw, sgd, rmsprop or adagrad, with settings of torch's class such as
    sgd:momentum=0.9; no weight decay by default."""
    lr_scheduler: Annotated[str, EXPERT] | None = None
    """constant, linear, exponential, step, cosine or cosine_restarts, with settings of torch's
    class such as cosine:T_max=10000; unset: a constant learning rate."""
    grad_clip: Annotated[float, Gt(0), EXPERT] | None = None
    """Largest norm of all gradients; unset: not clipped."""
    loss: Loss | None = None
    """Training loss: bce, each score alone; softmax, the event among its negatives; bpr, pairs of
    the two; unset: as in the model's paper."""
    negatives: Annotated[str, Parsed(parse_negatives)] | None = None
    """Negatives of each event to learn from, such as random:64,source:24,recent:32: random
    destinations, the source's last ones, the last ones of all; or past pairs, alone or as in
    random:1,historical:1; unset: the model's (random:1)."""
    metrics: Annotated[tuple[str, ...], Setting(flags=("--metric",), resume="from_now")] = ()
    """Custom metrics beside AP, AUC, MRR and Hits@k: path/to/file.py:Class,
    package.module:Class, or in Python a name given to tg.metrics.register."""
    mrr_negatives: Annotated[int, Ge(1), Le(1_000_000)] | Literal["all"] = 20
    """Negatives per event to rank it among, or all known destinations; AP and AUC use the first."""
    max_pairs: ClassVar[int] = 100_000
    """Pairs to score at once where events are ranked among fixed negatives or all destinations."""
    visibility: Visibility = "event"
    """Events visible to a query: all earlier events, or only those before its batch."""
    strategy: Annotated[Strategy | None, EXPERT] = None
    """Neighbor sampling strategy; unset: as in the model's paper."""
    span: Annotated[Duration | None, EXPERT] = None
    """Width of strategy window, or half-life of decayed: seconds, or text such as 1h."""
    task: TaskConfig = field(default_factory=TaskConfig)
    """Labels to learn and measure beside links, once each is known; by default none."""
    num_threads: Annotated[
        Annotated[int, Ge(0)] | None, Setting(resume="any_time", expert=True)
    ] = None
    """Threads that prepare batches ahead; 0: none; unset: 1, but none for one of several ranks that
    has a single CPU thread."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of `metrics` in results: `Recall` of `module:Recall`."""
        return tuple(each.rpartition(":")[2] for each in self.metrics)


@described
@dataclass(frozen=True, kw_only=True)
class ContinualConfig(TrainingConfig):
    """Settings of continual learning.

    Example:
        >>> tg.ContinualConfig(batch_size=50).replay_ratio
        0.5
    """

    protocol: ContinualProtocol | None = None
    """A named protocol: it sets the defaults, and deviations are printed."""
    data_seed: Annotated[int, Ge(0), EXPERT] | None = None
    """Seed of negatives, replay and sampled neighbors, shared by compared runs; unset: the seed."""
    mrr_further: Annotated[str, Parsed(parse_further), EXPERT] | None = None
    """Further negatives to rank each event among, by kind, such as source:20,historical:20: the
    source's last destinations as of the batch's start (mrr_source), the last ones of all (recent:
    mrr_recent), past pairs (mrr_hist)."""
    mrr_every: Annotated[int, Ge(1), EXPERT] = 5
    """Rank one event of each this many among mrr_negatives, and estimate the MRR of all by these;
    AP and AUC are of all events; 1: rank all, as comparisons do."""
    warmup: Annotated[int, Ge(0), EXPERT] = 0
    """Events learned first without being measured; up to the end of their micro-batch."""
    updates: Annotated[int, Ge(0), Le(1000), EXPERT] = 1
    """Optimizer steps per micro-batch, each with new negatives and replay; 0: no learning."""
    replay_ratio: Annotated[float, Ge(0), Le(1000)] = 0.5
    """Past events replayed per new event."""
    replay_horizon: Annotated[int, Ge(1), EXPERT] = 50_000
    """Largest age of a replayed event, in events."""
    replay_half_life: Annotated[float, Gt(0), EXPERT] = 10_000.0
    """Half-life of the probability that an event is replayed, in events."""
    test_share: ClassVar[float] = 0.15
    """Share of the events, the last ones, that the result's `test.*` are computed over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationDraws:
    """How an offline protocol draws negatives, and ranks among them."""

    collide: bool = False
    """Whether a random negative may be the event itself; in training only if it is the only one."""
    replace: bool = True
    """Whether historical and inductive negatives of a batch may be the same pair."""
    inductive_since: Literal["train", "part"] = "train"
    """Inductive negatives are first seen after training, or after the part before."""
    destinations: Literal["train", "all"] = "train"
    """Negatives in training: destinations of training events, or of all events."""
    exact: bool = False
    """Whether scores of 32 bits are tied only if they are equal, as in the boards' evaluators."""


_FILTERED = EvaluationDraws(destinations="all", exact=True)
_TGB = replace(_FILTERED, collide=True)
_DRAWS: Mapping[str, EvaluationDraws] = MappingProxyType(
    {
        "dyglib/1": EvaluationDraws(collide=True, replace=False, inductive_since="part"),
        **dict.fromkeys(("tgbl/1", "tgbn/1", "thgl/1"), _TGB),
        **dict.fromkeys(("tkgl/1", "tgbseq/1"), _FILTERED),
    }
)


@described
@dataclass(frozen=True, kw_only=True, slots=True)
class Reuse:
    """Reuse of rows below the top layer from earlier batches, instead of computing them again.

    For models of two layers or more without state, such as TGAT, that sample the most recent
    neighbors. A reused row has the inputs of a computed one, but the parameters of up to
    `staleness` steps before, and gets no gradient. Validation and test compute all rows. If less
    than a tenth of the rows recurs, reuse is off until the next epoch.

    Example:
        >>> tg.OfflineConfig(reuse=tg.train.Reuse(staleness=8)).reuse.refresh
        0.2
    """

    staleness: Annotated[int, Ge(0), Setting(flags=("--reuse-staleness",))] = 0
    """Reuse rows of lower layers computed at most this many batches before, such as 8; 0: none."""
    refresh: Annotated[float, Gt(0), Le(1), EXPERT] = 0.2
    """Share of reusable rows to compute again; their gradients are scaled up to represent all."""
    budget: Annotated[Size, EXPERT] = "64MiB"
    """Memory for rows to reuse; rows that do not fit are recomputed."""

    def __post_init__(self) -> None:
        check_ranges(self)


@described
@dataclass(frozen=True, kw_only=True)
class OfflineConfig(TrainingConfig):
    """Settings of offline training; the defaults are near DyGLib's, which `dyglib/1` is exactly.

    Example:
        >>> tg.OfflineConfig(epochs=5, test_negatives=("random", "historical")).patience
        20
    """

    protocol: OfflineProtocol | None = None
    """A named protocol: it sets the defaults, and deviations are printed."""
    learning_rate: Annotated[float, Gt(0), Setting(flags=("--learning-rate", "--lr"))] = 1e-4
    """Learning rate of the optimizer."""
    data_seed: Annotated[int, Ge(0), EXPERT] = 0
    """Seed of new nodes and evaluation negatives, shared by compared runs."""
    epochs: Annotated[int, Ge(1)] = 100
    """Epochs over the training part, at most."""
    patience: Annotated[int, Ge(1)] = 20
    """Early stopping: epochs without improvement of the validation AP."""
    filtered: Annotated[bool, EXPERT] = False
    """With mrr_negatives all: leave out the other true destinations, of events with the same
    source, relation and time."""
    inverse: Annotated[bool, EXPERT] = False
    """Follow each event with its inverse, from dst to src with a relation of its own, so that
    sources are ranked, too."""
    val_ratio: Annotated[float, Gt(0), Lt(1)] = 0.15
    """Part held out for validation."""
    test_ratio: Annotated[float, Gt(0), Lt(1)] = 0.15
    """Part held out for the test."""
    new_node_ratio: Annotated[float, Ge(0), Lt(1), EXPERT] = 0.1
    """Share of the nodes whose events training never sees."""
    test_negatives: tuple[NegativeKind, ...] = ("random",)
    """Kinds of negatives to test with; the first chooses the best epoch."""
    select: Annotated[Literal["ap", "ap+auc", "mrr"], EXPERT] = "ap"
    """Validation metric that chooses the best epoch; ap+auc: neither may be lower, as in DyGLib."""
    eval_neighbors: tuple[Annotated[int, Ge(1)], ...] | None = None
    """Neighbors of each hop in validation and test, such as 20,20; unset: as in training."""
    inductive: Literal["same_pass", "apart"] = "same_pass"
    """New nodes' events: measured in the pass over all, or apart, as DyGLib does."""
    fixed_negatives: str | None = None
    """Split and negatives as `tgflow convert` wrote them, OUT/NAME; they replace mrr_negatives and
    the ratios."""
    reuse: Reuse = Reuse()
    """Reuse of rows of lower layers from earlier batches in training."""

    @property
    def draws(self) -> EvaluationDraws:
        """How the protocol draws negatives, and ranks among them."""
        return _DRAWS.get(self.protocol or "", EvaluationDraws())

    @property
    def select_metric(self) -> Literal["ap", "mrr"]:
        """The metric of `select`, which is shown first; models choose between variants by it."""
        return "mrr" if self.select == "mrr" else "ap"

    def __post_init__(self) -> None:
        _check(self)
        if not self.test_negatives:
            raise ValueError('test_negatives must name at least one kind, such as ("random",)')
        if self.eval_neighbors is not None and min(self.eval_neighbors, default=0) < 1:
            raise ValueError(
                "eval_neighbors must be at least 1 neighbor for each hop, "
                f"got {tuple(self.eval_neighbors)}"
            )
        if self.fixed_negatives is not None and (
            self.test_negatives != ("random",) or self.inductive == "apart"
        ):
            raise ValueError(
                "fixed_negatives replace test_negatives, and cover all events in one pass; got "
                f"test_negatives={', '.join(self.test_negatives)} and inductive={self.inductive}"
            )
        if self.filtered and self.mrr_negatives != "all":
            raise ValueError(
                "filtered leaves true destinations out of all others: it requires "
                f'mrr_negatives="all", got {self.mrr_negatives}'
            )
        is_random = self.test_negatives == ("random",) and self.inductive != "apart"
        if self.mrr_negatives == "all" and not is_random:
            raise ValueError(
                'mrr_negatives="all" ranks among all destinations in one pass: leave '
                'test_negatives and inductive="apart" out, or give a number'
            )


def _check(config: TrainingConfig) -> None:
    """Raise ValueError if a field is out of its range, or names no optimizer or schedule."""
    check_ranges(config)
    parse_named("optimizer", config.optimizer, OPTIMIZERS)
    if config.lr_scheduler is not None:
        parse_named("lr_scheduler", config.lr_scheduler, LR_SCHEDULERS)
