"""The interface of models for trainers: scores of batches, and state of the stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import torch
from annotated_types import Ge
from torch import Tensor, nn

from tgflow.base.choices import Loss, Strategy
from tgflow.base.describe import described, facts_line, table
from tgflow.base.locks import ModelLock
from tgflow.base.setting import Checked
from tgflow.graph.batch import Batch
from tgflow.graph.counts import Number
from tgflow.graph.stream_state import StreamState
from tgflow.nn.messages import Messages, NewEvents

if TYPE_CHECKING:
    from tgflow.graph import TemporalGraph
    from tgflow.graph.strategies import SamplerFunction

C = TypeVar("C", bound=Any)


@described
class Embeddings(NamedTuple):
    """Output of an encoder for a batch, input of any decoder.

    Example:
        >>> isinstance(model.embed(plan.batch(0, 1)), tg.Embeddings)
        True
    """

    z: Tensor
    """float32 `[N, dim]`: a row for each (node, time) of the top frontier, which `src_row`,
    `dst_row`, `negative_src_row` and `negative_dst_row` of the batch index."""
    carry: Any = None
    """Data of this pass for `messages`, without gradients; its type is up to the model."""


@described
class Scores(NamedTuple):
    """Logits: the higher, the likelier the event.

    Example:
        >>> scores = model(plan.batch(0, 1))
        >>> scores.positive.shape, scores.negative.shape
        (torch.Size([2]), torch.Size([2, 1]))
    """

    positive: Tensor
    """Float `[B]`: the batch's events. Metrics compare them in full precision."""
    negative: Tensor
    """Float `[B, m]`: the negatives."""
    carry: Any = None
    """As `Embeddings.carry`."""
    classes: Tensor | None = None
    """Float `[B, num_classes]`: logits of each event's label, if a task requests them."""
    label_inputs: Tensor | None = None
    """float16 `[B, width]`: inputs of the label decoder, if it keeps them."""

    def named(self) -> dict[str, Tensor]:
        """Return the logits by name."""
        named = {"positive": self.positive, "negative": self.negative}
        return named if self.classes is None else named | {"classes": self.classes}


