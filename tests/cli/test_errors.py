"""Exit code and message of each error: what is wrong, the value received, and the fix."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from helpers.effort import slow
from helpers.live_runs import write_events, write_features
from tgflow.cli.errors import EXIT_CODES, MEMORY, exit_code, explain
from tgflow.graph.tables import DamagedFile
from tgflow.plan.in_order import BatchError
from tgflow.run.config import ConfigError

NODES = "--node-features nodes.parquet --set graph.node_id=who"
PLAIN = "run plain.log --no-header --columns src,dst,amount,t --sep ;"
ROWS = "run features.csv --features f*"
FEW = "--epochs 1 --dim 8 --neighbors 3 --batch-size 50 --threads 1"
TGAT = f"train made.csv -m tgat {FEW}"
KAFKA = "run -s kafka://localhost:9092/edges"

USAGE = [
    ("run made.csv --batch-size 0", "learning.batch_size must be a"),
    ("run made.csv --model tgm", "--model: model.name must be one of "),
    ("run made.csv --model-set x=3", "'num_relations', 'pair_features'"),
    ("run made.csv --model-set heads=3", "heads must divide embedding_dim"),
    ("run made.csv -c bad.toml", "did you mean --learning-rate?"),
    ("run made.csv --set order.bufer_bytes=5", "--set: there is no", "; did you mean order.buffer"),
    ("run made.csv --set order.buffer_bytes=0", "--set order.buffer_bytes: order.buffer"),
    ("run made.csv --set seed", "--set: 'seed' is not of the form KEY=VALUE"),
    ("run made.csv -m self:Yours", "--model: No module named 'self'; a file is given by its path"),
    ("run made.csv -m ./no_file.py:Yours", "no_file.py does not exist"),
    ("run made.csv -m subprocess:Popen", "subprocess:Popen is no subclass of tgflow.TemporalModel"),
    ("compare made.csv --models recency,own=math:sin", "--models: math has no class 'sin'"),
    ("run made.csv -s other.csv", "FILE is", "--stream other.csv"),
    ("run --strem x", "No such option: --strem"),
    ("fly", "No such command"),
    ("convert ogb . --out data", "convert supports tgb and tgbseq, got 'ogb'"),
    # Layout of files
    (f"{PLAIN[:-1]} ab", "sep must be one character"),
    ("run plain.log --sep ; --columns src,src,t", "'src' is there twice"),
    (f"{PLAIN} --time-unit ms --set stream.tick_unit=s", "--set stream.tick_unit=s is coarser"),
    (f"{PLAIN} --format parquet --no-header", "are for delimited text"),
    # Rules between settings, of each command
    (f"{PLAIN} --follow --sort", "--sort: a file that is followed has no end"),
    ("train made.csv --protocol prequential/1", "--protocol prequential/1 is for tgflow run"),
    ("compare made.csv --protocol dyglib/1 --frozen-at 0.5", "--frozen-at: --protocol dyglib/1 tr"),
    ("info pay.csv --node-columns age", "--node-columns requires --node-features"),
    ("run made.csv --order-timeout soon", "--order-timeout: order.order_timeout: a span of time"),
    ("run s3://bucket/x.csv", "unknown scheme; streams are kafka:// and paths: mount an object st"),
    # Sampling
    ("run made.csv --set learning.strategy=window", "strategy window needs a span: its width"),
    ("run made.csv --set learning.span=5", "strategy recent takes no span, got 5"),
    # Scores and serving
    ("run made.csv --scores s.xlsx", "--scores: 's.xlsx' has an unsupported ending; use .pa"),
    ("run made.csv --scores s.csv.gz", "'s.csv.gz' has an unsupported ending"),
    ("run made.csv --scores amqp://host/q", "--scores: 'amqp://host/q' has an unknown scheme"),
    ("run made.csv --scores kafka://host", "--scores: "),
    ("run made.csv --max-wait soon", "--max-wait: scores.max_wait: a span of time is more than"),
    ("run made.csv --serve 0.0.0.0:0", "clients must show a token: set TGFLOW_SERVE_TOKEN"),
    ("run made.csv --serve http", "--serve: 'http' is neither a port nor HOST:PORT"),
    ("run made.csv --serve 0 --set serve.token_file=short", "at least 16 characters"),
    ("run made.csv --log-to mlflow", "--log-to"),
    # Features
    ("run made.csv --edge-table disk", "--edge-table: the stream has no edge features"),
    (f"{ROWS} --edge-table disk --edge-path no/x.rows", "no is no directory"),
    (f"{ROWS} --edge-table disk --edge-path made.csv", "made.csv exists already"),
    ("train features.csv --features f* --edge-table disk --edge-path made.csv",
     "made.csv exists already"),
    (f"{ROWS} --edge-table disk --edge-cache 9", "--edge-cache 9: a row of edge features takes 8"),
    (f"{ROWS} --edge-cache 'a lot'", "--edge-cache: tables.edge_cache: a size is bytes"),
    (f"{ROWS} --edge-cache 120%", "at most 100%, got '120%'"),
    # Tasks
    (f"train fraud.csv {FEW} --task edge", "target must name the labels of the task edge"),
    (f"train fraud.csv {FEW} --target is_fraud", "is a setting of --task edge or --task n"),
    # Training
    (f"train made.csv {FEW} --eval-neighbors 7,x", "learning.eval_neighbors must be a list"),
    (f"train made.csv {FEW} --eval-neighbors 0", "--eval-neighbors: learning.eval_neighbors must"),
    (f"{TGAT} --reuse-staleness -1", "--reuse-staleness: reuse.staleness must be"),
    ("compare -s made.csv --models nothing", "there is no model 'nothing'"),
    ("compare -s made.csv --models tgn,tgn", "tgn is repeated; give one a label of its own: o"),
    ("compare -s made.csv --models ,", "--models requires names"),
    ("compare -s made.csv --models tgn --model-set tgat.dim=3", "tgat does not take part"),
    ("compare -s made.csv --models tgn --model-set color=3", "none of the models has a setting"),
    ("run made.csv --device cuda:x", "--device: run.device must be cpu, cuda or cuda:N, got"),
    # Ranks
    ("run made.csv --nproc 0", "a world has 1 to 64 ranks, got 0"),
    ("run made.csv --nproc 65", "a world has 1 to 64 ranks, got 65"),
    # Paths
    ("info 'caf\udce9.csv'", "'caf\\udce9.csv' has bytes that are not UTF-8"),
    ("compare pipe.csv --models recency", "compare reads the stream twice: write the pipe to a"),
    ("run made.csv --resume", "--resume needs the run's directory"),
    ("train made.csv --resume", "--resume needs the run's directory"),
]  # fmt: skip
KAFKA_USAGE = [
    (f"{KAFKA} --kafka-option x", "'x' is not of the form KEY=VALUE"),
    (f"{KAFKA} --kafka-option check_crcs=false",
     "the Kafka option check_crcs is always True"),
]  # fmt: skip
DATA = [
    ("run made.csv --node-features s3://b/x.csv", "'s3://b/x.csv' is not a path; mount an object"),
    ("run made.csv --src from", "'from'"),
    ("run made.csv --task edge --target kind", "with --target ..."),
    ("info a.csv", "is the first line a row? --no-header --columns src,dst,t reads it as one"),
    ("info src=5.csv", "src=5.csv: there is no column 'dst' or 't'", "choose with --dst ..."),
    ("info twice.csv --src a", "2 columns are named 'a'", "--header --columns a,a.1,t, and"),
    ("run pay.csv --node-features pipe.csv", "pipe.csv: a table cannot be read from a named pipe"),
    ("info b.csv", "is there another separator? --sep ';'; or is the first"),
    (f"train made.csv {FEW} --limit 2", "leaves no"),
    (f"train made.csv {FEW} --eval-neighbors 7,7", "--eval-neighbors: TGN takes fan-outs for as "
     "many hops as its own"),
    (f"{TGAT} --reuse-staleness 4 -m tgn", "leave reuse out (--reuse-staleness 0)"),
    (f"{TGAT} --reuse-staleness 4 --set learning.strategy=uniform", "reuse is for strategy recent"),
    (f"{TGAT} --reuse-staleness 4 --slices 2", "slices (--slices 1)"),
    (f"train fraud.csv {FEW} --task edge --target nothing", "there is no column 'nothing'"),
    ("run pay.csv --node-features nodes.parquet", "no column 'id'; the columns are who, balance, "
     "age, city: choose with --set graph.node_id ..."),
    (f"run pay.csv {NODES}", "column 'city' holds no numbers; the columns are balance, age, city: "
     "choose numbers with --node-columns ..."),
    (f"run pay.csv {NODES} --node-columns age --direction bipartite", '"src" and "dst", '
     "--set graph.node_side ..."),
    (f"run pay.csv {NODES} --node-columns age --set graph.node_side=city",
     "a side is \"src\" or \"dst\", got 'here'"),
]  # fmt: skip
NO_INPUT = [
    ("run", "name a file of events: --stream events.csv"),
    ("run -s nowhere.csv", "no file or folder 'nowhere.csv'"),
    ("run pay.csv --node-features no.csv", "there is no file 'no.csv'; --node-features takes"),
    ("run made.csv --serve 0 --set serve.token_file=none", "none: No such file"),
    ("convert tgb . --out data", "_edgelist*.csv"),
    ("compare --report nowhere", "nowhere has no finished comparison; make one: tgflow "
     "compare --out nowhere"),
]  # fmt: skip
IO = [
    ("run made.csv -o taken", "holds files already", "--resume"),
    ("run made.csv -o taken --nproc 2", "holds files already"),
    ("run made.csv -o taken --resume", "holds files already"),
    ("train made.csv -o taken", "if it is a run, resume it with --resume"),
    ("train made.csv -o taken --overwrite", "which is no file of a run: --overwrite removes runs"),
]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Return a folder with the files used in commands."""
    folder = tmp_path_factory.mktemp("files")
    write_events(folder / "made.csv")
    write_events(folder / "none.csv", size=0)
    write_features(folder / "features.csv", 300)
    pay = "".join(f"acc_{i % 9},shop_{i * i % 7},{60 * i}\n" for i in range(100))
    fraud = "".join(f"a{i % 20},s{i % 9},{3600 * i},{i % 4},{i % 5 // 4}\n" for i in range(99))
    layout = "".join(f"{i % 10};{10 + i % 4};{i * 250};{9_000_000 + i}\n" for i in range(99))
    texts = {
        "plain.log": layout,
        "pay.csv": "src,dst,t\n" + pay,
        "fraud.csv": "src,dst,t,amount,is_fraud\n" + fraud,
        "nodes.csv": "node,label\n" + "".join(f"a{i},{i % 2}\n" for i in range(20)),
        "open.csv": 'src,dst,t\n1,2,1\n1,"2,2\n1,2,3\n',
        "late.csv": "src,dst,t\n1,2,10\n1,2,5\n1,2,20\n",
        "bad.csv": "src,dst,t\n1,,1\n1,,2\n",
        "a src=b.csv": "src,dst,t\n1,,1\n1,,2\n",
        "words.csv": "src,dst,t\n1,2,x\n1,2,y\n",
        "a.csv": "1,2,3\n4,5,6\n",
        "b.csv": "1;2;3\n4;5;6\n",
        "src=5.csv": "src,x\n1,2\n",
        "twice.csv": "a,a,t\n1,2,3\n",
        "bad.toml": "[learning]\nlearning_rat = 1\n",
        "self.py": "",
        "short": "secret",
        "long": "0123456789abcdef",
        "a-file": "",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "taken").mkdir()
    (folder / "taken" / "notes.csv").write_text("mine\n")
    names = [*(f"acc_{i}" for i in range(9)), *(f"shop_{i}" for i in range(7))]
    columns = {"who": names, "balance": [1.5] * 16, "age": [*range(16)], "city": ["here"] * 16}
    pq.write_table(pa.table(columns), folder / "nodes.parquet")
    return folder


