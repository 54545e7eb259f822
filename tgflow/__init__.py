"""tgflow: continual learning on temporal graphs.

Everything public is here, and is imported when it is first used: `import tgflow` itself is quick.
Each name has an example in its docstring, and all of them begin with this:

    >>> import tgflow as tg
    >>> import torch
    >>> src, dst = torch.tensor([0, 1, 0, 1]), torch.tensor([2, 3, 3, 2])
    >>> events = tg.EventBatch(src, dst, t=torch.tensor([10, 20, 30, 40]))
    >>> graph = tg.TemporalGraph.from_events(events)
    >>> n = torch.arange(400)
    >>> many = tg.EventBatch(src=n % 10, dst=10 + n % 7, t=60 * n)
    >>> model = tg.TGN()
    >>> plan = tg.Plan.for_model(model, graph, batch_size=2)

A slot without a neighbor holds `NO_NODE`; the native core has threads of its own, beside torch's:

    >>> found = tg.recent_neighbors(graph, torch.tensor([0]), torch.tensor([10]), k=1)
    >>> found.nodes.tolist() == [[tg.NO_NODE]]
    True
    >>> tg.set_num_threads(2)
    >>> tg.num_threads()
    2
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tgflow.lazy import lazy_names

# Read by torch's OpenMP when torch is imported, so import tgflow first: an idle thread spins for
# about 0.1 ms, which bridges the gaps between operators, and then sleeps. Longer, and two processes
# that share cores are tens of times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

if TYPE_CHECKING:
    from tgflow import callbacks as callbacks
    from tgflow import datasets as datasets
    from tgflow._native import num_threads as num_threads
    from tgflow._native import set_num_threads as set_num_threads
    from tgflow.batch import Batch as Batch
    from tgflow.cache import CachedTable as CachedTable
    from tgflow.cache import ScheduleMismatch as ScheduleMismatch
    from tgflow.cache import cached as cached
    from tgflow.checkpoint import Checkpoint as Checkpoint
    from tgflow.checkpoint import load as load
    from tgflow.checkpoint import save as save
    from tgflow.compare.comparison import Comparison as Comparison
    from tgflow.compare.lineup import Entrant as Entrant
    from tgflow.compare.significance import compare_means as compare_means
    from tgflow.counts import Count as Count
    from tgflow.counts import Counts as Counts
    from tgflow.distributed.join import join as join
    from tgflow.distributed.memory import ShardedMemory as ShardedMemory
    from tgflow.distributed.rows import ShardedRows as ShardedRows
    from tgflow.events import NO_NODE as NO_NODE
    from tgflow.events import EventBatch as EventBatch
    from tgflow.graph import EventLog as EventLog
    from tgflow.graph import FeatureScale as FeatureScale
    from tgflow.graph import TemporalGraph as TemporalGraph
    from tgflow.ids import NodeIds as NodeIds
    from tgflow.inference import Inference as Inference
    from tgflow.inference import Ranking as Ranking
    from tgflow.messages import Messages as Messages
    from tgflow.messages import NewEvents as NewEvents
    from tgflow.model import Scores as Scores
    from tgflow.model import TemporalModel as TemporalModel
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
    from tgflow.models import SmoothedCounts as SmoothedCounts
    from tgflow.models import TPNet as TPNet
    from tgflow.peers import Peers as Peers
    from tgflow.plan import ExperienceReplay as ExperienceReplay
    from tgflow.plan import Loader as Loader
    from tgflow.plan import NegativeSampler as NegativeSampler
    from tgflow.plan import Plan as Plan
    from tgflow.prequential import evaluate as evaluate
    from tgflow.runtime.node_features import NodeFeatures as NodeFeatures
    from tgflow.runtime.opened_run import Run as Run
    from tgflow.runtime.opened_run import open_run as open_run
    from tgflow.sampling import Hops as Hops
    from tgflow.sampling import Neighbors as Neighbors
    from tgflow.sampling import Sampler as Sampler
    from tgflow.sampling import decayed_neighbors as decayed_neighbors
    from tgflow.sampling import recent_neighbors as recent_neighbors
    from tgflow.sampling import sample_hops as sample_hops
    from tgflow.sampling import sample_neighbors as sample_neighbors
    from tgflow.sampling import uniform_neighbors as uniform_neighbors
    from tgflow.sampling import window_neighbors as window_neighbors
    from tgflow.sampling.to_dgl import to_dgl as to_dgl
    from tgflow.sampling.to_pyg import to_pyg as to_pyg
    from tgflow.serve.scored_pairs import ScoredPairs as ScoredPairs
    from tgflow.streams import Source as Source
    from tgflow.streams import open_stream as open_stream
    from tgflow.streams import playback as playback
    from tgflow.tables import FeatureTable as FeatureTable
    from tgflow.tasks.config import TaskConfig as TaskConfig
    from tgflow.tasks.labels import LabelTask as LabelTask
    from tgflow.testing.check_model import ContractViolation as ContractViolation
    from tgflow.testing.check_model import check_model as check_model
    from tgflow.train.config import ContinualConfig as ContinualConfig
    from tgflow.train.config import OfflineConfig as OfflineConfig
    from tgflow.train.config import Reuse as Reuse
    from tgflow.train.continual import ContinualTrainer as ContinualTrainer
    from tgflow.train.observe import Callback as Callback
    from tgflow.train.offline import OfflineTrainer as OfflineTrainer

__all__, __getattr__, __dir__ = lazy_names(__name__)
