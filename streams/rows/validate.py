"""Validation of decoded Arrow columns of any type into events and bad rows, for every source."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b
from statistics import mode
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tgflow.base.iso_time import CLOCK, DAY, EXAMPLE, time_seconds
from tgflow.base.units import INT64_MAX, exact_decimal, ticks_per_unit
from tgflow.graph.events import NO_LABEL, NUM_RELATIONS
from tgflow.graph.id_columns import canonical, ids_of_kind
from tgflow.streams.errors import StreamError, shown
from tgflow.streams.rows.row_batch import (
    EventColumns,
    Fault,
    Float32s,
    Int64s,
    Origin,
    Position,
    RowBatch,
    nowhere,
)
from tgflow.streams.rows.schema import (
    MOST_LABELS,
    PLAIN_PAIRS,
    UNCOUNTED,
    UNSCALED,
    Checks,
    ColumnNames,
    Columns,
    IdKind,
    Scale,
    listed,
)

Bools = npt.NDArray[np.bool_]

AS_TEXT = "pass id_kind='string' to take ids as text"
_BOTH = "every event needs both its nodes"


@dataclass(frozen=True, slots=True)
class RowSchema:
    """Schema that rows must satisfy to become events."""

    columns: Columns
    ids: IdKind
    time: Scale
    widths: tuple[int, ...] = ()
    checks: Checks = field(default_factory=Checks)
    classes: Mapping[str, TextClasses] = field(default_factory=dict)
    """Classes of columns of texts: by role, "relation" or "label", and by categorical column."""
    coding: LabelCoding | None = None
    """Reads labels by their values; None: as whole numbers or `classes`."""


def validate(
    batches: pa.RecordBatch | Sequence[pa.RecordBatch],
    schema: RowSchema,
    *,
    index: Int64s | None = None,
    faults: Mapping[int, Fault] | None = None,
    locate: Callable[[int], Origin] = nowhere,
    position: Position | None = None,
) -> RowBatch:
    """Return the events among decoded rows, and the faults of the others.

    A bad row gets its first fault, in the order src, dst, t, relation, label, features, weight,
    event id. The result for a row depends on that row alone, not on its neighbors, and a value that
    is a text is read as the number, time or boolean that it is the text of. A batch without
    bad rows is checked once, column by column; others once more for each kind of fault in them.

    Args:
        batches: Decoded rows with at least the columns of `schema`, of any Arrow types, untrusted:
            invalid UTF-8 and offsets beyond the buffers make bad rows. (Batches with wrong buffer
            sizes are rejected by `pa.ipc.open_stream`.) Types may differ between batches.
        schema: Schema of the rows.
        index: Number of each decoded row, increasing; None if all rows could be decoded.
        faults: Faults of the rows that could not be decoded, by number.
        locate: Returns the origin of a row, by number.
        position: Resume position after these rows.
    """
    batches = [batches] if isinstance(batches, pa.RecordBatch) else batches
    num_rows = sum(map(len, batches))
    numbers = np.arange(num_rows) if index is None else index
    events: list[EventColumns] = []
    kept: list[Int64s] = []
    found, done = {**(faults or {})}, 0
    num_all = num_rows + len(found)
    for batch in batches:
        part, rows, bad = _checked(batch, schema)
        own = numbers[done : done + len(batch)]
        events.append(part)
        kept.append(own if rows is None else own[rows])
        found |= {int(own[row]): fault for row, fault in bad.items()}
        done += len(batch)
    whole = EventColumns.concat(events)
    if whole.event_id is not None:
        whole = replace(whole, event_id_hash=hashes_of(whole.event_id))
    found = dict(sorted(found.items()))
    good, spaced = np.concatenate(kept) if found or index is not None else None, 0
    for ids in (whole.src, whole.dst) if pa.types.is_string(whole.src.type) else ():
        if (np.frombuffer(ids.buffers()[2] or b"", dtype=np.uint8) == ord(" ")).any():
            spaced += pc.sum(pc.or_(pc.starts_with(ids, " "), pc.ends_with(ids, " "))).as_py() or 0
    counts = {SPACED: spaced} if spaced else {}
    return RowBatch(whole, good, found, num_all, locate, position or {}, counts=counts)


SPACED = "id_with_spaces_around"
"""Name of the number of ids that begin or end with a space, among `RowBatch.counts`."""


class BadRows(Exception):
    """Raised when rows of a batch fail one check."""

    def __init__(self, rows: Bools, fault: Callable[[int], Fault]) -> None:
        super().__init__(f"{np.count_nonzero(rows)} bad rows")
        self.rows = rows
        self.fault = fault


def _refuse(bad: Bools, fault: Callable[[int], Fault]) -> None:
    if bad.any():
        raise BadRows(bad, fault)


def _refuse_all(num_rows: int, code: str, text: str) -> None:
    _refuse(np.ones(num_rows, dtype=np.bool_), lambda _: (code, text))


NEEDED = "every event needs a value"
FILLED = f"{NEEDED}: fix or drop it, or pass fill_missing=0"
"""What is wrong with a missing value, and with a missing feature."""


def _refuse_nulls(array: pa.Array, name: str, text: str = NEEDED) -> None:
    if array.null_count:
        missing = array.is_null().to_numpy(zero_copy_only=False)
        _refuse(missing, lambda _: ("null", f"{name} is missing; {text}"))


def _checked(
    batch: pa.RecordBatch, schema: RowSchema
) -> tuple[EventColumns, Int64s | None, dict[int, Fault]]:
    """Return the events, the number of each in `batch` (None if all are events), and the faults."""
    index: Int64s | None = None
    faults: dict[int, Fault] = {}
    while True:
        try:
            if index is None:
                _refuse_invalid(batch, schema.columns.names)
            return _events(batch, schema), index, faults
        except BadRows as bad:
            index = np.arange(len(batch)) if index is None else index
            found = np.flatnonzero(bad.rows).tolist()
            faults |= {int(index[row]): bad.fault(row) for row in found}
            good = np.flatnonzero(~bad.rows)
            batch, index = batch.take(pa.array(good)), index[good]


def _events(batch: pa.RecordBatch, schema: RowSchema) -> EventColumns:
    """Return all rows as events; raise `BadRows` at the first check that some rows fail."""
    columns, checks = schema.columns, schema.checks
    x = None
    src = _id_column(batch[columns.src], columns.src, schema.ids)
    dst = _id_column(batch[columns.dst], columns.dst, schema.ids)
    t = _tick_column(batch[columns.t], columns.t, schema.time)
    relation = _whole_numbers(batch, schema, "relation", 0, NUM_RELATIONS - 1)
    if schema.coding is not None:  # without the column they come later
        name = columns.label
        label: Int64s | None = np.full(len(batch), NO_LABEL)
        label = label if name is None else schema.coding.encode(batch[name], name)
    else:
        label = _whole_numbers(batch, schema, "label", -INT64_MAX, INT64_MAX)
    if columns.features:
        missing = columns.fill_missing
        x = feature_columns(batch, columns.features, schema.widths, checks.max_abs, missing)
    if columns.categorical:
        slots = [schema.classes[name].one_hot(batch[name]) for name in columns.categorical]
        x = np.concatenate([*([] if x is None else [x]), *slots], axis=1)
    weight = None
    if columns.weight is not None:
        x_weight = feature_columns(batch, [columns.weight], [1], None, what="weights")
        weight = values = x_weight.reshape(-1)
        text = f"{columns.weight} is {{}}; weights must be at least 0"
        _refuse(values < 0, lambda row: ("range", text.format(values[row])))
    name = columns.event_id
    event_id = None if name is None else _event_ids(batch[name], name)
    name = columns.label_time
    label_time = None if name is None else _tick_column(batch[name], name, schema.time)
    return EventColumns(src, dst, t, label, x, event_id, weight, relation, label_time=label_time)


def _whole_numbers(
    batch: pa.RecordBatch, schema: RowSchema, role: str, least: int, most: int
) -> Int64s | None:
    """Return relations or labels in `[least, most]`; of texts, their classes."""
    if not (name := getattr(schema.columns, role)):
        return None
    texts = schema.classes.get(role)
    if texts is not None and not texts.are_booleans and is_text(_plain_type(batch[name].type)):
        values = texts.encode(batch[name], name)
    else:
        values = _tick_column(batch[name], name, UNSCALED)
    bad = (values < least) | (values > most)
    limits = f"outside of [{least}, {most}]"
    _refuse(bad, lambda row: ("range", f"{name} is {values[row]}, {limits}"))
    return values


# Values that are invalid for their type: rejected before anything reads them.


def _refuse_invalid(batch: pa.RecordBatch, names: Sequence[str]) -> None:
    invalid = {}
    for name in names:
        if _is_invalid(column := batch[name]):
            invalid[name] = np.array([_is_invalid(column[i : i + 1]) for i in range(len(batch))])
    if not invalid:
        return

    def fault(row: int) -> Fault:
        name = next(name for name, rows in invalid.items() if rows[row])
        if is_text(batch[name].type):
            return "encoding", f"{name} is not UTF-8; write the file as UTF-8"
        return "encoding", f"{name} is no valid {batch[name].type}: the data is damaged"

    _refuse(np.logical_or.reduce(list(invalid.values())), fault)


def _is_invalid(array: pa.Array) -> bool:
    flat = pa.types.is_primitive(array.type) or pa.types.is_decimal(array.type)
    with suppress(pa.ArrowInvalid):
        array.validate(full=not flat)  # every bit pattern is a valid number
        return False
    return True


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type holds strings."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


# Node ids and event ids.


def text_of(value: object) -> Any:
    """Return the text of a value, None for null; of a list, those of its items."""
    if isinstance(value, list):
        return [text_of(item) for item in value]
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _id_column(array: pa.Array, name: str, kind: IdKind) -> pa.Array:
    """Return node ids as int64 of at least 0, or as non-empty strings; see `ids_of_kind`."""

    def fault(row: int) -> Fault:
        return _id_fault(name, array[row].as_py()) or ("null", f"{name} is missing; {_BOTH}")

    if kind == "int" and pa.types.is_integer(array.type) and not array.null_count:
        values = array.to_numpy(zero_copy_only=False)
        values = values if values.dtype == np.uint64 else np.asarray(values, dtype=np.int64)
        _refuse(values.view(np.int64) < 0, fault)  # huge ones wrap to negative
        return pa.array(values.view(np.int64))
    try:
        ids, bad = ids_of_kind(array, "integers" if kind == "int" else "strings")
    except TypeError:
        text = f"{name} is of type {array.type}; ids are integers or strings"
        _refuse_all(len(array), "type", text)
        return pa.array([], pa.int64() if kind == "int" else pa.string())
    if kind == "int":
        bad |= ids.to_numpy() < 0
    _refuse(bad, fault)
    return ids


def _id_fault(name: str, value: Any) -> Fault | None:
    """Return the fault of `value` as an integer id, None if it is valid."""
    if value in (None, "") or str(value) == "nan":
        return "null", f"{name} is {'empty' if value == '' else 'missing'}; {_BOTH}"
    if isinstance(value, str | Decimal) and _INTEGER.fullmatch(str(value)):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        number = exact_decimal(str(value))
        is_whole = number is not None and abs(number.adjusted()) < 19 and number % 1 == 0
        example = f" such as {int(number)}" if is_whole and number is not None else ""
        text = f"{name} is {shown(value)}, expected an integer{example}; write it as one, or "
        return "type", text + AS_TEXT
    if value < 0:
        return "negative_id", f"{name} is {shown(value)}; integer ids start at 0: {AS_TEXT}"
    if value > INT64_MAX:
        return "huge_id", f"{name} is {shown(value)}, beyond int64; {AS_TEXT}"
    return None


def _is_id(value: object) -> bool:
    return isinstance(value, int | str | Decimal) and not isinstance(value, bool)


def first_id_kind(where: str, ends: Sequence[tuple[str, object]]) -> tuple[IdKind, str]:
    """Return the kind of ids in the first rows, given with their columns, and the reason if text.

    Ids are integers if all are, as `canonical`; they are text if one is a text or a number that
    is written in another way, such as 007 or 12.0. Missing values do not count.
    """
    ends = [(name, value) for name, value in ends if value not in (None, "")]
    valid = {name for name, value in ends if _is_id(value)}
    for name, value in ends:
        if name not in valid:
            text = f"{name} is {shown(value)}, expected an integer or a string; {AS_TEXT}"
            raise StreamError(where, "type", text)
    for name, value in ends:
        if _is_id(value) and (isinstance(value, str) or canonical(str(value)) is None):
            return "string", f", as {name} of the first rows is {shown(value)}"
    return "int", ""


def _event_ids(array: pa.Array, name: str) -> pa.Array:
    """Return event ids as non-empty texts."""
    kind = _plain_type(array.type)
    if not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        text = f"{name} is of type {array.type}; event ids are texts or integers"
        _refuse_all(len(array), "type", text)
        return pa.nulls(0, pa.string())
    texts = array.cast(pa.string())
    is_missing = pc.fill_null(pc.equal(pc.binary_length(texts), 0), True)
    fault = "null", f"{name} is missing; every event needs its id"
    _refuse(is_missing.to_numpy(zero_copy_only=False), lambda _: fault)
    return texts


def hashes_of(texts: pa.Array) -> Int64s:
    """Return 64 bits of the BLAKE2 hash of each text, int64."""
    digests = b"".join(blake2b(text.encode(), digest_size=8).digest() for text in texts.to_pylist())
    return np.frombuffer(digests, dtype="<i8").astype(np.int64)


# Times, relations and labels: exact conversion of numbers of any type to int64 ticks.

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_ANY_INT = re.compile(r"\s*[+-]?\d+(?:_\d+)*\s*")  # what int() reads
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,99})")  # int() refuses thousands of digits
BOOLEANS = ("false", "true")
MISSING = ("", "NA", "N/A", "null", "NULL", "None")
"""Texts of missing features, beside `nan`."""
_FLOAT = r"^[+-]?([0-9]+[.]?[0-9]*([eE][+-]?[0-9]+)?|[.][0-9]+([eE][+-]?[0-9]+)?|nan|inf|infinity)$"
_IS_FLOAT = re.compile(_FLOAT, re.IGNORECASE)
PRECISION = 22  # maximum digits of a decimal in a text file: 19 of an int64, and spare ones
MOST_DECIMALS = 38
"""Maximum decimals of a number that Arrow parses from text; with more it reads out of bounds."""
_TINY = {
    letter: re.compile(letter + rb"-(?:0*[2-9][0-9]|[0-9]{3,}|(?<=[0-9]{19}[eE]-))")
    for letter in (b"e", b"E")  # two patterns: one with a literal first letter is 8x as fast
}
_PLAIN = rf"^{DAY}([T ]{CLOCK}(:[0-9]{{2}}(\.[0-9]{{1,9}})?)?(Z|[+-][0-9]{{2}}(:?[0-9]{{2}})?)?)?$"
"""Pattern of texts that Arrow parses in the same way as `iso_seconds`."""
_ZONED = r":[^Z+-]*[Z+-]"


def may_be_tiny(text: bytes | bytearray) -> bool:
    """Return whether a text may contain a number with more than `MOST_DECIMALS`; rarely wrong."""
    return any(letter in text and pattern.search(text) for letter, pattern in _TINY.items())


def has_too_many_decimals(value: object) -> bool:
    """Return whether a number, or a numeric text, has more than `MOST_DECIMALS`."""
    number = exact_decimal(str(value))
    return number is not None and int(number.as_tuple().exponent) < -MOST_DECIMALS


def time_type(scale: Scale) -> pa.DataType:
    """Return the Arrow type to parse text to, such that no tick is ever a float."""
    return pa.string() if scale.is_text else pa.decimal128(PRECISION, scale.digits)


def column_types(schema: RowSchema) -> dict[str, pa.DataType]:
    """Return the Arrow types to parse the columns of a file to."""
    columns, id_type = schema.columns, pa.int64() if schema.ids == "int" else pa.string()
    types = dict.fromkeys(columns.categorical, pa.string())
    types |= dict.fromkeys(columns.numbers, pa.float32())
    types |= dict.fromkeys([columns.src, columns.dst], id_type)
    types |= dict.fromkeys(columns.times, time_type(schema.time))
    for name in columns.single(int):
        types[name] = pa.string() if name in columns.texts else time_type(UNSCALED)
    if columns.event_id:
        types.setdefault(columns.event_id, pa.string())
    return types


def _tick_column(array: pa.Array, name: str, scale: Scale) -> Int64s:
    """Return times (or relations, or labels) as int64 ticks `[B]`."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    _refuse_nulls(array, name)
    kind = array.type
    is_moment = pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_date(kind)
    if is_moment and scale.is_time:
        return _moment_ticks(array, name, scale)
    if scale.format is not None and pa.types.is_integer(kind):  # 20240115
        array, kind = array.cast(pa.string()), pa.string()
    found: tuple[Int64s, Bools] | None = None
    if pa.types.is_decimal(kind):
        found = _decimal_ticks(array, scale)
    elif pa.types.is_floating(kind):
        found = _float_ticks(array, scale)
    elif pa.types.is_integer(kind) or (pa.types.is_boolean(kind) and not scale.is_time):
        numbers = array.cast(pa.int8()) if pa.types.is_boolean(kind) else array
        found = _scaled(numbers.to_numpy(zero_copy_only=False), Fraction(scale.per_unit))
    elif is_text(kind):
        is_plain = scale.is_time and scale.format is None
        if is_plain and (moments := plain_ticks(array, scale.tick)) is not None:
            return moments
        array = array if scale.is_time else _unified(array)
        found = _text_ticks(array, scale)
    if found is None:
        _refuse_all(len(array), scale.code("type"), f"{name} is of type {kind}, expected numbers")
        return np.empty(0, dtype=np.int64)
    (ticks, is_sure), scale = found, replace(scale, is_text=is_text(kind) and scale.is_time)
    faults: dict[int, Fault] = {}
    for row in np.flatnonzero(~is_sure).tolist():
        value = array[row].as_py()
        if pa.types.is_floating(kind):
            held = array.to_numpy(zero_copy_only=False)[row]
            text = f"{name} is {held}, which {held.dtype} cannot hold to the tick; store integers"
            exact = exact_ticks(name, Decimal(str(held)), scale)
            exact = (scale.code("precision"), text) if isinstance(exact, int) else exact
        else:
            exact = exact_ticks(name, value, scale)
        if isinstance(exact, int):
            ticks[row] = exact
        else:
            faults[row] = exact
    bad = np.zeros(len(ticks), dtype=np.bool_)
    bad[list(faults)] = True
    _refuse(bad, faults.__getitem__)
    return ticks


