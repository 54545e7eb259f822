"""One step of learning, shared by all trainers: score, check, descend, store."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from tgflow.batch import Batch
from tgflow.keys import derive_key
from tgflow.model import Scores
from tgflow.share import AnyBatch, Share
from tgflow.train.captured import tensors_of
from tgflow.train.draws import seeded_draws
from tgflow.train.reducer import AnyScores, ShareScores
from tgflow.train.slice_steps import SliceSteps, StepResult, detach_scores


class Learner(SliceSteps):
    """Steps a model over batches: `predict`, `learn` and `commit`, in this order or part of it.

    Of a model without parameters there is nothing to descend: `learn` only measures.

    A batch may come as a `Share`, slice by slice. Each slice is computed by itself, with draws by a
    key of its own; gradients, losses and what is not finite are added up over slices in one order
    (`tgflow.tree_sum`), and there is one step of the optimizer. So it does not matter who computes
    which slices, as long as a `SliceReducer` brings together what they came to.

    Dropout (`tgflow.nn.Dropout`) is keyed by (seed, epoch, index), so a step is the same on every
    device and wherever a run was resumed. A model may also draw by torch's default generators: they
    are seeded alike for the step and given back afterwards, so another thread that draws from them
    meanwhile needs a generator of its own. Steps captured in a CUDA graph cannot seed them: such
    draws are other ones after a resume.

    On the CPU, what is not finite raises `TrainingDiverged` before anything has changed. On a
    device nothing waits for that: from the first such batch on, `is_lost` is set there, and no step
    changes parameters, optimizer or state any more. Whoever reads scores and losses later finds out
    which batch it was (`tgflow.train.finite`).

    Args:
        model: Model to train, on its device; batches come there.
        seed: Seeds dropout.
        learning_rate: Adam's, above 0.
        weight_decay: Adam's, at least 0.
        grad_clip: Largest norm of all gradients together, or None.
        loss: What to descend; None: the model's.
        execution: How a GPU is used.
        num_nodes: Returns a bound of the nodes in batches, as `TemporalGraph.num_nodes` is; None:
            a state on a device waits for the largest one at each step.
        checks_at_once: Wait at each step, on a device too, and raise there.
        reducer: Brings slices together, where each step is waited for; None: all of them are
            computed here.
        task: What is learned beside links, of whole batches with `targets`; None: nothing. Its
            steps are not captured.
    """

    def predict(self, batch: AnyBatch) -> AnyScores:
        """Return the logits of `batch` in evaluation mode, without gradients; changes nothing.

        Raises:
            TrainingDiverged: If a score is not finite, unless `is_lost` is to say so.
            ValueError: If the model reads features of other widths than the batch has.
        """
        if isinstance(batch, Share):
            return self._predict_slices(batch)
        with self._evaluating(batch):
            if self._calls is None:
                return self._predicted(batch)
            scores = self._calls.call("predict", batch, self._predicted, tensors_of)
            return self._kept("predict", scores)

    def _predicted(self, batch: Batch) -> Scores:
        scores: Scores = self.model(batch)
        self._check_finite(batch, scores)
        return scores

    def settle(self, batch: AnyBatch) -> None:
        """Have what was computed of a share's slices, such as scores, arrive where it belongs.

        Raises:
            TrainingDiverged: Late, if what another rank has predicted is not finite.
        """
        if isinstance(batch, Share):
            self.reducer.settle(batch)

    def learn(self, batch: AnyBatch, *, stores: bool = True) -> StepResult:
        """Take one optimizer step on all events of `batch`; memory is left as it is.

        Args:
            batch: The batch.
            stores: Whether `commit` follows with the scores that this returns: what a share's
                slices leave for the state is then on its way with their gradients.

        Raises:
            TrainingDiverged: If the loss or a score is not finite, unless `is_lost` is to say so;
                the parameters are unchanged.
            ValueError: If the model reads features of other widths than the batch has.
        """
        if isinstance(batch, Share):
            return self._learn_slices(batch, stores)
        self._check(batch)
        self._set_mode(training=True)
        key = derive_key(self.seed, batch.epoch, batch.index)
        with self._dropout.keyed(key), self._computing():
            if self._calls is None:
                with seeded_draws(key, self.device):
                    return self._learned(batch)
            result = self._calls.call("learn", batch, self._learned, _result_tensors)
            self.has_changed |= self.learns  # as a replay does, which says nothing of it
            assert isinstance(result.scores, Scores)
            return StepResult(result.loss.clone(), self._kept("learn", result.scores))

    def _learned(self, batch: Batch) -> StepResult:
        scores = self.model(batch)
        loss = self._loss(scores)
        if self.task is not None:
            loss = self.task.loss(loss, scores, batch)
        self._check_finite(batch, scores, loss)
        self._descend(loss)
        return StepResult(loss.detach(), detach_scores(scores))

    def _kept(self, name: str, scores: Scores) -> Scores:
        """Return scores that no replay overwrites; note of which one their carry is."""
        assert self._calls is not None
        kept = Scores(scores.positive.clone(), scores.negative.clone(), scores.carry)
        self._replayed = (name, scores, kept) if self._calls.was_replay else None
        return kept

    def _descend(self, loss: Tensor) -> None:
        """Take a step of the optimizer, unless a loss or score was not finite, or there is none."""
        if self.optimizer is None:
            return
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._update()

    def commit(self, batch: AnyBatch, scores: AnyScores | None) -> None:
        """Store the batch's new events in the model's state.

        Args:
            batch: The batch.
            scores: What `predict` or `learn` returned of it; None, if that was not finite, stores
                what the model computes now.
        """
        if isinstance(batch, Share):
            assert not isinstance(scores, Scores)
            self._commit_slices(batch, scores)
            return
        assert not isinstance(scores, ShareScores)
        if scores is None:
            with self._evaluating(batch):
                now: Scores = self.model(batch)
            scores = now
        with self._touching_state():
            self.has_changed = True
            replayed = self._replayed
            if replayed is None or self._state is None or scores is not replayed[2]:
                self.model.commit(batch, scores)
                return
            assert self._calls is not None
            name, found, _ = replayed  # found: where a replay of the commit reads
            commit = partial(self.model.commit, found=found)
            self._calls.call(f"commit {name}", batch, commit, lambda nothing: [], follows=True)


def _result_tensors(result: StepResult) -> list[Tensor]:
    assert isinstance(result.scores, Scores)
    return [result.loss, *tensors_of(result.scores)]
