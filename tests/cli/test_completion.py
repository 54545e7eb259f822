"""What a shell is told to complete: commands, flags, and the values of flags that have few."""

from __future__ import annotations

import pytest


@pytest.fixture
def complete(tgflow, monkeypatch):
    """Return what a shell completes a line to, as bash asks for it."""

    def ask(line):
        monkeypatch.setenv("_TGFLOW_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        return tgflow().out.split()

    return ask


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tgflow pl", ["playback", "plan"]),
        ("tgflow run --log-t", ["--log-to"]),
        ("tgflow run --visibility ", ["event", "batch"]),
    ],
)
def test_commands_flags_and_values_are_completed(complete, line, words):
    assert complete(line) == words


def test_what_is_no_flag_is_left_to_the_shell_which_knows_files(complete):
    assert complete("tgflow info ") == []


def test_the_help_says_how_completion_is_installed(tgflow):
    assert "--install-completion" in tgflow("--help").out
