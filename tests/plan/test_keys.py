"""Keys: distinct for distinct words, the same for ever."""

from __future__ import annotations

import itertools

from tgflow.keys import derive_key


def test_keys_of_different_words_differ() -> None:
    words = list(itertools.product((0, 1, 2, 2**63), repeat=3))
    keys = (
        {derive_key(*w) for w in words}
        | {derive_key(*w[:2]) for w in words}
        | {derive_key(), derive_key(0), derive_key(-1)}
    )
    assert len(keys) == len(words) + 16 + 3


def test_keys_are_64_bits_for_any_integers() -> None:
    assert all(0 <= derive_key(seed, 0, 0) < 2**64 for seed in (-1, 0, 2**64, 2**200))


def test_keys_never_change() -> None:
    """A resumed run of an older version must draw what it would have drawn."""
    assert derive_key(0, 0, 0) == KEY_OF_ZEROS


KEY_OF_ZEROS = 6084141021458535187