def _unified(texts: pa.Array) -> pa.Array:
    """Return texts without spaces around them, `true` and `false` as 1 and 0."""
    texts = pc.utf8_trim(texts.cast(pa.string()), " \t")
    small = pc.utf8_lower(texts)
    for number, word in enumerate(BOOLEANS):
        texts = pc.if_else(pc.equal(small, word), str(number), texts)
    return texts


def _text_ticks(texts: pa.Array, scale: Scale) -> tuple[Int64s, Bools]:
    """Convert the texts that are plain integers."""
    ticks, is_sure = np.zeros(len(texts), dtype=np.int64), np.zeros(len(texts), dtype=np.bool_)
    if scale.format is None:
        is_whole = pc.match_substring_regex(texts, f"^{_WHOLE.pattern}$")
        numbers = texts.filter(is_whole).cast(pa.int64()).to_numpy(zero_copy_only=False)
        rows = is_whole.to_numpy(zero_copy_only=False)
        ticks[rows], is_sure[rows] = _scaled(numbers, Fraction(scale.per_unit))
    return ticks, is_sure


def _scaled(values: npt.NDArray[np.integer[Any]], step: Fraction) -> tuple[Int64s, Bools]:
    """Return integers times `step`, and which results are whole and within int64."""
    limit = INT64_MAX // step.numerator
    whole, rest = np.divmod(values, step.denominator)
    is_sure = (rest == 0) & (whole <= limit)
    if values.dtype.kind == "i":
        is_sure &= whole >= -limit
    return whole.astype(np.int64) * step.numerator, is_sure


