from decimal import Decimal
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tgflow.base.units import seconds_per_tick, ticks_per_unit
from tgflow.streams import StreamError, open_stream

INT64_MAX = 2**63 - 1


def ticks(column, **schema):
    rows = {"src": [0] * len(column), "dst": [1] * len(column), "t": column}
    source = open_stream(pa.table(rows), sort=True, **schema)
    return sorted(t for batch in source for t in batch.t.tolist())


def csv_ticks(tmp_path, texts, ending="csv", **schema):
    path = tmp_path / f"events.{ending}"
    if ending == "csv":
        path.write_text("src,dst,t\n" + "".join(f"0,1,{text}\n" for text in texts))
    else:
        path.write_text("".join(f'{{"src": 0, "dst": 1, "t": {text}}}\n' for text in texts))
    return [t for batch in open_stream(path, **schema) for t in batch.t.tolist()]


def test_unknown_and_incompatible_time_units_are_refused():
    with pytest.raises(ValueError, match="unknown time unit 'sec'; choose one of ns, us, ms, s"):
        seconds_per_tick("sec")
    with pytest.raises(ValueError, match="cannot turn 's' into 'tick'"):
        ticks_per_unit("s", "tick")
    with pytest.raises(ValueError, match="tick_unit='s' is coarser than time_unit='ms'"):
        open_stream({"src": [], "dst": [], "t": []}, time_unit="ms", tick_unit="s")


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@given(t=st.integers(-INT64_MAX, INT64_MAX - 1))
def test_text_times_keep_nanoseconds(scratch, ending, t):
    assert csv_ticks(scratch, [t], ending, time_unit="ns") == [t]
    seconds = Decimal(t).scaleb(-9)
    text = f"{seconds:f}"
    assert csv_ticks(scratch, [text], ending, time_unit="s", tick_unit="ns") == [t]


@given(
    st.decimals(-(10**9), 10**9, places=4),
    st.sampled_from(["day", "h", "m", "s", "ms"]),
    st.sampled_from(["h", "m", "s", "ms", "us"]),
)
def test_decimal_gives_the_exact_tick_or_an_error(scratch, value, unit, tick):
    per_unit = ticks_per_unit(unit, tick)
    if per_unit < 1:
        return
    exact = Decimal(per_unit.numerator) * value
    text, column = [f"{value:f}"], pa.array([value], pa.decimal128(30, 6))
    for read in (partial(ticks, column), partial(csv_ticks, scratch, text)):
        if exact == exact.to_integral_value() and abs(exact) < INT64_MAX:
            assert read(time_unit=unit, tick_unit=tick) == [int(exact)]
        else:
            with pytest.raises(StreamError, match=r"between two ticks|beyond int64"):
                read(time_unit=unit, tick_unit=tick)


@given(st.integers(-(2**50), 2**50), st.sampled_from(["s", "ms", "us"]))
def test_float64_is_read_as_its_shortest_decimal(t, tick):
    digits = {"s": 0, "ms": 3, "us": 6}[tick]
    assert ticks(pa.array([t / 10**digits]), tick_unit=tick) == [t]


def test_timestamps_and_dates_have_their_own_unit():
    micros = pa.array([1_700_000_000_123_456], pa.timestamp("us", tz="UTC"))
    assert ticks(micros, time_unit="us") == [1_700_000_000_123_456]
    assert ticks(micros, tick_unit="ns") == [1_700_000_000_123_456_000]
    assert ticks(pa.array([3], pa.date32()), time_unit="s") == [3 * 86400]
    assert ticks(pa.array([3], pa.date32()), time_unit="day") == [3]
    assert ticks(pa.array([5], pa.duration("ms")), tick_unit="us") == [5000]
    with pytest.raises(StreamError, match=r"no whole int64 number of s; pass tick_unit='us'"):
        ticks(micros, time_unit="s")
    with pytest.raises(StreamError, match=r"timestamp\[us, tz=UTC\]; pass time_unit='us'"):
        ticks(micros, time_unit="tick")
