"""tgflow: continual learning on temporal graphs.

The most used names are here; others are in the subpackages, such as
`tg.sampling.recent_neighbors` and `tg.tables.FeatureTable`. All are imported lazily, so
`import tgflow` is quick. Examples in docstrings begin with this:

    >>> import tgflow as tg
    >>> import torch
    >>> src, dst = torch.tensor([0, 1, 0, 1]), torch.tensor([2, 3, 3, 2])
    >>> events = tg.EventBatch(src, dst, t=torch.tensor([10, 20, 30, 40]))
    >>> graph = tg.TemporalGraph.from_events(events)
    >>> n = torch.arange(400)
    >>> many = tg.EventBatch(src=n % 10, dst=10 + n % 7, t=60 * n)
    >>> model = tg.TGN()
    >>> plan = tg.Plan.for_model(model, graph, batch_size=2)

A slot without a neighbor holds `NO_NODE`. The native core has its own threads, beside torch's:

    >>> found = tg.sampling.recent_neighbors(graph, torch.tensor([0]), torch.tensor([10]), k=1)
    >>> found.nodes.tolist() == [[tg.NO_NODE]]
    True
    >>> tg.set_num_threads(2)
    >>> tg.num_threads()
    2
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tgflow.base.lazy import lazy_names

# Read by torch's OpenMP when torch is imported, so import tgflow first: an idle thread spins for
# about 0.1 ms, which bridges the gaps between operators, and then sleeps. With longer spins, two
# processes that share cores are tens of times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

if TYPE_CHECKING:
    from tgflow import checkpoint as checkpoint
    from tgflow import graph as graph
    from tgflow import models as models
    from tgflow import nn as nn
    from tgflow import plan as plan
    from tgflow import ranks as ranks
    from tgflow import report as report
    from tgflow import run as run
    from tgflow import serve as serve
    from tgflow import streams as streams
    from tgflow import testing as testing
    from tgflow import train as train
    from tgflow.base import metrics as metrics
    from tgflow.base import peers as peers
    from tgflow.base._native import num_threads as num_threads
    from tgflow.base._native import set_num_threads as set_num_threads
    from tgflow.checkpoint import load as load
    from tgflow.checkpoint import save as save
    from tgflow.graph import TemporalGraph as TemporalGraph
    from tgflow.graph import cache as cache
    from tgflow.graph import counts as counts
    from tgflow.graph import sampling as sampling
    from tgflow.graph import tables as tables
    from tgflow.graph.batch import Batch as Batch
    from tgflow.graph.events import NO_NODE as NO_NODE
    from tgflow.graph.events import EventBatch as EventBatch
    from tgflow.graph.ids import NodeIds as NodeIds
    from tgflow.graph.sampling import Sampler as Sampler
    from tgflow.graph.sampling import sample_hops as sample_hops
    from tgflow.models import CRAFT as CRAFT
    from tgflow.models import JODIE as JODIE
    from tgflow.models import TGAT as TGAT
    from tgflow.models import TGN as TGN
    from tgflow.models import DyGFormer as DyGFormer
    from tgflow.models import EdgeBank as EdgeBank
    from tgflow.models import EdgeBankTW as EdgeBankTW
    from tgflow.models import GraphMixer as GraphMixer
    from tgflow.models import PopTrack as PopTrack
    from tgflow.models import Recency as Recency
    from tgflow.models import Recurrency as Recurrency
    from tgflow.models import SmoothedCounts as SmoothedCounts
    from tgflow.models import TPNet as TPNet
    from tgflow.nn import messages as messages
    from tgflow.nn.model import Embeddings as Embeddings
    from tgflow.nn.model import Scores as Scores
    from tgflow.nn.model import TemporalModel as TemporalModel
    from tgflow.plan import Loader as Loader
    from tgflow.plan import Plan as Plan
    from tgflow.ranks.join import join as join
    from tgflow.report import callbacks as callbacks
    from tgflow.report import compare as compare
    from tgflow.run.node_features import NodeFeatures as NodeFeatures
    from tgflow.run.saved import open_run as open_run
    from tgflow.run.saved import save_run as save_run
    from tgflow.streams import datasets as datasets
    from tgflow.streams import open_stream as open_stream
    from tgflow.streams import playback as playback
    from tgflow.testing.check_model import check_model as check_model
    from tgflow.train import tasks as tasks
    from tgflow.train.config import ContinualConfig as ContinualConfig
    from tgflow.train.config import OfflineConfig as OfflineConfig
    from tgflow.train.continual import ContinualTrainer as ContinualTrainer
    from tgflow.train.inference import Inference as Inference
    from tgflow.train.observe import Callback as Callback
    from tgflow.train.offline import OfflineTrainer as OfflineTrainer
    from tgflow.train.prequential import evaluate as evaluate

__all__, __getattr__, __dir__ = lazy_names(__name__)
