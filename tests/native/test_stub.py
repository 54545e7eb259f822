"""The type stub matches the native core."""

import ast
import re
from pathlib import Path

from tgflow import _core

STUB = Path(__file__).resolve().parents[2] / "tgflow" / "_core.pyi"
FOR_TESTS = {"FileOp", "inject_fault"}
"""Functions that only development builds have."""
SAME_TYPE = (
    (r"typing\.SupportsInt( \| typing\.SupportsIndex)?", "int"),
    (r"typing\.SupportsFloat( \| typing\.SupportsIndex)?", "float"),
    (r"\b(torch|tgflow\._core|collections\.abc|pathlib|typing_extensions)\.", ""),
    (r"tuple\[Tensor, Tensor \| None\]", "_Column"),
    (r"Sequence\[", "list["),
)
"""Types as the core's signatures and the stub spell them."""


def of_the_core():
    """Return the arguments of each function and method of the core, by name."""
    found = {}
    for name, member in vars(_core).items():
        if name.startswith("__") or name in FOR_TESTS:
            continue
        if not isinstance(member, type):
            found[name] = signature(member)
        elif issubclass(member, Exception):
            found[name] = "class"
        elif hasattr(member, "__members__"):
            found |= {f"{name}.{value}": "value" for value in member.__members__}
        else:
            found[name] = "class"
            found |= {f"{name}.{part}": x for part, x in members(member)}
    return found


def members(kind):
    for name, member in vars(kind).items():
        if isinstance(member, property):
            yield name, "property"
        elif name in ("__init__", "__len__") or not name.startswith("_"):
            text = signature(member)
            if text is not None:
                yield name, text


def signature(member):
    line = (member.__doc__ or "").splitlines()[0]
    if not re.match(r"\w+\(", line):
        return None
    for theirs, ours in SAME_TYPE:
        line = re.sub(theirs, ours, line)
    return described(ast.parse(f"def {line}: ...").body[0])


def described(function):
    """Return a function's arguments, in order, with their types."""
    given = function.args
    of_self = [x.arg for x in given.args[:1]] == ["self"]
    parts = [f"{x.arg}: {type_of(x.annotation)}" for x in given.args[of_self:]]
    by_name = [f"{x.arg}: {type_of(x.annotation)}" for x in given.kwonlyargs]
    if given.kwarg is not None:  # Unpack[...] of a TypedDict
        fields = class_of_the_stub(given.kwarg.annotation.slice.id).body[1:]
        by_name[:0] = [f"{x.target.id}: {type_of(x.annotation)}" for x in fields]
    return ", ".join([*parts, *(["*"] if by_name else []), *by_name])


def class_of_the_stub(name):
    return next(x for x in ast.parse(STUB.read_text()).body if getattr(x, "name", None) == name)


def type_of(annotation):
    return "" if annotation is None else ast.unparse(annotation)


def of_the_stub():
    found = {}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = described(node)
        elif isinstance(node, ast.ClassDef):
            found |= of_a_class(node)
        elif isinstance(node, ast.Assign):
            name, members = (ast.literal_eval(x) for x in node.value.args)
            found |= {f"{name}.{member}": "value" for member in members.split()}
    return {name: text for name, text in found.items() if not name.startswith("_IdMap")}


def of_a_class(node):
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
    if "TypedDict" in bases:
        return {}
    found = {node.name: "class"}
    bodies = [*node.body]
    if "_IdMap" in bases:
        bodies += class_of_the_stub("_IdMap").body
    for member in bodies:
        if isinstance(member, ast.AnnAssign):
            found[f"{node.name}.{member.target.id}"] = "property"
        if isinstance(member, ast.FunctionDef):
            text = "property" if member.decorator_list else described(member)
            found[f"{node.name}.{member.name}"] = text
    return found


def test_stub_matches_the_functions_and_arguments_of_the_core():
    core, stub = of_the_core(), of_the_stub()
    assert {name: (core.get(name), stub.get(name)) for name in core.keys() ^ stub.keys()} == {}
    assert {name: text for name, text in stub.items() if core[name] != text} == {}, core
