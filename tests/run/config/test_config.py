"""Settings: file, flags, and error messages."""

import json
import logging
import re
from typing import Literal, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tgflow.base.setting import alternatives
from tgflow.base.units import UNITS
from tgflow.graph.tables.placements import PLACEMENTS
from tgflow.models import TGNConfig
from tgflow.run.config import (
    Config,
    ConfigError,
    StreamConfig,
    fields,
    in_flags,
    load_config,
    model_settings,
    to_toml,
    validate_model,
)
from tgflow.run.config.fields import by_key
from tgflow.run.config.rules import RULES, check_rules
from tgflow.run.log import RunLog, library_messages
from tgflow.streams.files.formats import FORMATS
from tgflow.streams.ingest.config import OrderConfig
from tgflow.streams.rows.schema import Checks
from tgflow.train import ContinualConfig
from tgflow.train.config import Reuse
from tgflow.train.protocols import PROTOCOLS


def test_flags_override_the_file_and_the_file_overrides_defaults(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("[learning]\nbatch_size = 7\nlearning_rate = 1\n")
    config = load_config(file, {"learning.batch_size": 9})
    assert config.continual.batch_size == 9
    assert config.continual.learning_rate == 1.0
    assert config.offline.batch_size == 9
    assert config.model.name == "tgn+pairs"


def test_offline_trainer_reads_the_reuse_section(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("[reuse]\nstaleness = 8\n")
    config = load_config(file, {"reuse.refresh": 0.5})
    assert config.offline.reuse == config.reuse == Reuse(staleness=8, refresh=0.5)
    assert "reuse" not in to_toml(config).partition("[learning]")[2].partition("[reuse]")[0]
    file.write_text("[learning.reuse]\nstaleness = 8\n")
    with pytest.raises(ConfigError, match=r"reuse is a section of its own: \[reuse\]"):
        load_config(file)


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


@settings(max_examples=20)
@given(
    path=texts,
    features=st.none() | st.lists(texts),
    speed=st.none() | st.floats(min_value=1e-300, max_value=1e300),
    sort=st.booleans(),
)
def test_written_config_round_trips(tmp_path_factory, path, features, speed, sort):
    stream = StreamConfig(path=path, features=features, speed=speed, sort=sort)
    config = Config(stream=stream, order=OrderConfig(late="error"))
    file = tmp_path_factory.mktemp("config") / "run.toml"
    file.write_text(to_toml(config), encoding="utf-8")
    assert load_config(file) == config


def test_every_setting_is_written_with_its_description():
    text = to_toml(Config())
    for field in fields():
        assert field.help
        if field.key != "model.settings":
            assert field.name in text
            assert f"# {field.help}" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[learnin]\na = 1", "unknown section [learnin]; did you mean learning? (sections are"),
        ("[learning]\nlearning_rat = 1", "learning.learning_rat; did you mean learning_rate?"),
        ("[run]\nbatch_size = 1", "unknown key run.batch_size; did you mean learning.batch_size?"),
        ("[learning]\nzzz = 1", "unknown key learning.zzz ([learning] has seed,"),
        ('[learning]\nlearning_rate = "a"', '_rate must be a number more than 0, got "a"'),
        ("[model]\ndim = 1.5", "model.dim must be a whole number at least 1, got 1.5"),
        ("[learning]\nval_ratio = 1.0", "must be a number more than 0 and less than 1, got 1.0"),
        ("[learning]\nseed = true", "learning.seed must be a whole number at least 0, got true"),
        ("[stream]\nfeatures = [1]", "stream.features must be a list of strings, got 1"),
        ('[learning]\nvisibility = "all"', 'must be one of "event", "batch", got "all"'),
        ("[learning]\nmrr_negatives = 0", 'at least 1 and at most 1,000,000 or "all", got 0'),
        ("learning = 3", "[learning] must be a section, got 3"),
        ("[learning", "is not valid TOML"),
    ],
)
def test_invalid_file_is_named_with_key_value_and_fix(tmp_path, text, message):
    file = tmp_path / "run.toml"
    file.write_text(text + "\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


def test_library_checks_the_same_ranges_with_the_same_messages():
    with pytest.raises(ValueError, match=r"^batch_size must be at least 1, got 0$"):
        ContinualConfig(batch_size=0)
    with pytest.raises(ValueError, match="max_bad_ratio must be at least 0 and at most 1, got 2"):
        Checks(max_bad_ratio=2)


def test_model_has_its_own_settings(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('[model]\nname = "tgn"\ndim = 8\naggregator = "mean"\n')
    config = load_config(file, {"model.settings": {"memory_dim": 4}})
    assert config.model.settings == {"aggregator": "mean", "memory_dim": 4}
    settings = validate_model(TGNConfig, "tgn", model_settings(config.model), {"edge_x_dim": 3})
    assert settings == TGNConfig(
        memory_dim=4, time_dim=8, embedding_dim=8, aggregator="mean", edge_x_dim=3
    )
    file.write_text(to_toml(config))
    assert load_config(file) == config


@pytest.mark.parametrize(
    ("stated", "text"),
    [
        ({"aggregato": "mean"}, "tgn has no setting 'aggregato'; did you mean aggregator?"),
        ({"aggregator": "sum"}, '[model] aggregator must be one of "last", "mean", got "sum"'),
        ({"layers": "2"}, '[model] layers must be a whole number at least 1, got "2"'),
        ({"memory_dim": 0}, "[model] memory_dim must be a whole number at least 1, got 0"),
        ({"heads": 3}, "tgn is inconsistent: heads must divide embedding_dim"),
    ],
)
def test_wrong_setting_of_a_model_is_named(stated, text):
    with pytest.raises(ConfigError) as caught:
        validate_model(TGNConfig, "tgn", stated, {})
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("stream.format", FORMATS),
        ("stream.time_unit", UNITS),
        ("tables.edge_table", PLACEMENTS),
        ("learning.protocol", PROTOCOLS),
    ],
)
def test_choices_of_a_setting_match_the_library(key, names):
    """The schema repeats the names, as it imports neither torch nor pyarrow."""
    assert choices(key) == set(names)


def choices(key):
    kinds = [kind for kind, _ in alternatives(by_key()[key].hint) if get_origin(kind) is Literal]
    return {name for kind in kinds for name in get_args(kind)}


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("pass id_kind='string' to take ids as text", "pass --id-kind string to take ids as text"),
        ("pass sort=True to sort it", "pass --sort to sort it"),
        ("choose with src=...", "choose with --src ..."),
        ('use device="cpu"', "use --device cpu"),
        ("allowed_lateness is 0, raise it", "--allowed-lateness is 0, raise it"),
        ("pass data_seed=3", "pass --set learning.data_seed=3"),
        ("buffer_bytes is 0, raise it", "--set order.buffer_bytes is 0, raise it"),
        ("max_time_jump is 5", "--max-time-jump is 5"),
        ("(--set kafka.connect_timeout=S)", "(--set kafka.connect_timeout=S)"),
        ("or pass late='drop'", "or pass --late drop"),
        ("the column 'time_unit' of a.csv", "the column 'time_unit' of a.csv"),
        ("--time-unit ms; x=3, some_name=4", "--time-unit ms; x=3, some_name=4"),
        ("no file 'src=4.csv'; pass src='a'", "no file 'src=4.csv'; pass --src a"),
        ("table.gather_rows(ids) failed", "table.gather_rows(ids) failed"),
        ("rank 1 has --seed=1, rank 0 --seed=0", "rank 1 has --seed=1, rank 0 --seed=0"),
    ],
)
def test_settings_are_named_by_their_flags(said, shown):
    assert in_flags(said) == shown


