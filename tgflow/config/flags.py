"""Messages of the library for the command line: settings by their flags."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Mapping

from tgflow.config.fields import fields

_VALUE = re.compile(r"(?<![-\w])([a-z]\w*)=(?:'([^']*)'|\"([^\"]*)\"|(True)\b|(\.\.\.)|(\w+))")
_NAME = re.compile(r"(?<![-\w.'\"])[a-z]+(?:_[a-z]+)+(?![-\w.'\"=(])")


def in_flags(text: str) -> str:
    """Return a message with settings as flags: `id_kind='string'` becomes `--id-kind string`.

    Values are quoted for a shell. `False` becomes `--no-NAME`. Names of one word are settings only
    where a value follows; other words stay.
    """
    return _NAME.sub(_name, _VALUE.sub(_assignment, text))


def _assignment(match: re.Match[str]) -> str:
    flag = _flags().get(match[1])
    if flag is None:
        return match[0]
    value = match[2] or match[3] or match[6] or ""
    if value == "False":
        return f"--no-{flag.removeprefix('--')}"
    shown = f"{flag} {value and shlex.quote(value)}".rstrip()
    return shown + (match[5] or "").replace("...", " ...")


def _name(match: re.Match[str]) -> str:
    return _flags().get(match[0], match[0])


@functools.cache
def _flags() -> Mapping[str, str]:
    """Return the flag of each setting by its name, where all settings of a name have the same."""
    found: dict[str, set[str]] = {}
    for field in fields():
        if not field.setting.expert:
            found.setdefault(field.name, set()).add(field.flags[0])
    return {name: flags.pop() for name, flags in found.items() if len(flags) == 1}
