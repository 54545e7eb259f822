"""The samplers' draws in plain Python: large integers, lists for buckets, decimals for powers."""

from __future__ import annotations

from decimal import Context, Decimal

_WORD = 2**32
_NUM_BUCKETS = 30
_PRECISE = Context(prec=50)


def draw_distinct(key: int, item: int, size: int, k: int) -> set[int]:
    """Floyd's algorithm: `k` distinct numbers below `size`, each subset equally likely."""
    drawn: set[int] = set()
    for draw, top in enumerate(range(size - k, size)):
        number = draw_below(key, item, draw, top + 1)
        drawn.add(top if number in drawn else number)
    return drawn


def draw_below(key: int, item: int, draw: int, bound: int) -> int:
    """Draw number `draw` of `item`, in `[0, bound)`: Lemire's method over Philox."""
    attempt = 0
    while True:
        counter = (draw // 4, attempt, item % _WORD, item // _WORD)
        product = philox(key, counter)[draw % 4] * bound
        if product % _WORD >= _WORD % bound:
            return product // _WORD
        attempt += 1


def philox(key: int, counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al., SC 2011)."""
    k0, k1 = key % _WORD, key // _WORD
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1 = p1 // _WORD ^ c1 ^ k0, p1 % _WORD
        c2, c3 = p0 // _WORD ^ c3 ^ k1, p0 % _WORD
        k0, k1 = (k0 + 0x9E3779B9) % _WORD, (k1 + 0xBB67AE85) % _WORD
    return c0, c1, c2, c3


def draw_decayed(
    key: int, item: int, times: list[int], counts: list[bool], k: int, half_life: int
) -> set[int]:
    """Up to `k` positions of `times`, oldest first, that count."""
    drawn: set[int] = set()
    left = list(range(len(times)))[::-1]
    buckets: list[list[int]] = []
    attempt = 0
    while len(drawn) < k:
        if not buckets or left[0] in drawn:
            left = [i for i in left if i not in drawn]
            while left and not counts[left[0]]:
                left.pop(0)
            if not left:
                break
            buckets = _buckets(left, times, half_life)
        words = philox(key, (attempt % _WORD, attempt // _WORD, item % _WORD, item // _WORD))
        attempt += 1
        last = len(buckets) - 1
        weights = [len(bucket) * 2 ** (last - j) for j, bucket in enumerate(buckets)]
        place, low = divmod((words[1] * _WORD + words[0]) * sum(weights), _WORD**2)
        if low < _WORD**2 % sum(weights):
            continue
        j = 0
        while place >= weights[j]:
            place -= weights[j]
            j += 1
        i = buckets[j][place // 2 ** (last - j)]
        older = Decimal(times[left[0]] - times[i] - j * half_life)  # than the bucket's youngest
        power = _PRECISE.power(Decimal(2), -_PRECISE.divide(older, Decimal(half_life)))
        if counts[i] and words[3] * _WORD + words[2] < _WORD**2 * power:
            buckets[j].remove(i)
            drawn.add(i)
    return drawn


def _buckets(left: list[int], times: list[int], half_life: int) -> list[list[int]]:
    """Split positions, newest first, by age; what weighs less than one in all shares the last."""
    buckets: list[list[int]] = []
    rest = left
    while len(rest) >= 2 ** len(buckets) and len(buckets) < _NUM_BUCKETS:
        oldest = times[left[0]] - (len(buckets) + 1) * half_life
        buckets.append([i for i in rest if times[i] > oldest])
        rest = rest[len(buckets[-1]) :]
    return [*buckets, rest]