def _decimal_ticks(array: pa.Array, scale: Scale) -> tuple[Int64s, Bools]:
    """Read the low words of whole decimals; the high words may only hold the sign."""
    if (
        len(array) == 0
        or not pa.types.is_decimal128(array.type)
        or array.type.scale != scale.digits
    ):
        return np.zeros(len(array), dtype=np.int64), np.zeros(len(array), dtype=np.bool_)
    words = np.frombuffer(array.buffers()[1], dtype="<i8").reshape(-1, 2)
    low, high = words[array.offset : array.offset + len(array)].T
    ticks, is_sure = _scaled(low, Fraction(scale.per_unit, 10**scale.digits))
    return ticks, is_sure & (high == low >> 63)


def _float_ticks(array: pa.Array, scale: Scale) -> tuple[Int64s, Bools]:
    """Convert floats to the decimal of at most `scale.digits` decimals that each represents."""
    values = array.to_numpy(zero_copy_only=False)
    ten = 10.0**scale.digits
    with np.errstate(invalid="ignore", over="ignore"):
        digits = np.rint(values.astype(np.float64) * ten)
        is_sure = np.abs(digits) < 2.0 ** (np.finfo(values.dtype).nmant + 1)
        is_sure &= (digits / ten).astype(values.dtype) == values
    step = Fraction(scale.per_unit, 10**scale.digits)
    ticks, is_whole = _scaled(np.where(is_sure, digits, 0).astype(np.int64), step)
    return ticks, is_sure & is_whole