def test_names_in_messages_are_kept(tmp_path):
    path = tmp_path / "sort=True.csv"
    assert in_flags("src=4.csv: pass src='a'", "src=4.csv") == "src=4.csv: pass --src a"
    run_log, log = RunLog(tmp_path / "run.log", says=()), logging.getLogger("tgflow.x")
    with library_messages(run_log):
        log.warning("%s: t is 4; pass max_time_jump='none'", "src=4.csv, line 1")
        log.warning("%d bytes of %s are damaged", 3, path)
        log.warning("%s", "pass time_unit='s'")
    run_log.close()
    texts = [json.loads(line)["text"] for line in (tmp_path / "run.log").open()]
    place = "src=4.csv, line 1: t is 4; pass --max-time-jump none"
    assert texts == [place, f"3 bytes of {path} are damaged", "pass --time-unit s"]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_file_and_flags_override_a_protocol(tmp_path, name):
    file = tmp_path / "own.toml"
    file.write_text(f'[learning]\nprotocol = "{name}"\nbatch_size = 100\n')
    config = load_config(file, {"learning.visibility": "batch"})
    config = config.offline if config.is_offline else config.continual
    expected = {**PROTOCOLS[name], "batch_size": 100, "visibility": "batch"}
    assert {key: getattr(config, key) for key in expected} == expected


