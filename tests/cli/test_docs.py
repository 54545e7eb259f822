"""README, guides, examples and notebooks work as they stand; public names can be imported."""

import ast
import json
import random
import re
import runpy
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import torch
import typer

import tgflow
from helpers.effort import slow
from helpers.notebooks import code_cells, execute
from tgflow.cli import app, main
from tgflow.run.config import fields, load_config
from tgflow.streams.kafka.config import parse_url

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
GUIDES = sorted((ROOT / "examples" / "guides").glob("*.md"))
PAGES = [README, ROOT / "CONTRIBUTING.md", *GUIDES]
NOTEBOOKS = [ROOT / "examples" / f"{x}.ipynb" for x in ("first_model", "fraud", "recommendation")]


def blocks(path, language):
    """Return the page's code blocks in `language`, in order."""
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


def commands(path):
    """Yield the words of every `tgflow` command line of a page."""
    for block in blocks(path, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["tgflow"]:
                yield words[1:]


def flags_by_command():
    group = typer.main.get_command(app.app)
    context = group.make_context("tgflow", ["info"], resilient_parsing=True)
    commands = {name: group.get_command(context, name).params for name in group.commands}
    return {
        name: {flag for param in params for flag in (*param.opts, *param.secondary_opts)}
        for name, params in commands.items()
    }


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_settings_flags_and_links_of_a_page_exist(path, tmp_path):
    for number, settings in enumerate(blocks(path, "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(settings, encoding="utf-8")
        load_config(file)
    known = flags_by_command()
    for name, *words in commands(path):
        assert name in known, f"{path.name}: tgflow {name}"
        for url in (word for word in words if name == "run" and word.startswith("kafka://")):
            parse_url(url.replace("PORT", "9092"))
        unknown = {word.split("=")[0] for word in words if word.startswith("--")} - known[name]
        assert not unknown, f"{path.name}: tgflow {name} knows no {unknown}"
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_flags_and_settings_named_in_sources_exist():
    """Flags of other programs, and those of every command, are excepted."""
    known = {"--help", "--version", "--traceback", "--shm-size", "--logdir", "--std", "--fmad"}
    known, keys = known.union(*flags_by_command().values()), {field.key for field in fields()}
    for path in (p for room in ("tgflow", "streams", "models") for p in (ROOT / room).rglob("*")):
        text = path.read_text(encoding="utf-8") if path.suffix == ".py" else ""
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+[a-z](?![{\w-])", text)) <= known
        assert set(re.findall(r"--set ([a-z]+\.\w+)", text)) <= keys


def test_files_named_in_contributing_exist():
    """Files added by a walk are excepted; all are named x."""
    pattern = re.compile(r"`((?:tgflow|csrc|streams|models|tests|examples)/[\w./-]*)`")
    named = set(pattern.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    added = {name for name in named if Path(name).stem in ("x", "x_row")}
    assert added
    assert {name for name in named - added if not (ROOT / name).exists()} == set()


LONG = ("scores-and-serving", "labels")


@pytest.mark.parametrize(
    "path", [slow(path) if path.stem in LONG else path for path in GUIDES], ids=lambda x: x.stem
)
def test_python_of_a_guide_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in blocks(path, "python"):
        for module in re.findall(r"# skip without (\w+)", code):
            pytest.importorskip(module)
        here = code.replace('"examples/data', f'"{ROOT}/examples/data')
        exec(compile(here, str(path), "exec"), names)  # noqa: S102


def test_readme_is_short_and_its_commands_and_python_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert len(README.read_text(encoding="utf-8").split()) <= 700
    first, then, *_ = blocks(README, "sh")
    assert [x.split("  ")[0] for x in first.splitlines()] == ["make demo", "make test"]
    command = then.splitlines()[0].replace("examples/data", f"{ROOT}/examples/data")
    words = command.split("#")[0].split()[1:]
    assert main([*words, "--limit", "100", "-m", "recency", "--batch-size", "50"]) == 0
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 101
    loop, own = blocks(README, "python")
    assert len(loop.splitlines()) <= 10
    capsys.readouterr()
    names = {}
    for code in (loop.replace("10_000", "2_000"), own.replace("2_000", "400")):
        exec(code.replace("examples/data", f"{ROOT}/examples/data"), names)  # noqa: S102
    assert re.fullmatch(r"2000 events  AP 0\.\d{3}\n", capsys.readouterr().out)
    assert names["model"].state.state_dict()["rows"].any()


@pytest.mark.parametrize(
    ("script", "args", "text"),
    [
        ("quickstart.py", ["--limit", 1000], "was last in touch with"),
        slow("compare_models.py", ["--limit", 600, "--epochs", 1], "TGAT"),
        ("compare.py", ["--limit", 600, "--seeds", 1], "is ahead of"),
        ("ask_a_run.py", ["--limit", 1000], "may write to"),
        slow("fraud.py", ["--limit", 2000], "by the account's last known label"),
        ("own_model.py", ["--limit", 1000], "1000 events: AP 0."),
        ("own_loop.py", ["--limit", 1000], "1000 events: AP 0."),
        ("cached_features.py", ["--limit", 1000], "the same: True"),
        ("zero_copy.py", ["--rows", 2000, "--steps", 3], "with the table the same: True"),
        slow("fraud_beside_others.py", ["--limit", 3000], "scikit-learn CPU"),
        slow("ask_over_http.py", ["--limit", 3000], "may write to"),
        slow("kill_a_rank.py", ["--limit", 4000], "the same bits: True"),
    ],
)
def test_examples_run(script, args, text, monkeypatch, capsys):
    if script == "own_loop.py":
        pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")
    if script == "ask_over_http.py":
        pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    path = ROOT / "examples" / script
    monkeypatch.setattr("sys.argv", [str(path), *map(str, args)])
    threads = tgflow.num_threads()
    runpy.run_path(str(path), run_name="__main__")
    tgflow.set_num_threads(threads)
    assert text in capsys.readouterr().out


@pytest.fixture
def days(tmp_path, monkeypatch):
    """Write payments of two files, and the labels that come a day after each."""
    monkeypatch.chdir(tmp_path)
    rows, draw = [], random.Random(0)
    for n in range(260):
        account, shop, amount = draw.randrange(12), draw.randrange(4), draw.randrange(100)
        t = 1_772_409_600 + 1_000 * n
        rows.append((f"p{n},acc_{account},shop_{shop},{t},{amount}", t, amount))
    for name, begin, end in (("", 0, 200), ("2", 200, 260)):
        part = ["id,src,dst,t,amount", *(row for row, *_ in rows[begin:end])]
        found = [
            f"{row.split(',')[0]},{amount // 90},{t + 86_400}"
            for row, t, amount in rows[max(0, begin - 86) : end - 86]
        ]
        payments = f"day{name}.csv" if name else "payments.csv"
        Path(payments).write_text("\n".join(part) + "\n")
        Path(f"found{name}.csv").write_text("\n".join(["id,is_fraud,label_time", *found]) + "\n")


@pytest.mark.slow
def test_days_of_the_guide_of_labels_run_as_printed(days, capsys):
    first, second, *_ = blocks(ROOT / "examples" / "guides" / "labels.md", "sh")
    for block in (first, second, second):
        for line in block.replace("\\\n", " ").splitlines():
            assert main(shlex.split(line)[1:]) == 0, (line, capsys.readouterr().err)
    said = capsys.readouterr()
    assert "day2.csv adds nothing" in said.err
    assert len(Path("scores.csv").read_text().splitlines()) == 261
    figures = json.loads(Path("runs/pay/metrics.json").read_text())
    late = [figures[f"prequential.edge.late.{name}"] for name in ("judged", "pending", "corrected")]
    assert (figures["num_events"], late) == (260, [173, 87, 0])


def test_examples_are_short_and_begin_with_their_command():
    for path in (ROOT / "examples").glob("*.py"):
        code = path.read_text(encoding="utf-8")
        assert len(code.splitlines()) < 150
        opening = code.split('"""')[1]
        assert f"python examples/{path.name}" in opening
        for word in ("Shows:", "rotocol", "Expect:"):
            assert word in opening, (path.name, word)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_was_executed_in_order(path):
    cells = code_cells(json.loads(path.read_text(encoding="utf-8")))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["outputs"] for cell in cells)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path):
    if path.stem == "fraud":
        pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    threads = torch.get_num_threads()
    try:
        for cell in code_cells(execute(path)):
            assert cell["outputs"], "".join(cell["source"])
    finally:
        torch.set_num_threads(threads)


def test_public_names_are_documented_under_their_module():
    tree = ast.parse(Path(tgflow.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    homes = {alias.name: node.module for node in block.body for alias in node.names}
    assert set(homes) == set(tgflow.__all__) <= set(dir(tgflow))
    for name, home in homes.items():
        assert getattr(tgflow, name) is getattr(import_module(home), name)
    with pytest.raises(AttributeError, match="module 'tgflow' has no attribute 'Graph'"):
        _ = tgflow.Graph