class TemporalModel(nn.Module):
    """Base class of models that score a batch's events and then may store them.

    A trainer calls the model, optionally learns from the scores, then calls `commit` with the same
    batch and its scores: predict, then learn, then store.

    Use `tgflow.nn.Dropout` for dropout: a resumed run draws the same, also where steps are captured
    in CUDA graphs.

    Updates of `state` take two steps, as slices of a batch may be computed separately: `messages`
    returns a slice's rows, and `store` writes those of the whole batch. `forward` does not change
    `state`, but may set `marks`.

    A model defines `forward`; or it defines `embed` and has a module `decoder`, called as
    `decoder(z, batch)`, so that other tasks and serving can use the same encoder.

    Example:
        >>> class Popular(tg.TemporalModel):
        ...     fanouts, strategy, reads_nodes = (), "recent", False
        ...     counts = (tg.counts.Count("dst").num,)
        ...
        ...     def forward(self, batch):
        ...         num = batch.counts[..., 0].float()
        ...         return tg.Scores(num[:, 0], num[:, 1:])
        >>> tg.ContinualTrainer(Popular(), tg.TemporalGraph()).run([many])["num_events"]
        400
    """

    fanouts: tuple[int, ...]
    """Neighbors per hop that the plan must sample, the roots' hop first; one block each."""
    takes_any_fanouts: ClassVar[bool] = False
    """Whether it accepts other numbers of neighbors, for as many hops, than `fanouts`."""
    reads_nodes: ClassVar[bool] = True
    """Whether it reads rows of nodes, such as `Batch.nodes` and `src_row`. A model that scores by
    `Batch.counts` and the events alone does not; it gets no frontier, and has no fanouts."""
    strategy: Strategy | SamplerFunction
    """Sampling strategy of the paper, a name or a function; see `tgflow.Sampler`."""
    counts: tuple[Number, ...] = ()
    """Numbers of each pair's past that the plan must provide: `Batch.counts`, in this order."""
    counts_dtype: ClassVar[torch.dtype] = torch.float64
    """Type of `Batch.counts`, float64 or, for a model that rounds them anyway, float32."""
    config_type: ClassVar[type[Any]]
    """The dataclass of a model's settings, for models that are called as `Model(config)`."""
    loss: Loss = "bce"
    """Training loss of the model, used unless a trainer's settings override it."""
    negatives: ClassVar[str] = "random:1"
    """Negatives of each event that it learns from, as in `tgflow.train.TrainingConfig.negatives`,
    which overrides it."""
    edge_x_dim: int | None
    """Width of the edge features it reads; None for any width."""
    node_x_dim: int | None
    """Width of the node features it reads, likewise."""
    state: StreamState | None
    """State of the stream; None for a model that only reads the graph."""
    decoder: nn.Module
    """Turns embeddings into `Scores`, for models that define `embed`."""
    choose_by: Literal["ap", "mrr"] = "ap"
    """Metric by which a model that chooses between variants does so; an offline trainer sets it to
    its `OfflineConfig.select_metric`."""
    label_decoder: nn.Module | None
    """Turns embeddings into `Scores.classes`, called as `label_decoder(z, batch)` for batches with
    `targets`: set by a task on models that define `embed`; None without."""
    lock: ModelLock
    """Held by a trainer in each step, and by each query: parameters, state and mode are shared."""

    def __init__(self) -> None:
        super().__init__()
        self.edge_x_dim = self.node_x_dim = None
        self.state = None
        self.label_decoder = None
        self.lock = ModelLock()

    def _facts(self) -> dict[str, object]:
        return {
            "num_parameters": sum(x.numel() for x in self.parameters()),
            "fanouts": getattr(self, "fanouts", ()),
            "edge_x_dim": self.edge_x_dim,
            "node_x_dim": self.node_x_dim,
            "memory_rows": getattr(self.state, "num_rows", None),
            "device": str(device_of_model(self)),
        }

    def extra_repr(self) -> str:
        """Return the line of `repr` above the layers."""
        return facts_line(self)

    def _repr_html_(self) -> str:
        return table(self)

    @classmethod
    def for_graph(cls, graph: TemporalGraph, **settings: Any) -> Self:
        """Return a model for the features that `graph` has.

        Args:
            graph: Sets `edge_x_dim` and `node_x_dim`, 0 without such features.
            settings: The other fields of `config_type`; widths are set only where it has them.
        """
        model: Callable[[Any], Self] = cls
        known = {field.name for field in fields(cls.config_type)}
        widths = {name: dim for name, dim in feature_widths(graph).items() if name in known}
        return model(make_config(cls.config_type, None, {**widths, **settings}))

    def embed(self, batch: Batch) -> Embeddings:
        """Return the embeddings of the batch's nodes at their times; changes no state."""
        raise NotImplementedError(f"{type(self).__name__} defines neither forward nor embed")

    def embedding_layers(self) -> Sequence[nn.Module]:
        """Return the layers that `embed` chains, the roots' first; () if it is not a chain.

        Each is called with the rows below, lowest of all `node_x`, and its block. A caller
        that stores rows of a layer by (node, time) may then compute only the others. For rows that
        training reuses, a layer's `dim` is their width.
        """
        return ()

    def forward(self, batch: Batch) -> Scores:
        """Return the logits of the batch's events and of their negatives; changes no state.

        Raises:
            ValueError: As `check_widths`.
            TypeError: If `embed` does not return `Embeddings`.
        """
        self.check_widths(batch)
        embeddings = self.embed(batch)
        if not isinstance(embeddings, Embeddings):
            raise TypeError(
                f"{type(self).__name__}.embed returned {type(embeddings).__name__}; return "
                "tgflow.nn.model.Embeddings(z)"
            )
        scores: Scores = self.decoder(embeddings.z, batch)
        classes, inputs, decoder = None, None, self.label_decoder
        if decoder is not None and batch.targets is not None:
            classes = decoder(embeddings.z, batch)
            keep = None if self.training else getattr(decoder, "keep", None)
            inputs = None if keep is None else keep(embeddings.z, batch)
        return scores._replace(carry=embeddings.carry, classes=classes, label_inputs=inputs)

    def check_widths(self, batch: Batch) -> None:
        """Raise unless `batch` has features of the widths that the model reads.

        Raises:
            ValueError: If not; the message has both widths, and how to set them.
        """
        for kind, x, dim in (
            ("edge", batch.x, self.edge_x_dim),
            ("node", batch.node_x, self.node_x_dim),
        ):
            width = 0 if x is None else x.shape[1]
            if dim is not None and width != dim:
                raise width_error(kind, dim, width)

    def check_fanouts(self, fanouts: Sequence[object]) -> None:
        """Raise unless the model accepts other numbers of neighbors than in training.

        Raises:
            ValueError: If not; the message has the accepted fan-outs.
        """
        name, own, wanted = type(self).__name__, self.fanouts, tuple(fanouts)
        if len(wanted) != len(own):
            raise ValueError(
                f"{name} takes fan-outs for as many hops as its own, {own}, got {wanted}"
            )
        if wanted != own and not self.takes_any_fanouts:
            raise ValueError(
                f"{name} reads exactly the {own} neighbors that it was built for, "
                f"got fan-outs {wanted}: leave them out"
            )

    def messages(self, batch: Batch, found: Scores | Embeddings) -> Messages | None:
        """Return the rows of the batch's first `num_new` events for `state`; changes nothing.

        A batch may be a slice of another one, whose messages are the concatenation of its slices':
        return rows for each new event, in order, none where there is none. Without gradients.

        Args:
            batch: The batch.
            found: What `forward` or `embed` returned for this very batch.

        Returns:
            Argument of `store`; None if the model never stores anything.
        """
        return None

    def store(self, events: NewEvents, messages: Messages) -> None:
        """Update `state` by new events, without gradients.

        Args:
            events: The new events of a whole batch.
            messages: Messages of all of them, from `messages`.
        """

    @torch.no_grad()
    def commit(self, batch: Batch, found: Scores | Embeddings) -> None:
        """Update `state` by the batch's first `num_new` events, without gradients.

        Args:
            batch: The whole batch.
            found: What `forward` or `embed` returned for this very batch.
        """
        messages = self.messages(batch, found)
        if messages is not None:
            self.store(NewEvents.of(batch), messages)

    def marks(self) -> Sequence[Tensor]:
        """Return the bool buffers that `forward` sets in training and never clears, usually none.

        They are not part of `state` but of the learned parameters.
        """
        return ()

    def settle(self) -> None:
        """Choose by results committed in evaluation so far, and by no later event.

        An offline trainer calls it after validation, before each test, for models that choose
        between variants by their results. Others need not define it.
        """

    def figures(self) -> dict[str, Any]:
        """Return the model's own results, JSON-serializable, such as its choices."""
        return {}


