"""Named protocols: settings of published evaluations, and the line that describes them.

A protocol is a versioned name for a set of settings. Each may be overridden; the line printed with
every result then names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from tgflow.train.config import ContinualConfig, OfflineConfig, TrainingConfig, parse_further

_SPLIT = {"val_ratio": 0.15, "test_ratio": 0.15, "batch_size": 200, "visibility": "event"}
_TGB = {**_SPLIT, "new_node_ratio": 0.0, "learning_rate": 1e-4, "select": "mrr"}

PROTOCOLS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "dyglib/1": {
            **_SPLIT,
            "new_node_ratio": 0.1,
            "epochs": 100,
            "patience": 20,
            "learning_rate": 1e-4,
            "select": "ap+auc",
        },
        "tgbl/1": _TGB,
        "tgbn/1": _TGB,
        "thgl/1": _TGB,
        "tgbseq/1": {**_TGB, "mrr_negatives": 100},
        "tkgl/1": {
            **_TGB,
            "learning_rate": 1e-3,
            "mrr_negatives": "all",
            "filtered": True,
            "inverse": True,
        },
        "prequential/1": {
            "batch_size": 200,
            "visibility": "event",
            "mrr_negatives": 20,
            "mrr_every": 1,
            "mrr_further": "historical:20",
            "warmup": 0,
        },
    }
)
"""Settings of each protocol; all others are the model's or the user's."""


def protocol_settings(name: str) -> dict[str, Any]:
    """Return the settings of a protocol, as in `OfflineConfig(**protocol_settings("dyglib/1"))`.

    Raises:
        ValueError: If there is no such protocol.
    """
    if name not in PROTOCOLS:
        raise ValueError(f"there is no protocol {name!r}; there are {', '.join(PROTOCOLS)}")
    return {"protocol": name, **PROTOCOLS[name]}


def offline_line(
    config: OfflineConfig,
    tied_share: float,
    select: str | None = None,
    learned: str | None = None,
    num_destinations: int | None = None,
) -> str:
    """Return the settings that results of an offline training depend on, in one line.

    Args:
        config: The settings.
        tied_share: Share of the events with the time of the previous one.
        select: The metric that chose the epoch; None: `config.select`.
        learned: Negatives that the model learned from; None: `config.negatives`.
        num_destinations: Number of all destinations, if events are ranked among them.
    """
    c = config
    chosen = c.select.upper().replace("+", " and ") if select is None else select
    shares = (1 - c.val_ratio - c.test_ratio, c.val_ratio, c.test_ratio)
    apart = {"same_pass": "the same pass", "apart": "a pass of their own"}[c.inductive]
    parts = [
        *(["events and inverses"] if c.inverse else []),
        "/".join(f"{100 * share:.3g}" for share in shares)
        if c.fixed_negatives is None
        else f"split of {PurePath(c.fixed_negatives).name}",
        *(["NDCG@10 of properties"] if c.protocol == "tgbn/1" else []),
        f"new nodes {c.new_node_ratio:.0%} in {apart}",
        *_common(c, learned),
    ]
    if c.eval_neighbors is not None:
        parts.append(f"evaluated with {','.join(map(str, c.eval_neighbors))} neighbors")
    if c.reuse.staleness:
        parts.append(f"lower layers' rows up to {c.reuse.staleness} batches old")
    since = {"train": "training", "part": "the part before"}[c.draws.inductive_since]
    details = {
        "random": "may hit a positive" if c.draws.collide else "never the positive",
        "historical": f"with{'' if c.draws.replace else 'out'} replacement",
        "inductive": f"new since {since}",
    }
    negatives = ", ".join(f"{kind}:1 ({details[kind]})" for kind in c.test_negatives)
    if c.mrr_negatives == "all":
        left_out = " but other true ones of the time" if c.filtered else ""
        negatives += f", MRR among {_all(num_destinations)}{left_out}"
    if c.fixed_negatives is not None:
        negatives = f"fixed negatives of {PurePath(c.fixed_negatives).name}"
    return _line(c, *parts, negatives, f"best epoch by {chosen}", f"ties {tied_share:.0%}")


def continual_line(
    config: ContinualConfig,
    tied_share: float,
    learned: str | None = None,
    num_destinations: int | None = None,
) -> str:
    """Return the settings that results of continual learning depend on; see `offline_line`."""
    is_all = config.mrr_negatives == "all"
    kinds = [_all(num_destinations) if is_all else f"random:{config.mrr_negatives}"]
    kinds += [f"{kind}:{num}" for kind, num in parse_further(config.mrr_further).items()]
    of = f" for 1 event of {config.mrr_every}" if config.mrr_every > 1 else ""
    return _line(
        config,
        "each event predicted, then learned",
        *([f"the first {config.warmup:,} not measured"] if config.warmup else []),
        *_common(config, learned),
        f"{' and '.join(kinds)} known at the batch's start{of}",
        f"test the last {config.test_share:.0%}",
        f"ties {tied_share:.0%}",
    )


def _all(num_destinations: int | None) -> str:
    return (
        "all destinations" if num_destinations is None else f"all {num_destinations:,} destinations"
    )


def _line(config: Any, *parts: str) -> str:
    """Return the parts of a line, and the settings that deviate from the protocol."""
    wanted = PROTOCOLS[config.protocol] if config.protocol is not None else {}
    changed = "; ".join(
        f"{name} {getattr(config, name)} for {value}"
        for name, value in wanted.items()
        if getattr(config, name) != value
    )
    listed = ", ".join([*parts, f"changed: {changed}"] if changed else parts)
    return f"{config.protocol or 'no named protocol'}: {listed}"


def _common(config: TrainingConfig, learned: str | None) -> tuple[str, ...]:
    sees = {"event": "event-exact neighbors", "batch": "neighbors of the batch's start"}
    slices = f" in {config.slices} slices" if config.slices > 1 else ""
    batch = f"batch {config.batch_size}{slices}"
    learned = config.negatives if learned is None else learned
    negatives = () if learned is None else (f"learned from {learned}",)
    return batch, sees[config.visibility], "memory of the batch's start", *negatives