@pytest.fixture
def refused(tgflow, template, tmp_path, monkeypatch):
    """Return a function that runs a command, and returns its exit code and its error."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    os.mkfifo(tmp_path / "pipe.csv")
    monkeypatch.delenv("TGFLOW_SERVE_TOKEN", raising=False)
    # A command that imports self.py would leave __pycache__ beside it.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def run(line):
        ran = tgflow(*shlex.split(line))
        assert "Traceback" not in ran.err
        assert not ran.out
        return ran.code, plain(ran.err)

    return run


def plain(text):
    """Return text without colors, frames and line breaks."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", re.sub(r"\x1b\[[0-9;]*m", "", text))


def table(rows, code):
    return [pytest.param(line, code, words, id=line) for line, *words in rows]


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [*table(USAGE, 2), *table(DATA, 65), *table(NO_INPUT, 66), *table(IO, 74)],
)
def test_error_has_an_exit_code_and_names_the_fix(refused, line, code, words):
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    found, err = refused(line)
    assert [word for word in words if word not in err] == [], err
    assert found == code, err
    if code != 65:  # found before anything is created
        assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before


@pytest.mark.parametrize(("line", "code", "words"), table(KAFKA_USAGE, 2))
def test_error_in_kafka_settings_names_the_fix(refused, line, code, words):
    pytest.importorskip("kafka", reason="kafka-python is not installed")
    found, err = refused(line)
    assert (found, words[0] in err) == (code, True), err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("line", "code", "word"),
    [
        ("run words.csv", 65, "words.csv, line 2: t is 'x', expected a number of s"),
        ("run bad.csv", 65, "bad.csv: all 2 rows are bad"),
        ("run 'a src=b.csv'", 65, "(as a src=b.csv, line 2: dst is empty"),
        ("run bad.csv", 65, "are in runs/bad-tgn/dead-letters"),
        ("run open.csv -m recency", 65, "open.csv, line 3: a quote opens here that is not closed "
         "within --set checks.max_record_bytes=1048576 or to the end of the file"),
        ("run late.csv -m recency", 65, "with --sort, or pass --late dead_letter or --late drop"),
        ("run made.csv -m recency -o out --scores a-file/s.csv", 74, "/a-file: File exists"),
        ("run made.csv -m recency -o out --scores taken/notes.csv", 74,
         "notes.csv exists already"),
        ("run fraud.csv --features amount --task edge --target is_fraud -m dygformer", 2,
         "--task edge: DyGFormer makes no embeddings"),
        slow("run made.csv --serve 203.0.113.7:0 --set serve.token_file=long", 74, "cannot listen"),
    ],
)  # fmt: skip
def test_error_after_the_start_of_a_run_names_the_fix(refused, line, code, word):
    found, err = refused(line)
    assert (found, word in err) == (code, True), err
    assert Path("taken/notes.csv").read_text() == "mine\n"


