"""No argument from Python makes the native core read or write memory that is not its own."""

from contextlib import redirect_stdout

from helpers.hostile import attempt_all, cases, entries
from helpers.worlds import run_apart


def test_hostile_cases_cover_every_core_function():
    assert entries() == set(cases())


def attempt(_, path):
    """Print each attempt before it is made: after a crash the last line names it."""
    with path.open("w") as file, redirect_stdout(file):
        return attempt_all()


def test_every_wrong_argument_raises_a_readable_error(tmp_path):
    [end] = run_apart(1, attempt, tmp_path / "said")
    lines = (tmp_path / "said").read_text().splitlines()
    bad = [
        f"{lines[i - 1]}: {line}"
        for i, line in enumerate(lines)
        if line[4:5].isupper() and ("ACCEPTED" in line or "NOT AS A REFUSAL" in line)
    ]
    assert not bad, "\n".join(bad)
    assert (end.code, end.result) == (0, 0), f"after {lines[-1:]}: {end.error}"