KAFKA = {"stream.path": "kafka://localhost:9092/edges"}
ENDLESS = KAFKA | {"order.late": "error"}
EDGE = {"task.kind": "edge", "task.target": "y"}
NODE = {"task.kind": "node", "task.node_labels": "nodes.csv"}
DISK, CACHE = {"tables.edge_table": "disk"}, {"tables.edge_cache": "9GB"}
LRU, BELADY = {"tables.cache_policy": "lru"}, {"tables.cache_policy": "belady"}
OFFLINE = {"learning.protocol": "dyglib/1"}
SORT, FOLLOW, FREEZE = {"stream.sort": True}, {"stream.follow": True}, {"task.freeze": True}
LATER, HORIZON = {"labels.stream": "labels.csv"}, {"graph.horizon": "90d"}
TWO, GPU = {"learning.slices": 2}, {"run.device": "cuda"}
REFUSED = [  # For each rule: the command, settings that hold, and those refused beside them.
    ("run", {}, OFFLINE), ("run", {"order.idle_timeout": 5.0}, {"checkpoint.log": False}),
    ("run", FOLLOW, SORT), ("run", FOLLOW, ENDLESS), ("run", ENDLESS, SORT),
    ("run", SORT, {"order.late": "drop"}), ("compare", {}, {"order.dedup_window": 5}),
    ("run", ENDLESS, {"stream.categorical": ["x"]}),
    ("run", {"order.max_time_jump": "1d"} | HORIZON, {"order.max_time_jump": "none"}),
    ("train", {}, {"graph.horizon_events": 500}),
    ("train", {}, {"graph.table": "disk"}), ("run", GPU, {"graph.table": "disk"}),
    ("info", {}, {"graph.node_columns": ["x"]}), ("info", {}, {"graph.node_side": "x"}),
    ("train", GPU, {"graph.device_budget": "8GB", "run.device": "cpu"}),
    ("train", DISK, {"tables.edge_budget": 5}), ("train", {}, {"tables.edge_path": "x"}),
    ("train", DISK, LRU), ("run", GPU | CACHE, LRU), ("run", DISK | CACHE, BELADY),
    ("run", DISK, {"tables.edge_cache": "9%"}),
    ("run", DISK | CACHE, {"operate.memory_limit": "8GB"}), ("train", {}, CACHE),
    ("train", EDGE, {"stream.label": "z"}),
    ("run", {}, {"stream.positive_label": "x"}),
    ("run", {}, LATER),
    ("run", EDGE | LATER, {"task.label_delay": "1d"}), ("run", EDGE, {"labels.token": "env:T"}),
    ("run", EDGE | LATER | FOLLOW, {"checkpoint.log": False}),
    ("run", EDGE | LATER | {"stream.event_id": "id"}, {"order.dedup_window": 0}),
    ("run", EDGE | LATER, {"labels.by": "id"}), ("run", EDGE | TWO, LATER), ("run", {}, NODE),
    ("run", EDGE, FREEZE),
    ("compare", {"stream.path": "-", "compare.preset": "none"}, {"compare.preset": "auto"}),
    ("compare", EDGE, FREEZE),
    ("compare", OFFLINE, {"compare.frozen_at": 0.5}),
    ("compare", OFFLINE, {"compare.cut_at_steps": True}), ("run", TWO, {"serve.at": "0"}),
    ("run", TWO, {"learning.slices": 1}),
    ("train", TWO | DISK | CACHE, BELADY), ("run", TWO, {"graph.node_types": "types.csv"}),
    ("train", TWO, {"learning.fixed_negatives": "x"}),
    *(("train", TWO, {f"ranks.{what}": "sharded"}) for what in ("graph", "memory")),
    *(("run", TWO | GPU, {f"ranks.{what}": "sharded"}) for what in ("graph", "memory")),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "refused"), [*zip(RULES, REFUSED, strict=True)])
def test_combination_of_settings_is_refused_and_a_part_of_it_is_not(rule, refused):
    (where, _, text), (command, held, more) = rule, refused
    world, held = 1 + (where == "ranks"), {"stream.path": "x.csv", **held}
    check_rules(load_config(flags=held), command, world)
    with pytest.raises(ConfigError) as caught:
        check_rules(load_config(flags=held | more), command, world)
    fixed = map(re.escape, re.split(r"\{.*?\}", text))
    assert re.fullmatch("[^{}]*".join(fixed), str(caught.value))
