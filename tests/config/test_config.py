"""Settings: the file, the flags, and what is said about a wrong one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tgflow.config import Config, ConfigError, StreamConfig, fields, load_config, to_toml


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("[plan]\nbatch_size = 7\n[train]\nlearning_rate = 1\n")
    config = load_config(file, {"plan.batch_size": 9}, {"train.patience": 3, "plan.lookahead": 2})
    assert config.plan.batch_size == 9
    assert config.train.learning_rate == 1.0
    assert config.train.patience == 3
    assert config.plan.lookahead == 2
    assert config.model.name == "tgn"


@pytest.mark.parametrize("value", ['"auto"', "3"])
def test_lookahead_is_a_number_or_auto(tmp_path, value):
    file = tmp_path / "run.toml"
    file.write_text(f"[plan]\nlookahead = {value}\n")
    assert load_config(file).plan.lookahead == (3 if value == "3" else "auto")
    assert f"lookahead = {value}" in to_toml(load_config(file))


def test_flags_that_were_not_given_change_nothing(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("[plan]\nbatch_size = 7\n")
    assert load_config(file, {"plan.batch_size": None}).plan.batch_size == 7


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


@settings(max_examples=20)
@given(
    path=texts,
    features=st.none() | st.lists(texts),
    speed=st.none() | st.floats(min_value=1e-300, max_value=1e300),
    sort=st.booleans(),
)
def test_what_is_written_reads_back(tmp_path_factory, path, features, speed, sort):
    stream = StreamConfig(path=path, features=features, speed=speed, sort=sort)
    config = Config(stream=stream)
    file = tmp_path_factory.mktemp("config") / "run.toml"
    file.write_text(to_toml(config), encoding="utf-8")
    assert load_config(file) == config


def test_every_setting_is_written_with_what_it_means():
    text = to_toml(Config())
    for key, field in fields():
        assert key.split(".")[1] in text
        assert f"# {field.description}" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[trian]\na = 1", "unknown section [trian]; did you mean train? (sections are stream,"),
        (
            "[train]\nlearning_rat = 1",
            "unknown key train.learning_rat; did you mean learning_rate?",
        ),
        ("[train]\nbatch_size = 1", "unknown key train.batch_size; did you mean plan.batch_size?"),
        ("[train]\nzzz = 1", "unknown key train.zzz ([train] has learning_rate,"),
        (
            '[train]\nlearning_rate = "a"',
            'train.learning_rate must be a number more than 0, got "a"',
        ),
        (
            "[train]\nlearning_rate = inf",
            "train.learning_rate must be a number more than 0, got Inf",
        ),
        (
            "[model]\nlayers = 9",
            "model.layers must be a whole number at least 1 and at most 4, got 9",
        ),
        ("[model]\nheads = 1.5", "model.heads must be a whole number at least 1, got 1.5"),
        ("[run]\nseed = true", "run.seed must be a whole number at least 0, got true"),
        ("[stream]\nfeatures = [1]", "stream.features must be a list of strings, got 1"),
        ('[plan]\nvisibility = "all"', 'must be one of "event", "batch", got "all"'),
        (
            "[plan]\nlookahead = 0",
            'plan.lookahead must be a whole number at least 1 or "auto", got 0',
        ),
        ('[tables]\nedge_cache = "0%"', "edge_cache: a share of the rows must be above 0%"),
        ('[tables]\nedge_cache = "many"', "edge_cache: a size is bytes or text"),
        ('[tables]\ncache_policy = "mru"', 'must be one of "lru", "lfu", "fifo", "belady"'),
        ("train = 3", "[train] must be a section, got 3"),
        ("[train", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_named_with_key_value_and_way_out(tmp_path, text, message):
    file = tmp_path / "run.toml"
    file.write_text(text + "\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_wrong_flag_is_named_as_a_flag():
    with pytest.raises(ConfigError, match=r"^--batch-size: plan.batch_size must be .* got 0$"):
        load_config(None, {"plan.batch_size": 0})
