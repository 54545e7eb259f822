"""Code of one's own: given by the caller at each command, never taken from a file."""

import json
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import tgflow as tg
from helpers.forged import sign_checkpoint
from helpers.live_runs import SMALL, write_features
from tgflow.base import own_code
from tgflow.checkpoint import read_manifest
from tgflow.cli import main
from tgflow.cli.errors import EXIT_CODES, INTERNAL
from tgflow.run import serving
from tgflow.run.config import ConfigError
from tgflow.run.records import checksum
from tgflow.run.stream import FlowControl

FEATURES = ("--features", "f*", "--max-bad-ratio", 0.5)
COMMANDS = {
    "predict": ["predict", "run", "--src", "3"],
    "embed": ["embed", "run", "--id", "3"],
    "explain": ["explain", "run", "--src", "3", "--dst", "4"],
    "score": ["score", "run"],
    "info": ["info", "run"],
    "serve": ["serve", "run", "--serve", "0"],
    "init": ["run", "later.csv", *FEATURES, "--init-from", "run", "-o", "new", *SMALL],
    "resume": ["run", "--resume", "-o", "run"],  # last, as it changes the run
}
NEEDS_MODEL = [name for name in COMMANDS if name not in ("score", "info")]
PAYLOADS = ("subprocess:Popen", "evil:Evil")
EVIL = "from pathlib import Path\n\nPath('MARKER').touch()\n\nclass Evil:\n    pass\n"
OWN = """
import tgflow as tg
from beside import WIDTH

class Mine(tg.TGAT):
    def __init__(self, **settings):
        super().__init__(embedding_dim=WIDTH, time_dim=4, neighbors=2, edge_x_dim=2)

class Gap:
    def update(self, positive, negative):
        self.value = float((positive - negative.amax(1)).mean())

    def compute(self):
        return self.value
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with a run that has every file, and whose stream has more events."""
    folder = tmp_path_factory.mktemp("made")
    lines = write_features(folder / "made.csv", 300).read_text().splitlines()
    lines[40] = "x,y,soon,1,2"
    (folder / "made.csv").write_text("\n".join(lines) + "\n")
    (folder / "later.csv").write_text("src,dst,t,f0,f1\n1,2,100000,0,1\n2,3,100000,1,0\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        more = ("--scores", "scores.csv", "--max-wait", "1h", "--limit", 200)
        words = ["run", "made.csv", *FEATURES, *more, "-o", "run", *SMALL]
        assert main(list(map(str, words))) == 0
    (folder / "evil.py").write_text(EVIL)
    return folder


@pytest.fixture
def forged(made, tgflow, tmp_path, monkeypatch):
    """Run a command in a copy of `made`; return its end. Commands that serve stop once started."""
    started = []

    class Popen(subprocess.Popen):
        def __init__(self, *args, **settings):
            if "tgflow.run.replica" not in args[0]:
                started.append(args)
            super().__init__(*args, **settings)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    monkeypatch.setattr(serving, "_RESTART_SECONDS", 0.05)

    def sleep(flow, seconds):
        time.sleep(0.1)
        run.patience -= 0.1
        if run.patience < 0:
            flow.stop_for("the test")

    monkeypatch.setattr(FlowControl, "sleep", sleep)

    def copied():
        for path in tmp_path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(made, tmp_path, dirs_exist_ok=True)

    def run(*words):
        ran = tgflow(*words)
        assert not Path("MARKER").exists()
        assert not started
        assert "evil" not in sys.modules
        return ran

    copied()
    run.copied, run.patience = copied, 0
    """Seconds after which a server is stopped."""
    return run


def newest():
    return max(Path("run/checkpoints").iterdir())


def rewrite_meta(change):
    """Change the meta of the newest checkpoint; all digests are valid."""
    manifest = read_manifest(newest())
    change(manifest["meta"])
    sign_checkpoint(newest(), manifest)


def set_settings(**values):
    """Change settings in a run's checkpoint and its config.toml."""
    named = {key.replace("__", "."): value for key, value in values.items()}

    def change(meta):
        meta["run"]["settings"] |= named
        meta["model"] |= {k.partition(".")[2]: v for k, v in named.items() if "model." in k}

    rewrite_meta(change)


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("command", NEEDS_MODEL)
def test_model_named_by_a_checkpoint_is_never_imported(forged, command, payload):
    settings = {"args": "touch MARKER", "shell": True}
    set_settings(model__name=payload, model__settings=settings)
    ran = forged(*COMMANDS[command])
    assert ran.code == 77, ran.err
    assert f"the model {payload!r} is not built in" in ran.err
    assert "a checkpoint has content" not in ran.err
    assert "-m (--model) path/to/file.py:Class" in ran.err
    with pytest.raises(own_code.CodeNotGiven, match="model=Class"):
        tg.open_run("run")
    with pytest.raises(ConfigError, match="no subclass of tgflow"):
        tg.open_run("run", subprocess.Popen)


@pytest.mark.parametrize("words", [["-m", "subprocess:Popen"], ["--metric", "subprocess:Popen"]])
def test_class_of_another_kind_is_not_called(forged, words):
    ran = forged(*COMMANDS["resume"], "--allow-config-change", *words)
    assert ran.code == 2
    assert re.search("no subclass of tgflow.Temporal|must have the methods update", ran.err)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_metric_named_by_a_run_is_never_imported(forged, payload):
    set_settings(learning__metrics=[payload])
    ran = forged(*COMMANDS["resume"])
    assert ran.code == 77
    assert f"the metric {payload!r} is not built in" in ran.err
    assert "as --metric path/to/file.py:Class" in ran.err


def test_config_file_names_code_that_only_flags_give(forged):
    Path("mine.py").write_text(OWN)
    Path("beside.py").write_text("WIDTH = 8\n")
    Path("c.toml").write_text('[model]\nname = "mine.py:Mine"\n[learning]\nmetrics = ["mine:Gap"]')
    words = ("run", "made.csv", *FEATURES, "-c", "c.toml", "--limit", 60, "-o", "out")
    assert "--metric path/to/file.py:Class" in (ran := forged(*words)).err
    assert ran.code == 77
    ran = forged(*words, "--metric", "mine.py:Gap")
    assert ran.code == 77
    assert "-m (--model) path/to/file.py:Class" in ran.err
    assert forged(*words, "--metric", "mine.py:Gap", "-m", "mine.py:Mine").code == 0


def test_every_command_takes_the_class_of_the_caller(forged):
    Path("beside.py").write_text("WIDTH = 8\n")
    Path("mine.py").write_text(OWN)
    words = ("made.csv", *FEATURES, "--limit", 100, "--threads", 1)
    mine = ("-m", "./mine.py:Mine")
    shutil.rmtree("run")
    started = forged("run", *words, *mine, "-o", "run", "--scores", "s.csv")
    assert started.code == 0, started.err
    Path("moved").mkdir()
    for name in ("mine.py", "beside.py"):
        Path(name).rename(f"moved/{name}")
    for command in NEEDS_MODEL:
        more = ["--limit", "120"] if command == "resume" else []
        assert forged(*COMMANDS[command], *more).code == 77
        ran = forged(*COMMANDS[command], *more, "-m", "moved/mine.py:Mine")
        assert ran.code == 0, ran.err


def leaves(value, path=()):
    """Yield the path of every string, null and empty list."""
    if value is None or value == [] or isinstance(value, str):
        yield path
    inner = enumerate(value) if isinstance(value, list) else ()
    for key, item in value.items() if isinstance(value, dict) else inner:
        yield from leaves(item, (*path, key))


def replaced(value, path, text):
    if not path:
        return [text] if value == [] else text
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], text)
    return copy