@pytest.mark.parametrize("out", ["a-file/out", "/proc/none/out", "/dev/null"])
@pytest.mark.parametrize("more", ["", "--resume"])
def test_unwritable_directory_is_refused_before_training(refused, out, more):
    code, err = refused(f"run made.csv -o {out} {more}")
    assert code == 74
    assert "tgflow: " in err
    assert "learning from" not in err


@pytest.mark.parametrize("command", ["run", "train"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_is_refused_before_anything_is_created(refused, command):
    code, err = refused(f"{command} made.csv --out out --device cuda")
    assert (code, err.startswith("tgflow: --device cuda: torch ")) == (2, True), err
    assert not Path("out").exists()


def test_traceback_is_shown_on_demand(tgflow, monkeypatch):
    with pytest.raises(ConfigError):
        tgflow("run", "-s", "x", "--batch-size", "0", "--traceback")
    monkeypatch.setenv("TGFLOW_TRACEBACK", "1")
    with pytest.raises(ConfigError):
        tgflow("run", "-s", "x", "--batch-size", "0")


CODES = {
    2: "run.config.ConfigError run.restore.StrictResume base.peers.WorldError "
    "streams.errors.SourceRefused",
    65: "streams.errors.TooManyBadRecords streams.errors.LateEvent streams.errors.StreamError",
    66: "streams.errors.SourceExpired streams.errors.SourceTruncated "
    "streams.errors.SourceMismatch streams.errors.NoTopicError",
    70: "streams.ingest.accounting.Unbalanced train.finite.TrainingDiverged "
    "base.peers.RanksDisagree",
    71: "run.stream.MemoryLimit",
    73: "checkpoint.durable.errors.Locked",
    74: "checkpoint.durable.errors.DiskFull checkpoint.CheckpointNotCommitted "
    "checkpoint.CheckpointDurabilityUnknown",
    75: "streams.errors.SourceUnavailable base.peers.PeerLost",
    76: "streams.errors.SourceCorrupt checkpoint.durable.errors.LogCorrupt "
    "checkpoint.durable.errors.LogVersion run.micro_batch_ends.EndsDamaged "
    "run.scores.ScoresLost report.compare.outcome.OutcomeDamaged "
    "checkpoint.NoValidCheckpoint checkpoint.CheckpointVersion "
    "checkpoint.CheckpointDamaged",
    77: "checkpoint.UntrustedCheckpoint",
}
"""Classes of errors in tgflow by exit code."""


@pytest.mark.parametrize(
    ("code", "name"), [(code, name) for code, names in CODES.items() for name in names.split()]
)
def test_class_of_errors_has_its_exit_code(code, name):
    module, _, kind = name.rpartition(".")
    error = getattr(import_module(f"tgflow.{module}"), kind)
    assert exit_code(error.__new__(error)) == code
    assert code in EXIT_CODES


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (KeyError("x"), 70, "KeyError: 'x' (a fault in tgflow; --traceback shows where)"),
        (OSError(28, "No space left on device"), 74, "[Errno 28] No space left on device"),
        (FileNotFoundError(2, "No such file", "x"), 66, "x: No such file"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..."),
            MEMORY,
            "the GPU has no memory left: CUDA out of memory. Tried to allocate 2.00 GiB; "
            "set a smaller --set graph.device_budget=SIZE, ",
        ),
        (MemoryError("out of memory: the native core asked for 64 bytes"), MEMORY,
         "out of memory: the native core asked for 64 bytes; set a smaller --batch-size, "),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate"), MEMORY,
         "[enforce fail] DefaultCPUAllocator: can't allocate; set a smaller "),
        (MemoryError("asked cuda:0 for 9 bytes; set a smaller device_budget"), MEMORY,
         "asked cuda:0 for "),
    ],
)  # fmt: skip
def test_builtin_error_has_its_exit_code_and_one_line(error, code, text):
    assert exit_code(error) == code
    assert explain(error).startswith(text)


def test_failed_batch_has_the_exit_code_of_its_file_or_memory():
    for cause, code in (
        (DamagedFile("row 7 of edge-x.rows is damaged"), 76),
        (OSError(5, "cannot read edge-x.rows"), 74),
        (MemoryError("out of memory: the native core asked for 64 bytes"), MEMORY),
        (ValueError("a bug"), 70),
    ):
        error = BatchError(f"preparing batch 3 of epoch 0 failed: {cause}")
        error.__cause__ = cause
        assert exit_code(error) == code
        assert str(cause) in explain(error)
        assert ("a fault in tgflow" in explain(error)) == (code == 70)
