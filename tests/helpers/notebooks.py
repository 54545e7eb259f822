"""Executes notebooks like Jupyter, without Jupyter: all cells in one namespace.

Run as `python tests/helpers/notebooks.py NOTEBOOK...` to write cell outputs into the files.
"""

import ast
import io
import json
import sys
from contextlib import chdir, redirect_stdout
from pathlib import Path


def code_cells(notebook):
    """Return the code cells of a notebook in order."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def execute(path):
    """Return a notebook with the outputs of its cells, executed in its folder."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    names = {"__name__": "__main__"}
    with chdir(path.parent):
        for number, cell in enumerate(code_cells(notebook), start=1):
            cell["execution_count"] = number
            cell["outputs"] = _outputs("".join(cell["source"]), names, number)
    return notebook


def write(path, notebook):
    """Write a notebook in Jupyter's format."""
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _outputs(source, names, number):
    """Execute a cell; return its printed text and the value of its last line."""
    tree, value, printed = ast.parse(source), None, io.StringIO()
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)  # noqa: S102
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    text = printed.getvalue().replace(f"{Path.cwd()}/", "")  # a temporary folder, of some cells
    stream = {"name": "stdout", "output_type": "stream", "text": _lines(text)}
    result = {
        "data": _shown(value),
        "execution_count": number,
        "metadata": {},
        "output_type": "execute_result",
    }
    return [*([stream] if stream["text"] else []), *([] if value is None else [result])]


def _shown(value):
    html = getattr(value, "_repr_html_", None)
    shown = {} if html is None else {"text/html": _lines(html())}
    return shown | {"text/plain": _lines(repr(value))}


def _lines(text):
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(Path(name), execute(Path(name)))