def places():
    """Yield (file, place in it) of every string that a run reads."""
    yield from (("manifest", path) for path in leaves(read_manifest(newest())["meta"]))
    for file in sorted(Path("run").rglob("*.json*")):
        if file.name != "manifest.json":
            for number, line in enumerate(documents(file)[:2]):
                yield from ((file, (number, *path)) for path in leaves(json.loads(line)))
    strings = re.finditer(r'"[^"\n]*"', Path("run/config.toml").read_text())
    yield from ((Path("run/config.toml"), found.span()) for found in strings)


def documents(file):
    text = file.read_text()
    return text.splitlines() if file.suffix == ".jsonl" else [text]


def forge(file, place, text):
    """Replace one string; digests and checksums are valid."""
    if file == "manifest":
        manifest = read_manifest(newest())
        sign_checkpoint(newest(), manifest | {"meta": replaced(manifest["meta"], place, text)})
    elif file.suffix == ".toml":
        old, (start, stop) = file.read_text(), place
        file.write_text(old[:start] + json.dumps(text) + old[stop:])
    else:
        lines = documents(file)
        value = replaced(json.loads(lines[place[0]]), place[1:], text)
        if value.pop("crc32", None) is not None and place[1:] != ("crc32",):
            value["crc32"] = checksum(value)
        lines[place[0]] = json.dumps(value, separators=(",", ":"))
        file.write_text("\n".join(lines) + "\n")


def assert_harmless(forged, where, text, commands):
    forged.copied()
    forge(*where, text)
    for command in commands:
        ran = forged(*COMMANDS[command])
        assert ran.code in EXIT_CODES, (where, command, ran.err)
        assert ran.code != INTERNAL, (where, text, command, ran.err)


def test_strings_of_files_run_nothing(forged):
    """A few of the strings, with a few commands."""
    found, chance = list(places()), random.Random(3)
    assert {"manifest", "stream.json", "config.toml", "scores.json"} <= {
        getattr(file, "name", file) for file, _ in found
    }
    for where in chance.sample(found, 12):
        command = chance.choice(["predict", "info", "resume", "init"])
        assert_harmless(forged, where, chance.choice(PAYLOADS), [command])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_every_string_of_every_file_runs_nothing(forged, payload):
    commands, chance = [name for name in COMMANDS if name != "serve"], random.Random(4)
    found = list(places())
    for where in found:
        assert_harmless(forged, where, payload, commands)
    for where in chance.sample(found, 10):  # which starts a process
        assert_harmless(forged, where, payload, ["serve"])


@pytest.mark.parametrize(
    ("command", "part", "value"),
    [
        *((command, "model", float("nan")) for command in NEEDS_MODEL if command != "serve"),
        pytest.param("serve", "model", float("nan"), marks=pytest.mark.slow),
        ("predict", "model", float("inf")),
        ("predict", "state", float("inf")),
        ("resume", "optimizer", float("nan")),
    ],
)
def test_values_that_are_not_finite_are_refused(forged, command, part, value):
    file, manifest = newest() / f"{part}.safetensors", read_manifest(newest())
    tensors = load_file(file)
    name = next(name for name, x in tensors.items() if x.is_floating_point() and x.numel() > 1)
    tensors[name].view(-1)[1] = value
    save_file(tensors, file)
    sign_checkpoint(newest(), manifest)
    forged.patience = 60
    ran = forged(*COMMANDS[command])
    assert ran.code == 76, ran.err
    assert f"{part}: {name} has values that are not finite" in ran.err