def _moment_ticks(array: pa.Array, name: str, scale: Scale) -> Int64s:
    """Return the ticks of timestamps, durations or dates."""
    kind = array.type
    unit = {pa.date32(): "day", pa.date64(): "ms"}.get(kind) or str(kind.unit)
    try:
        per_unit = ticks_per_unit(unit, scale.tick)
    except ValueError:
        _refuse_all(len(array), "time_type", f"{name} is of type {kind}; pass time_unit={unit!r}")
        return np.empty(0, dtype=np.int64)
    numbers = array.cast(pa.int32()) if unit == "day" else array.cast(pa.int64())
    values = numbers.to_numpy(zero_copy_only=False).astype(np.int64)
    ticks, is_sure = _scaled(values, per_unit)

    def fault(row: int) -> Fault:
        code = "time_precision" if int(values[row]) * per_unit % 1 else "time_range"
        text = f"{name} is {array[row]}, no whole int64 number of {scale.tick}"
        return code, f"{text}; pass tick_unit={unit!r}"

    _refuse(~is_sure, fault)
    return ticks


def plain_ticks(array: pa.Array, tick: str) -> Int64s | None:
    """Convert a column of texts as a whole; None unless all are plain and whole ticks."""
    texts = array.cast(pa.string())
    if tick == "tick" or not pc.all(pc.match_substring_regex(texts, _PLAIN)).as_py():
        return None
    unit = "ns" if tick == "ns" else "us"
    zoned = pc.match_substring_regex(texts, _ZONED)
    moments = np.empty(len(texts), dtype=np.int64)
    try:
        for rows, zone in ((zoned, "UTC"), (pc.invert(zoned), None)):
            found = texts.filter(rows).cast(pa.timestamp(unit, zone)).cast(pa.int64())
            moments[rows.to_numpy(zero_copy_only=False)] = found.to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None
    ticks, is_sure = _scaled(moments, ticks_per_unit(unit, tick))
    return ticks if is_sure.all() else None