def check_is_model(model: object) -> None:
    if not isinstance(model, TemporalModel):
        text = "model must be a tgflow.TemporalModel such as tgflow.EdgeBank(), got"
        raise TypeError(f"{text} {model!r:.100}")


@dataclass(frozen=True, kw_only=True)
class FeatureConfig(Checked):
    """Base class of settings of models that read features and times."""

    edge_x_dim: Annotated[int, Ge(0)] = 0
    """Width of the edge features."""
    node_x_dim: Annotated[int, Ge(0)] = 0
    """Width of the node features."""
    time_dim: Annotated[int, Ge(1)] = 100
    """Width of a time encoding."""


def make_config(kind: type[C], config: C | None, settings: Mapping[str, Any]) -> C:
    """Return the configuration of a model called as `Model(config, **settings)`.

    Settings override those of `config`; None: the defaults. TypeError if `config` is not of `kind`,
    the dataclass of the model's settings, or that has no such field.
    """
    if not isinstance(config, kind | None):
        raise TypeError(
            f"config must be of type {kind.__name__}, got {type(config).__name__}; "
            "pass single settings by name"
        )
    known = [field.name for field in fields(kind)]
    for name in settings:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise TypeError(f"{kind.__name__} has no setting {name!r}{hint} (it has {known})")
    made: C = kind(**settings) if config is None else replace(config, **settings)
    return made


def feature_widths(graph: TemporalGraph) -> dict[str, int]:
    """Return the widths of a graph's edge and node features, named as in model settings."""
    return {
        "edge_x_dim": 0 if graph.edge_x is None else graph.edge_x.dim,
        "node_x_dim": 0 if graph.node_x is None else graph.node_x.dim,
    }


def width_error(kind: str, dim: int, found: int) -> ValueError:
    return ValueError(
        f"the model reads {kind} features of width {dim}, the graph has {found}: build the model "
        f"by its for_graph(graph), or make {kind}_x_dim of the model and of the graph agree"
    )


def has_parameters(model: TemporalModel) -> bool:
    """Return whether a model has parameters to learn, so that its loss is one; a rule has none."""
    return any(True for _ in model.parameters())


def device_of_model(model: TemporalModel) -> torch.device:
    """Return the device of a model's parameters, or else its buffers; the CPU without any."""
    tensors = chain(model.parameters(), model.buffers())
    return next((x.device for x in tensors), torch.device("cpu"))
