"""Classes given by the caller. A name from a file selects one of them, and never imports a module.

Checkpoints, a run's settings and configuration files are data from elsewhere, so the models and
metrics that they name are built in, or classes that the caller has given to this process.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple, Self


class CodeNotGiven(ValueError):
    """Raised for a class that a file names and the caller has not given."""

    @classmethod
    def of(cls, name: str, flag: str, in_python: str) -> Self:
        """Return the error for a class that is needed, with the ways to give it."""
        return cls(
            f"{name} is not built in, and code that a file names is never imported: if you trust "
            f"it, give it each time, as {flag} path/to/file.py:Class, or package.module:Class if "
            f"it is installed; in Python {in_python}"
        )


class _Given(NamedTuple):
    kind: type[Any]
    reference: str


_given: dict[str, _Given] = {}


def load(reference: str) -> type[Any]:
    """Import `path/to/file.py:Class`, or `package.module:Class` from the path of modules.

    Modules beside the file can be imported by it.
    """
    place, _, name = reference.rpartition(":")
    file = Path(place).absolute()
    if not place.endswith(".py"):
        try:
            module = import_module(place)
        except (ModuleNotFoundError, TypeError, ValueError) as error:
            if isinstance(error, ModuleNotFoundError) and not f"{place}.".startswith(
                f"{error.name}."
            ):
                raise  # of an import within the module
            raise ValueError(
                f"{error}; a file is given by its path, such as ./file.py:{name or 'Class'}"
            ) from None
    elif not file.is_file():
        raise ValueError(f"{file} does not exist")
    else:
        spec = spec_from_file_location(str(file), file)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses and `inspect` look there
        sys.path.append(str(file.parent))
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(file.parent))
    kind = getattr(module, name, None)
    if not isinstance(kind, type):
        raise ValueError(f"{place} has no class {name!r}")
    return kind


def give(reference: str) -> str:
    """Import a class, and return the name by which the settings of a run refer to it.

    That is `module:Class`, and for `path/to/file.py:Class` `file:Class`.
    """
    place, _, name = reference.rpartition(":")
    known = f"{Path(place).stem}:{name}" if place.endswith(".py") else reference
    if place.endswith(".py"):
        reference = f"{Path(place).absolute()}:{name}"
    before = _given.get(known)
    if before is not None and before.reference != reference:
        raise ValueError(f"{before.reference} and {reference} have one name; rename a file")
    _given[known] = _Given(load(reference), reference)
    return known


def find(name: str) -> type[Any] | None:
    """Return the class given under the name of `give`; None without one."""
    return _given[name].kind if name in _given else None


def reference_of(name: str) -> str | None:
    """Return the reference from which another process of this caller loads a given class."""
    return _given[name].reference if name in _given else None


def forget() -> None:
    """Forget what was given, as each command is given its own."""
    _given.clear()
