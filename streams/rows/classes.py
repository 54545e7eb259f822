"""Labels that are texts, as classes: whole numbers in the order in which the texts appear."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tgflow.streams.rows.checks import Int64s, refuse, refuse_nulls

MOST = 1_000
"""Classes; more are hardly any."""
BOOLEANS = ("false", "true")


class LabelClasses:
    """Gives texts numbers: 0 to the first one, 1 to the next other one, and so on.

    Which number a text has depends on the rows before it alone.

    Args:
        names: Of the classes that there are; it grows.
        are_booleans: Whether false and true, in letters of any size, are 0 and 1.
    """

    def __init__(self, names: Iterable[str] = (), *, are_booleans: bool = False) -> None:
        self.names = list(names)
        self._are_booleans = are_booleans

    @classmethod
    def load(cls, saved: str, first: Sequence[str]) -> LabelClasses:
        """Return those that `save` wrote; of an empty text those that labels begin with.

        Args:
            saved: The text.
            first: What `first_classes` says.
        """
        names = json.loads(saved) if saved else first
        return cls(names, are_booleans=[*first] == [*BOOLEANS])

    def save(self) -> str:
        """Return the names as text."""
        return json.dumps(self.names, ensure_ascii=False)

    def encode(self, array: pa.Array, name: str) -> Int64s:
        """Return the classes of texts, int64 `[B]`; texts that are new get the next numbers.

        Raises:
            BadRows: Where a text is missing or empty, or beyond the largest number of classes.
        """
        refuse_nulls(array, name)
        texts = array.cast(pa.string())
        if self._are_booleans:
            texts = _lowered(texts)
        found = texts.dictionary_encode()
        words: list[str] = found.dictionary.to_pylist()
        index = found.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        empty = np.array([not word for word in words], dtype=np.bool_)[index]
        refuse(empty, "null", lambda _: f"{name} is empty; every event needs a value")
        known = {word: number for number, word in enumerate(self.names)}
        for word in words:
            if word not in known and len(known) < MOST:
                known[word] = len(known)
        self.names = [*known]
        numbers = np.array([known.get(word, -1) for word in words], dtype=np.int64)
        classes: Int64s = numbers[index]
        refuse(classes < 0, "range", lambda row: f"{name} is {texts[row]}, and {_TOO_MANY}")
        return classes


_TOO_MANY = f"there are {MOST:,} classes already; is it a class? else leave out label=..."


def first_classes(values: Iterable[object]) -> list[str] | None:
    """Return the classes that labels begin with if most of them are texts, None if not.

    Args:
        values: The labels of the first rows.
    """
    there = [value for value in values if value not in (None, "")]
    texts = [value for value in there if isinstance(value, str) and not _is_number(value)]
    if 2 * len(texts) <= len(there):
        return None
    return [*BOOLEANS] if all(text.lower() in BOOLEANS for text in texts) else []


def _is_number(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def _lowered(texts: pa.Array) -> pa.Array:
    """Return texts with false and true in small letters."""
    small = pc.utf8_lower(texts)
    return pc.if_else(pc.is_in(small, pa.array(BOOLEANS)), small, texts)