def exact_ticks(name: str, value: object, scale: Scale) -> int | Fault:
    """Return the ticks of a number, or of a text that is a time or a number; or its fault."""
    has_format = scale.is_time and scale.format is not None and isinstance(value, str)
    if isinstance(value, str) and not has_format and _WHOLE.fullmatch(value):  # 20 times faster
        ticks = int(value) * scale.per_unit
        if abs(ticks) <= INT64_MAX:
            return ticks
    is_time = scale.is_time and isinstance(value, str)
    seconds, is_tiny = time_seconds(str(value), scale.format) if is_time else None, False
    if seconds is not None:
        if scale.tick == "tick":
            text = f"{name} is {value}, and ticks have no known length; pass time_unit='s'"
            return scale.code("type"), text
        exact, unit, per_unit = seconds, "s", ticks_per_unit("s", scale.tick)
    else:
        if value and has_format:
            text = f"{name} is {shown(value)}, expected a time of time_format={scale.format!r}"
            return scale.code("type"), text
        expected = f"a number of {scale.unit}" if scale.is_time else "a whole number"
        expected += f", or a time such as {EXAMPLE}" if scale.is_text else ""
        if value is None or value == "":
            return "null", f"{name} is empty, expected {expected}"
        number = exact_decimal(str(value))
        if number is None or isinstance(value, bool):
            what = str(value).lower() if isinstance(value, Decimal) else shown(value)
            return scale.code("type"), f"{name} is {what}, expected {expected}"
        if number and number.adjusted() > PRECISION:  # before anything expands it
            text = f"{name} is {shown(value)}, beyond int64 ticks of 1 {scale.tick}"
            return scale.code("range"), text
        is_tiny = bool(number) and number.adjusted() < -PRECISION
        exact, per_unit = Fraction(0 if is_tiny else number), Fraction(scale.per_unit)
        unit = "" if is_tiny else scale.unit
    if is_tiny or (exact * per_unit).denominator != 1:
        if not scale.is_time:
            return scale.code("precision"), f"{name} is {value}, expected a whole number"
        return scale.code("precision"), _too_fine(name, value, exact, unit, scale)
    if abs(exact * per_unit) > INT64_MAX:
        return scale.code("range"), f"{name} is {value}, beyond int64 ticks of 1 {scale.tick}"
    return int(exact * per_unit)


