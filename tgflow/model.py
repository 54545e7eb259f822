"""What a trainer knows of a model: it scores batches, and it keeps what it has seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from tgflow.batch import Batch
from tgflow.choices import Loss, Strategy
from tgflow.counts import Count
from tgflow.describe import described, facts_line, table
from tgflow.messages import Messages, NewEvents
from tgflow.state import StreamState

if TYPE_CHECKING:
    from tgflow.graph import TemporalGraph
    from tgflow.sampler import SamplerFunction

C = TypeVar("C", bound=Any)


@described
class Embeddings(NamedTuple):
    """What an encoder makes of a batch, for any decoder to read."""

    z: Tensor
    """float32 `[N, dim]`: a row for each (node, time) of the top frontier, which `src_row`,
    `dst_row`, `negative_src_row` and `negative_dst_row` of the batch index."""
    carry: Any = None
    """What `messages` needs of this pass, without gradients; only the model knows its type."""


@described
class Scores(NamedTuple):
    """Logits: the higher, the likelier the event.

    Example:
        >>> scores = model(plan.batch(0, 1))
        >>> scores.positive.shape, scores.negative.shape
        (torch.Size([2]), torch.Size([2, 1]))
    """

    positive: Tensor
    """Float `[B]`: the batch's events. Metrics compare them with all the digits that they have."""
    negative: Tensor
    """Float `[B, m]`: the events that did not happen."""
    carry: Any = None
    """As `Embeddings.carry`."""
    classes: Tensor | None = None
    """Float `[B, num_classes]`: logits of the label of each event, if a task asks for them."""


