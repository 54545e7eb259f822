"""Each rule between settings refuses its combination, with its message, and no part of it."""

from __future__ import annotations

import re

import pytest

from tgflow.run.config import ConfigError, load_config
from tgflow.run.config.rules import RULES, check_rules

KAFKA = {"stream.path": "kafka://localhost:9092/edges"}
ENDLESS = KAFKA | {"order.max_time_jump": 5, "order.late": "error"}
EDGE = {"task.kind": "edge", "task.target": "y"}
NODE = {"task.kind": "node", "task.node_labels": "nodes.csv"}
INJECT = {"task.kind": "anomaly", "task.inject": "temporal"}
DISK, CACHE = {"tables.edge_table": "disk"}, {"tables.edge_cache": "9GB"}
LRU, BELADY = {"tables.cache_policy": "lru"}, {"tables.cache_policy": "belady"}
OFFLINE, STORE = {"learning.protocol": "dyglib/1"}, {"store.url": "s3://bucket/run"}
TWO, GPU = {"learning.slices": 2}, {"run.device": "cuda"}

REFUSED = [
    # For each rule: the command, settings that hold, and those that are refused beside them.
    ("run", {}, OFFLINE),
    ("run", {"order.idle_timeout": 5.0}, {"checkpoint.log": False}),
    ("run", {"stream.follow": True}, {"stream.sort": True}),
    ("run", {"stream.follow": True}, ENDLESS),
    ("run", ENDLESS, {"stream.sort": True}),
    ("run", {"stream.sort": True}, {"order.late": "drop"}),
    ("compare", {}, {"order.dedup_window": 5}),
    ("run", {}, KAFKA),
    ("run", ENDLESS, {"stream.categorical": ["x"]}),
    ("run", ENDLESS, {"stream.time_format": "%Y"}),
    ("run", {}, {"kafka.dead_letter_topic": "late"}),
    ("info", {}, {"graph.node_columns": ["x"]}),
    ("info", {}, {"graph.node_side": "x"}),
    ("train", GPU, {"graph.device_budget": "8GB", "run.device": "cpu"}),
    ("train", DISK, {"tables.edge_budget": 5}),
    ("train", {}, {"tables.edge_path": "x"}),
    ("train", DISK, LRU),
    ("run", GPU | CACHE, LRU),
    ("run", DISK | CACHE, BELADY),
    ("run", DISK, {"tables.edge_cache": "9%"}),
    ("run", DISK | CACHE, {"operate.memory_limit": "8GB"}),
    ("train", {}, CACHE),
    ("run", DISK | {"tables.edge_path": "x"}, STORE),
    ("train", EDGE, {"stream.label": "z"}),
    ("run", EDGE | {"task.label_delay": "1d"}, {"learning.replay_ratio": 0}),
    ("run", {}, NODE),
    ("compare", {}, INJECT),
    ("run", EDGE, {"task.freeze": True}),
    ("compare", EDGE, {"task.freeze": True}),
    ("compare", OFFLINE, {"compare.frozen_at": 0.5}),
    ("compare", OFFLINE, {"compare.cut_at_steps": True}),
    ("run", TWO, {"serve.at": "0"}),
    ("run", TWO, {"learning.slices": 1}),
    ("run", TWO | DISK, STORE),
    ("train", TWO | DISK | CACHE, BELADY),
    ("run", TWO, {"graph.node_types": "types.csv"}),
    ("train", TWO, {"learning.fixed_negatives": "x"}),
    ("train", TWO, {"ranks.graph": "sharded"}),
    ("train", TWO, {"ranks.memory": "sharded"}),
    ("run", TWO | GPU, {"ranks.graph": "sharded"}),
    ("run", TWO | GPU, {"ranks.memory": "sharded"}),
]


@pytest.mark.parametrize(("rule", "refused"), [*zip(RULES, REFUSED, strict=True)])
def test_combination_is_refused_and_a_part_of_it_is_not(rule, refused):
    (where, _, text), (command, held, more) = rule, refused
    world, held = 1 + (where == "ranks"), {"stream.path": "x.csv", **held}
    check_rules(load_config(flags=held), command, world)
    config = load_config(flags=held | more)
    with pytest.raises(ConfigError) as caught:
        check_rules(config, command, world)
    fixed = re.escape(re.sub(r"\{.*?\}", "\0", text)).replace("\0", "[^{}]*")
    assert re.fullmatch(fixed, str(caught.value))