def _too_fine(name: str, value: object, number: Fraction, unit: str, scale: Scale) -> str:
    """Return the message for a time between two ticks; without a `unit` no tick can hold it."""
    way_out = "write fewer decimals" if scale.is_text else "write times as whole numbers"
    for tick in ("s", "ms", "us", "ns") if unit not in ("tick", "") else ():
        if (number * ticks_per_unit(unit, tick)).denominator == 1:
            way_out = f"pass tick_unit={tick!r} to keep it exactly"
            break
    return f"{name} is {value}, between two ticks of 1 {scale.tick}; {way_out}"


# Labels by their values.

_TOO_MANY = 65_536
"""Number of distinct labels at which counting ends."""


def label_text(value: object) -> str | None:
    """Return a label as text: equal numbers alike, booleans as 0 and 1; None: not known."""
    text: str = text_of(value)
    if text is None or text == "" or text.lower() == "nan":
        return None
    if (word := text.strip(" \t").lower()) in BOOLEANS:
        return str(BOOLEANS.index(word))
    number = exact_decimal(text)
    if number is None or abs(number.adjusted()) > PRECISION:
        return text
    return str(int(number)) if number % 1 == 0 else format(number.normalize(), "f")


class LabelCoding:
    """Numbers the labels of rows by their values alone; those not known become `NO_LABEL`.

    Args:
        columns: With `label_values`, all others make bad rows; with `positive_label` alone, all
            others are 0; with neither, labels are whole numbers.
        counted: Receives each new label, which becomes its place there; None: does not count.
    """

    def __init__(self, columns: ColumnNames, counted: dict[str, int] | None = None) -> None:
        unknown = columns.unknown_label or ()
        self._unknown = {*map(label_text, [unknown] if isinstance(unknown, str) else unknown)}
        self._positive = label_text(columns.positive_label)
        values, names = columns.label_values, columns.label_names
        numbers = {str(label_text(v)): names.index(v) if names else int(v) for v in values or ()}
        self._numbers, self._counted = numbers if values is not None else None, counted

    def encode(self, array: pa.Array, name: str) -> Int64s:
        """Return the numbers of labels of any type, int64 `[B]`."""
        kind = _plain_type(array.type)
        tests = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean
        if not (is_text(kind) or pa.types.is_null(kind) or any(test(kind) for test in tests)):
            _refuse_all(len(array), "type", f"{name} is of type {kind}, expected numbers or texts")
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        found = array.dictionary_encode()
        values = [*found.dictionary.to_pylist(), None]
        numbers = [self._number(label_text(value)) for value in values]
        index = pc.fill_null(found.indices, len(values) - 1).to_numpy(zero_copy_only=False)
        bad = np.array([number is None for number in numbers])[index]
        _refuse(bad, lambda row: self._fault(name, values[index[row]]))
        codes: Int64s = np.array(numbers, dtype=np.int64)[index]
        return codes

    def _number(self, text: str | None) -> int | None:
        if text is None or text in self._unknown:
            return NO_LABEL
        if self._counted is not None:
            place = len(self._counted) if len(self._counted) < _TOO_MANY else _TOO_MANY - 1
            return self._counted.setdefault(text, place)
        if self._numbers is not None:
            return self._numbers.get(text)
        if self._positive is not None:
            return int(text == self._positive)
        found = exact_ticks("", text, UNSCALED)
        return found if isinstance(found, int) else None

    def _fault(self, name: str, value: object) -> Fault:
        if self._numbers is None:
            fault = exact_ticks(name, text_of(value), UNSCALED)
            assert not isinstance(fault, int)
            return fault
        text = f"{name} is {shown(value)}, which is none of the labels {listed([*self._numbers])}"
        way_out = f"; if it means not known, pass unknown_label={text_of(value)!r}, and if it is "
        return "range", text + way_out + "a class, name all of them: label_values=..."


