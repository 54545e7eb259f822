"""Time formats: ISO 8601, SQL, and numbers whose magnitude gives the unit."""

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.files import flat
from helpers.files import read as read_rows
from tgflow.base.iso_time import iso_seconds
from tgflow.base.units import seconds_per_tick, ticks_per_unit
from tgflow.streams import FileSource, StreamError, open_stream
from tgflow.streams.rows.validate import plain_ticks

NOON = 1_714_564_800
"""2024-05-01 12:00:00 UTC."""


def write_times(path, times):
    """Write an event at each time as CSV, JSON lines or a Parquet string column."""
    if path.suffix == ".csv":
        path.write_text("src,dst,t\n" + "".join(f"0,1,{t}\n" for t in times))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"src": 0, "dst": 1, "t": t}) + "\n" for t in times))
    else:
        import pyarrow.parquet as pq

        n = len(times)
        pq.write_table(pa.table({"src": [0] * n, "dst": [1] * n, "t": times}), path)
    return path


def read(path, **settings):
    stream = open_stream(path, **settings)
    return stream, [t for batch in stream for t in batch.t.tolist()]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2024-05-01 12:00:00", NOON),
        ("2024-05-01T12:00:00Z", NOON),
        ("2024-05-01t12:00z", NOON),
        ("2024-05-01 14:00:00.123+02:00", NOON + Fraction(123, 1000)),
        ("2024-05-01 14:00:00,5 +02", NOON + Fraction(1, 2)),
        ("2024-05-01T08:30:00-0330", NOON),
        ("2024-05-01 12:00:00 UTC", NOON),
        (" 2024-05-01 ", NOON - 12 * 3600),
        ("1970-01-01", 0),
        ("0001-01-01T00:00:00Z", -62_135_596_800),
        ("2024-05-01T12:00:00.000000001Z", NOON + Fraction(1, 10**9)),
        ("2024-13-01", None),
        ("2023-02-29", None),
        ("2024-05-01 24:00:00", None),
        ("2024-05-01 12:60", None),
        ("2024-05-01 12:00:60", None),
        ("2024-05-01 12:00+25:00", None),
        ("2024-05-01 12:00+02:75", None),
        ("2024-05-01+02:00", None),
        ("2024-05-01T12", None),
        ("01.05.2024", None),
        ("20240501", None),
        ("", None),
    ],
)
def test_time_is_exact_and_utc_without_a_zone(text, seconds):
    assert iso_seconds(text) == seconds


moments = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
zones = st.none() | st.integers(-1439, 1439)


@given(st.lists(st.tuples(moments, zones), min_size=1, max_size=5), st.sampled_from(["us", "ms"]))
def test_columns_are_parsed_like_single_rows(made, tick):
    texts = []
    for moment, zone in made:
        whole = moment.microsecond // 1000 * 1000 if tick == "ms" else moment.microsecond
        tz = None if zone is None else timezone(timedelta(minutes=zone))
        texts.append(moment.replace(microsecond=whole, tzinfo=tz).isoformat(" "))
    per_second = {"us": 10**6, "ms": 10**3}[tick]
    expected = [iso_seconds(text) * per_second for text in texts]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for (moment, zone), text, t in zip(made, texts, expected, strict=True):
        found = datetime.fromisoformat(text)
        since = (found if found.tzinfo else found.replace(tzinfo=UTC)) - epoch
        assert t == since // timedelta(microseconds=1) * Fraction(per_second, 10**6), (moment, zone)
    found = plain_ticks(pa.array(texts), tick)
    assert found is not None
    assert found.tolist() == expected


def test_decimals_of_the_first_times_set_the_tick_and_are_reported(tmp_path):
    times = ["2024-05-01 12:00:00", "2024-05-01 12:00:00.125", "2024-05-01 12:00:01"]
    stream, found = read(write_times(tmp_path / "events.csv", times))
    assert (stream.unit, found) == ("ms", [NOON * 1000, NOON * 1000 + 125, NOON * 1000 + 1000])
    assert stream.notes == [
        f"{tmp_path / 'events.csv'}: times have decimals, and are kept in ms; times without a zone "
        "are read as UTC"
    ]
    with pytest.raises(StreamError, match=r"line 3.*between two ticks of 1 s; pass tick_unit='ms'"):
        read(tmp_path / "events.csv", tick_unit="s")


@pytest.mark.parametrize(("unit", "per_second"), [("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_time_unit_is_inferred_from_magnitude(tmp_path, unit, per_second, ending):
    times = [(NOON + i) * per_second for i in range(3)]
    path = write_times(tmp_path / f"events.{ending}", times)
    stream, found = read(path)
    assert (stream.unit, found) == (unit, times)
    assert stream.notes == [
        f"{path}: times are read as {unit}, by their size (the first is 2024-05-01 12:00:00); "
        "time_unit='s' reads them as seconds"
    ]
    assert read(path, time_unit="s")[0].unit == "s", "what somebody says wins"
    assert open_stream(path, time_unit="s").notes == []


@pytest.mark.parametrize("times", [[NOON], [1, NOON * 1000], [10**12 * 5], [0], [-NOON * 1000]])
def test_numbers_of_other_sizes_are_seconds(tmp_path, times):
    stream, found = read(write_times(tmp_path / "events.csv", times))
    assert (stream.unit, stream.notes, found) == ("s", [], times)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_bad_row_among_the_first_does_not_affect_others(tmp_path, ending):
    numbers = write_times(tmp_path / f"a.{ending}", ["2024-05-01", NOON, NOON + 1])
    events, bad = flat(read_rows(FileSource(numbers)))
    midnight = NOON - 12 * 3600
    assert (bad, [row[3] for row in events]) == ([], [midnight, NOON, NOON + 1])
    times = write_times(tmp_path / f"b.{ending}", [5, NOON * 1000, NOON * 1000])
    assert open_stream(times).unit == "ms"


TINY = ["1e-999999999", "1e999999999", "1E-39", "0.00000000000000000000000000000001e-9"]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "tsv"])
@pytest.mark.parametrize("num_good", [0, 50])
@pytest.mark.parametrize("tiny", TINY)
def test_number_with_a_huge_exponent_is_a_bad_row(tmp_path, ending, num_good, tiny):
    """Arrow would read out of bounds, and parse 1e-39 as 0."""
    path = tmp_path / f"events.{ending}"
    times = [*map(str, range(num_good)), "500000000000000000000e-18", tiny, "501"]
    path.write_text({
        "csv": "src,dst,t,f0\n" + "".join(f"0,1,{t},1e-30\n" for t in times),
        "tsv": "src\tdst\tt\tf0\n" + "".join(f"0\t1\t{t}\t1e-30\n" for t in times),
        "jsonl": "".join(f'{{"src":0,"dst":1,"t":{t},"f0":1e-30}}\n' for t in times),
    }[ending])  # fmt: skip
    events, bad = flat(read_rows(FileSource(path, features=["f0"])))
    assert [row[0] for row in bad] == [num_good + 1]
    assert [row[3] for row in events] == [*range(num_good), 500, 501]


def test_json_number_among_text_times_is_read(tmp_path):
    path = write_times(tmp_path / "events.jsonl", ["2024-05-01T12:00:00Z"] * 2 + [NOON])
    assert read(path)[1] == [NOON] * 3


def test_dates_are_refused_for_ticks(tmp_path):
    path = write_times(tmp_path / "events.csv", ["2024-05-01T12:00:00Z"])
    with pytest.raises(StreamError, match="ticks have no known length; pass time_unit='s'"):
        read(path, time_unit="tick")


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
