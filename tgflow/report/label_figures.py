"""Metrics of predicted labels, beside those of heuristic baselines, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

from tgflow.base.units import duration
from tgflow.report.formatting import score

TASKS = ("edge", "node", "property", "anomaly")
COLUMNS = {
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "mrr": "MRR",
    "auc": "AUC",
    "ap": "AP",
    "ndcg": "NDCG@10",
}
_OF_CLASS = ("auc", "ap")
"""Figures of the positive label alone."""
RULES = {
    "majority": "most frequent label",
    "source_last": "source's last",
    "source_most": "source's most frequent",
    "source_average": "source's average",
    "pair_last": "pair's last",
    "last": "the node's last",
    "average": "moving average",
    "degrees": "degrees and age alone",
    "with_degrees": "with degrees and age",
}


def label_table(
    flat: Mapping[str, Any], name: str
) -> tuple[Sequence[str], Sequence[Sequence[str]]] | None:
    """Return header and rows of the model, its intervals and each baseline; None without any."""
    if (found := task_of(flat)) is None:
        return None
    prefix, task = found[0], found[0].partition(".")[2]
    columns = columns_of(flat, *found)
    header = (f"labels, {task}", *(COLUMNS[key] for key in columns))
    own = [
        (name, *(score(flat[f"{prefix}.{key}"]) for key in columns)),
        ("95 % interval", *(_interval(flat, f"{prefix}.{key}") for key in columns)),
    ]
    return header, [*own, *rule_rows(flat, prefix, columns)]


def named(flat: Mapping[str, Any], before: str, unnamed: str = "") -> str:
    """Return the column of labels and its positive label, such as "is_fraud = 1", or `unnamed`."""
    target, positive = (flat.get(key) for key in ("label_target", "label_positive"))
    if target is None:
        return unnamed
    return before + (target if positive is None else f"{target} = {positive}")


def figure_name(key: str, flat: Mapping[str, Any]) -> str:
    """Return what a figure is called: "edge.ap" is "AP of is_fraud = 1"; others as they are."""
    task, _, figure = key.partition(".")
    if task not in TASKS or figure not in COLUMNS:
        return key
    of = flat if figure in _OF_CLASS else {**flat, "label_positive": None}
    return COLUMNS[figure] + named(of, " of ", " of labels")


def class_of(key: str, flat: Mapping[str, Any]) -> str | None:
    """Return the positive label, if a figure such as "running.edge.ap" is of it; None of all."""
    *path, figure = key.split(".")
    is_of_class = figure.removesuffix("_low").removesuffix("_high") in _OF_CLASS
    return flat.get("label_positive") if is_of_class and {*TASKS} & {*path} else None


def columns_of(flat: Mapping[str, Any], prefix: str, leading: str) -> list[str]:
    """Return the keys of the figures that were measured, the leading one first."""
    return [leading, *(k for k in COLUMNS if k != leading and f"{prefix}.{k}" in flat)]


def rule_rows(
    flat: Mapping[str, Any], prefix: str, columns: Sequence[str]
) -> list[tuple[str, ...]]:
    """Return the rows of heuristic baselines: name and figures."""
    return [
        (text, *(score(flat.get(f"{prefix}.{rule}.{key}", nan)) for key in columns))
        for rule, text in RULES.items()
        if f"{prefix}.{rule}.{columns[0]}" in flat
    ]


def task_of(flat: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the prefix of the label figures, such as "prequential.edge", and the leading one."""
    for part in ("prequential", "test"):
        for task in TASKS:
            for key in ("ap", "ndcg", "mrr", "accuracy"):
                if f"{part}.{task}.{key}" in flat:
                    return f"{part}.{task}", key
    return None


def late_text(flat: Mapping[str, Any]) -> str:
    """Return the figures of labels that came after their events in words; "" without any."""
    prefix = f"{found[0]}.late" if (found := task_of(flat)) is not None else ""
    names = {"judged": "judged by what was predicted before", "pending": "pending",
             "corrected": "corrected", "too_late": "too late to judge"}  # fmt: skip
    if (keys := {f"{prefix}.{name}": text for name, text in names.items()}).keys() - flat.keys():
        return ""
    text = "late labels: " + ", ".join(f"{flat[key]:,.0f} {text}" for key, text in keys.items())
    if (median := flat.get(f"{prefix}.delay_median")) is None:
        return text
    most = duration(flat[f"{prefix}.delay_p90"])
    return f"{text}; half came within {duration(median)}, 90 % within {most}"


def label_score(figures: Mapping[str, float], facts: Mapping[str, str]) -> str:
    """Return the label metrics in a few words; "" without labels."""
    names = (f"{task}.{key}" for task in TASKS for key in ("auc", "accuracy"))
    found = [f"  {figure_name(n, facts)} {score(figures[n])}" for n in names if n in figures]
    return "".join(found[:1])


def _interval(flat: Mapping[str, Any], key: str) -> str:
    low, high = flat.get(f"{key}_low"), flat.get(f"{key}_high")
    return "–" if low is None or high is None else f"{low:.3f}–{high:.3f}"