def label_values(
    name: str, counts: Mapping[str, int], positive: str | None, classes: int | None
) -> tuple[str, ...] | None:
    """Return the labels that are classes 0, 1, ..., from the counts of a column's labels.

    Args:
        name: The column.
        counts: Rows with each known label, in order of appearance; 0 each if not counted.
        positive: Label of class 1, one of two; None: not given.
        classes: Number of classes; None: not given.

    Raises:
        ValueError: If two labels do not show which is class 1, or the classes are too many.
    """
    total, kinds = sum(counts.values()), {*counts}
    num = " ({:,} of {:,} rows)" if total else ""
    shares = [shown(kind) + num.format(count, total) for kind, count in counts.items()]
    some = " and ".join(shares) if len(shares) < 3 else ", ".join(shares[:8])
    if positive is not None:
        first = label_text(positive)
        if len(kinds) > 2 or first not in kinds:
            text = f"positive_label={positive!r} must be one of two labels of {name}, which has"
            raise ValueError(f"{text} {len(kinds)}: {some}")
        others = kinds - {first}
        return (*others, str(first)) if others else None
    if not kinds:
        return UNCOUNTED
    for pair in PLAIN_PAIRS:
        if kinds <= {*pair} and (classes or 2) == 2:
            return pair
    if len(kinds) < 3 and (classes or 2) == 2:
        rare = min(counts, key=lambda kind: counts[kind])
        text = f"the labels of {name} are {some}, and which of them is class 1 is not known"
        raise ValueError(f"{text}; name it, such as positive_label={rare!r}")
    if len(kinds) > (classes or MOST_LABELS):
        more = "at least " if len(kinds) >= _TOO_MANY else ""
        limit = f"{MOST_LABELS} that are classes by themselves" if classes is None else f"{classes}"
        text = f"{name} has {more}{len(kinds):,} distinct labels, more than {limit}: {some}"
        raise ValueError(f"{text}, ...; if they are classes, pass classes={len(kinds)}")
    # of many, the most frequent ones have columns in scores
    is_long = len(kinds) > MOST_LABELS
    return tuple(sorted(counts, key=lambda kind: -counts[kind] if is_long else 0))


# Texts of relations and labels as classes.

MOST: Mapping[str, int] = {"relation": NUM_RELATIONS, "label": 1_000}
"""Maximum number of classes by column: one with more labels is not one of labels."""


class TextClasses:
    """Numbers texts in order of first appearance: 0, 1, and so on.

    The number of a text depends on the rows before it alone.

    Args:
        role: The column: "relation", "label", or the name of a categorical one.
        first: The first classes, from `first_classes`.
        names: The classes so far, of an earlier reader; None: the first ones.
        most: Maximum number of classes; None: that of the role.
    """

    def __init__(
        self,
        role: str,
        first: Sequence[str] = (),
        names: Iterable[str] | None = None,
        most: int | None = None,
    ) -> None:
        self._role = role
        self._most = MOST[role] if most is None else most
        self._numbers = {n: i for i, n in enumerate(first if names is None else names)}
        self.are_booleans = [*first] == [*BOOLEANS]
        """Whether the texts are `true` and `false`, which are read as 1 and 0."""

    @property
    def names(self) -> list[str]:
        """The texts of the classes 0, 1, ..."""
        return [*self._numbers]

    def encode(self, array: pa.Array, name: str) -> Int64s:
        """Return the classes of texts, int64 `[B]`; new texts get the next numbers."""
        _refuse_nulls(array, name)
        texts = array.cast(pa.string())
        empty = pc.equal(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
        _refuse(empty, lambda _: ("null", f"{name} is empty; every event needs a value"))
        classes = self._classes(texts)
        limit = (
            f"there are {self._most:,} classes already; if it is not a class, omit {self._role}=..."
        )
        _refuse(classes < 0, lambda row: ("range", f"{name} is {texts[row]}, and {limit}"))
        return classes

    def one_hot(self, array: pa.Array) -> Float32s:
        """Return values as float32 `[B, most + 1]` with a 1 each: in the slot of their class.

        The last slot is that of all other values, and of missing ones.
        """
        classes = self._classes(pc.fill_null(array.cast(pa.string()), ""))
        slots = np.zeros((len(classes), self._most + 1), dtype=np.float32)
        slots[np.arange(len(classes)), classes] = 1  # that of -1 is the last one
        return slots

    def _classes(self, texts: pa.Array) -> Int64s:
        """Return the classes of texts, -1 for empty ones and where there are `most` already."""
        found = texts.dictionary_encode()
        words: list[str] = found.dictionary.to_pylist()
        known = self._numbers
        for word in words:
            if word and word not in known and len(known) < self._most:
                known[word] = len(known)
        numbers = np.array([known.get(word, -1) for word in words], dtype=np.int64)
        classes: Int64s = numbers[found.indices.to_numpy(zero_copy_only=False)]
        return classes


def saved_classes(position: Position) -> dict[str, list[str]]:
    """Return the texts of the classes by column, as saved in a resume position; {} without any."""
    saved: dict[str, list[str]] = json.loads(str(position.get("classes") or "{}"))
    return saved


def first_classes(values: Iterable[object]) -> list[str] | None:
    """Return the initial classes if most values are texts, None if not."""
    there = [value for value in values if value not in (None, "")]
    texts = [value for value in there if isinstance(value, str) and not _ANY_INT.fullmatch(value)]
    if 2 * len(texts) <= len(there):
        return None
    return [*BOOLEANS] if all(text.lower() in BOOLEANS for text in texts) else []


# Edge features: columns of numbers, or of lists of numbers, to one finite float32 matrix.


def feature_columns(
    batch: pa.RecordBatch,
    names: Sequence[str],
    widths: Sequence[int],
    max_abs: float | None,
    fill_missing: float | None = None,
    *,
    what: str = "features",
) -> Float32s:
    """Return edge features, float32 `[B, sum(widths)]`, all finite: one column each, or lists.

    Null and NaN are replaced with `fill_missing` if it is set.
    """
    x = np.empty((len(batch), sum(widths)), dtype=np.float32)
    done = 0
    for name, width in zip(names, widths, strict=True):
        _fill(x[:, done : done + width], batch[name], name, fill_missing)
        done += width
    if fill_missing is not None:
        x[np.isnan(x)] = fill_missing
    finite = np.isfinite(x)
    if not finite.all():
        _refuse_values(~finite, x, names, widths, what)
    if max_abs is not None and (np.abs(x) > max_abs).any():
        _refuse_values(np.abs(x) > max_abs, x, names, widths, what)
    return x


def feature_names(names: Iterable[str], widths: Iterable[int]) -> list[str]:
    """Return the names of the columns of a feature matrix: `f0`, or `x[1]` in a list."""
    named = zip(names, widths, strict=True)
    return [n if width == 1 else f"{n}[{i}]" for n, width in named for i in range(width)]


def _refuse_values(
    bad: Bools, x: Float32s, names: Sequence[str], widths: Sequence[int], what: str
) -> None:
    def fault(row: int) -> Fault:
        column = int(bad[row].argmax())  # report the first one
        name, value = feature_names(names, widths)[column], x[row, column]
        if np.isfinite(value):
            return "range", f"{name} is {value}, larger than max_abs in absolute value"
        text = f"{name} is {value} in float32; {what} must be finite: fix or drop it"
        if np.isnan(value) and what == "features":
            return "nan", f"{text}, or pass fill_missing=0"
        return "nan" if np.isnan(value) else "inf", text

    _refuse(np.asarray(bad.any(axis=1)), fault)


def _fill(x: Float32s, array: pa.Array, name: str, missing: float | None) -> None:
    """Copy one column of the batch to its columns of `x`."""
    is_list = pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type)
    if missing is None or is_list:
        _refuse_nulls(array, name, NEEDED if is_list else FILLED)
    if (width := x.shape[1]) != 1 and not is_list:
        text = f"{name} is of type {array.type}, expected lists as in most of the first rows"
        _refuse_all(len(x), "width", text)
    if not is_list:
        _copy(x, array, name, missing)
        return
    lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
    text = f"{name} has {{}} values, expected {width} as in most of the first rows"
    _refuse(lengths != width, lambda row: ("width", text.format(lengths[row])))
    flat = array.flatten()
    if flat.null_count and missing is None:
        gone = flat.is_null().to_numpy(zero_copy_only=False).reshape(x.shape).any(axis=1)
        _refuse(gone, lambda _: ("null", f"{name} holds an empty value; features must be finite"))
    _copy(x, flat, name, missing)