class TemporalModel(nn.Module):
    """A model that scores the events of a batch, and then may take them in.

    A trainer calls the model, learns from the scores or not, then calls `commit` with the same
    batch and its scores: predict, then learn, then store.

    What a model drops in training, it drops by `tgflow.nn.Dropout`: a resumed run draws the same,
    also where steps are captured in CUDA graphs.

    What a model keeps of the stream it keeps in `state`, in two steps, as slices of a batch may be
    computed apart: `messages` says what a slice's events leave, and `store` writes that of the
    whole batch. `forward` keeps nothing, but may set `marks`.

    A model defines `forward`; or it defines `embed` and has a module `decoder`, called as
    `decoder(z, batch)`, so that other tasks and serving can use the same encoder.

    Example:
        >>> class Popular(tg.TemporalModel):
        ...     fanouts, strategy, reads_nodes = (), "recent", False
        ...     counts = (tg.counts.Count("dst"),)
        ...
        ...     def forward(self, batch):
        ...         num = batch.counts[0].num.float()
        ...         return tg.Scores(num[:, 0], num[:, 1:])
        >>> tg.ContinualTrainer(Popular(), tg.TemporalGraph()).run([many])["num_events"]
        400
    """

    fanouts: tuple[int, ...]
    """Neighbors per hop the plan must sample, the roots' hop first; one block each."""
    takes_any_fanouts: ClassVar[bool] = False
    """Whether it can be asked with other numbers of neighbors, of as many hops, than `fanouts`."""
    reads_nodes: ClassVar[bool] = True
    """Whether it reads rows of nodes, such as `Batch.nodes` and `src_row`. A model that scores by
    `Batch.counts` and the events alone does not: no frontier is made for it. It has no fanouts."""
    strategy: Strategy | SamplerFunction
    """How the paper samples them, a name or a function; see `tgflow.Sampler`."""
    counts: tuple[Count, ...] = ()
    """What of the past of each pair the plan must count: `Batch.counts`, in this order."""
    config_type: ClassVar[type[Any]]
    """The dataclass of a model's settings, for models that are called as `Model(config)`."""
    loss: ClassVar[Loss] = "bce"
    """What its paper descends, unless a trainer's settings say otherwise."""
    edge_x_dim: int | None
    """Width of the edge features it reads; None for a model that takes any."""
    node_x_dim: int | None
    """Width of the node features it reads, likewise."""
    state: StreamState | None
    """What it keeps of the stream; None for a model that only reads the graph."""
    decoder: nn.Module
    """Turns embeddings into `Scores`, for models that define `embed`."""
    label_decoder: nn.Module | None
    """Turns embeddings into `Scores.classes`, called as `label_decoder(z, batch)` for batches with
    `targets`: for a task to set on models that define `embed`; None without."""

    def __init__(self) -> None:
        super().__init__()
        self.edge_x_dim = self.node_x_dim = None
        self.state = None
        self.label_decoder = None

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
        """Return what `repr` says of the model above its layers."""
        return facts_line(self)

    def _repr_html_(self) -> str:
        return table(self)

    @classmethod
    def for_graph(cls, graph: TemporalGraph, **settings: Any) -> Self:
        """Return a model that reads the features that `graph` has.

        Args:
            graph: Gives `edge_x_dim` and `node_x_dim`, 0 where it has no such features.
            settings: The other fields of `config_type`; one that has no such widths gets none.
        """
        model: Callable[[Any], Self] = cls
        known = {field.name for field in fields(cls.config_type)}
        widths = {name: dim for name, dim in feature_widths(graph).items() if name in known}
        return model(make_config(cls.config_type, None, {**widths, **settings}))

    def embed(self, batch: Batch) -> Embeddings:
        """Return the embeddings of the batch's nodes at their times; changes no state."""
        raise NotImplementedError(f"{type(self).__name__} defines neither forward nor embed")

    def embedding_layers(self) -> Sequence[nn.Module]:
        """Return the layers that `embed` is the chain of, the roots' first; () if it is none.

        Each is called with the rows below, of which the lowest are `node_x`, and its block. Whoever
        keeps rows of a layer by their (node, time) may then compute the others alone. For rows that
        training reuses a layer says in `dim` how wide its rows are.
        """
        return ()

    def forward(self, batch: Batch) -> Scores:
        """Return the logits of the batch's events and of their negatives; changes no state.

        Raises:
            ValueError: As `check_widths`.
        """
        self.check_widths(batch)
        embeddings = self.embed(batch)
        scores: Scores = self.decoder(embeddings.z, batch)
        classes = None
        if self.label_decoder is not None and batch.targets is not None:
            classes = self.label_decoder(embeddings.z, batch)
        return scores._replace(carry=embeddings.carry, classes=classes)

    def check_widths(self, batch: Batch) -> None:
        """Raise unless `batch` has features of the widths that the model reads.

        Raises:
            ValueError: If not; it names both widths, and how to set them.
        """
        for kind, x, dim in (
            ("edge", batch.x, self.edge_x_dim),
            ("node", batch.node_x, self.node_x_dim),
        ):
            width = 0 if x is None else x.shape[1]
            if dim is not None and width != dim:
                raise width_error(kind, dim, width)

    def check_fanouts(self, fanouts: Sequence[object]) -> None:
        """Raise unless the model can be asked with other numbers of neighbors than it learns with.

        Raises:
            ValueError: If not; it says what the model takes.
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
        """Return what the batch's first `num_new` events leave for `state`; changes nothing.

        A batch may be a slice of another one, whose messages are those of its slices one after the
        other: make rows for each new event, in order, none where there is none. Without gradients.

        Args:
            batch: The batch.
            found: What `forward` or `embed` returned for this very batch.

        Returns:
            What `store` is to get; None: nothing is stored, whatever the batch.
        """
        return None

    def store(self, events: NewEvents, messages: Messages) -> None:
        """Write what new events change into `state`, without gradients.

        Args:
            events: Those of a whole batch.
            messages: What `messages` returned of all of them.
        """

    @torch.no_grad()
    def commit(self, batch: Batch, found: Scores | Embeddings) -> None:
        """Write what the batch's first `num_new` events change into `state`, without gradients.

        Args:
            batch: The whole batch.
            found: What `forward` or `embed` returned for this very batch.
        """
        messages = self.messages(batch, found)
        if messages is not None:
            self.store(NewEvents.of(batch), messages)

    def marks(self) -> Sequence[Tensor]:
        """Return the bool buffers that `forward` sets in training, and never clears: mostly none.

        They are no part of `state`, but of what is learned, as parameters are.
        """
        return ()

    def settle(self) -> None:
        """Choose by what was committed in evaluation so far, and by no later event.

        An offline trainer calls it after validation, before each test, for models that choose
        something by how well it has done. Nothing is to be done for others.
        """

    def figures(self) -> dict[str, Any]:
        """Return what a result says of the model itself, fit for JSON, such as what it chose."""
        return {}


def make_config(kind: type[C], config: C | None, settings: Mapping[str, Any]) -> C:
    """Return the configuration of a model that was called as `Model(config, **settings)`.

    Args:
        kind: The dataclass of the model's settings.
        config: What `settings` are replaced in; None: the defaults.
        settings: Fields of `kind`.

    Raises:
        TypeError: If `config` is not of `kind`, or has no such field.
    """
    if not isinstance(config, kind | None):
        raise TypeError(
            f"config must be a {kind.__name__}, got {type(config).__name__}; "
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
    """Return the widths of a graph's edge and node features, as models' settings name them."""
    return {
        "edge_x_dim": 0 if graph.edge_x is None else graph.edge_x.dim,
        "node_x_dim": 0 if graph.node_x is None else graph.node_x.dim,
    }


def width_error(kind: str, dim: int, found: int) -> ValueError:
    """Return the error of a model that reads features of width `dim` where there are `found`."""
    return ValueError(
        f"the model reads {kind} features of width {dim}, the graph has {found}: build the model "
        f"by its for_graph(graph), or make {kind}_x_dim of the model and of the graph agree"
    )


def device_of_model(model: TemporalModel) -> torch.device:
    """Return where a model's parameters are, or else its buffers; the CPU without any."""
    tensors = chain(model.parameters(), model.buffers())
    return next((x.device for x in tensors), torch.device("cpu"))