def _copy(x: Float32s, values: pa.Array, name: str, missing: float | None) -> None:
    kind = _plain_type(values.type)
    if is_text(kind):
        values = _floats(values, name, x.shape, missing)
    elif pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        values = values.cast(pa.float64())  # otherwise NumPy makes an object array
    elif not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        _refuse_all(len(x), "type", f"{name} is of type {kind}, expected numbers")
        return
    with np.errstate(over="ignore"):
        x[:] = values.to_numpy(zero_copy_only=False).reshape(x.shape)


def _floats(texts: pa.Array, name: str, shape: tuple[int, ...], missing: float | None) -> pa.Array:
    """Return the numbers in texts as float32, null for missing ones if these are filled."""
    found = _unified(texts)
    is_number = pc.fill_null(pc.match_substring_regex(found, _FLOAT, ignore_case=True), False)
    allowed = is_number
    if missing is not None:
        allowed = pc.or_(is_number, pc.fill_null(pc.is_in(found, pa.array(MISSING)), True))

    def fault(row: int) -> Fault:
        values = found[row * shape[1] : (row + 1) * shape[1]].to_pylist()
        value = next(v for v in values if v is not None and not _IS_FLOAT.fullmatch(v))
        if value in MISSING:
            return "null", f"{name} is {value or 'empty'}; {FILLED}"
        return "type", f"{name} is {shown(value)}, expected a number"

    _refuse(~allowed.to_numpy(zero_copy_only=False).reshape(shape).all(axis=1), fault)
    return pc.if_else(is_number, found, None).cast(pa.float32())


def usual_value(values: Iterable[Any]) -> Any:
    """Return the typical value of a column: the first of the majority type, None if all missing.

    It is a list if most values are, of the length that most lists have; else of the type that most
    of the others have. Ties are resolved by first appearance.
    """
    there = [value for value in values if value is not None]
    lists = [value for value in there if isinstance(value, list)]
    if not there:
        return None
    if 2 * len(lists) + isinstance(there[0], list) > len(there):
        length = mode(map(len, lists))
        return next(value for value in lists if len(value) == length)
    others = [value for value in there if not isinstance(value, list)]
    kind = mode(map(type, others))
    return next(value for value in others if type(value) is kind)
