"""How a job's model lies over workers, and that it then computes what it computed whole: loss and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from cordee.core.errors import ModelError, WorkersLost
from cordee.core.events import CutEvent, ShardEvent
from cordee.diagnose.preflight.check import materialise
from cordee.feed.batch import Batch
from cordee.feed.late import read
from cordee.feed.order import Order
from cordee.group.lines import PART_LOST
from cordee.group.sliced import aligned, cut_as, is_sliced, local_of
from cordee.group.team import Team
from cordee.split.cut import Cut
from cordee.split.find import choose_cut
from cordee.split.pipeline import Pipeline
from cordee.split.seam import Micro, Split
from cordee.split.shard import Sharding, parameters_of, reshard, seeing_calls
from cordee.split.tensor import TensorPlan, check_found_tokens
from cordee.sync.gradients import drop
from cordee.train.agreement import agree_on
from cordee.train.checks import subject_of
from cordee.train.job import Job
from cordee.train.placing import Placing
from cordee.train.shares import cut_rows, kind_of

LOSS_TOLERANCE = 1e-3
"""By how much the loss of a model in slices may differ from that of the whole one: rounding, in any format."""
GRADIENT_TOLERANCE = {torch.float16: 0.2, torch.bfloat16: 0.2}
"""By how much a gradient may differ, beside its largest number; 0.01 for other formats. A wrong one is far off."""
NOISE = 1e-3
"""Of the largest gradient: less than this is rounding where the true gradient is nought."""
LOOKED_AT = 64
"""Samples among which two are chosen that weigh something."""
ROOM = 4
"""Times the parameters: the memory that must be free for a comparison of gradients."""


@dataclass(frozen=True)
class Measured:
    """What a model computes for two samples, in evaluation mode."""

    loss: float
    gradients: Mapping[str, Tensor | None] | None
    """By parameter; None: not computed."""


class Comparison:
    """The model of a job, before it is cut or sharded and after."""

    def __init__(self, job: Job, model: nn.Module, batch: Batch, team: Team) -> None:
        """`model` is whole, and `batch` has a few samples of the job."""
        self._job, self._batch, self._team = job, batch, team
        self._cut: Cut | None = None
        self._shards = team.lines.shape.shards
        with seeing_calls(model) as self.called:
            self._whole = self._measure(model, gradients=self._has_room(model))

    def choose(self, model: nn.Module, *, sequence: bool) -> TensorPlan | None:
        """How the model is cut: as the job names it, else as is found; the same on all workers. None: not at all."""
        plan, slices = self._job.tensor_plan, self._team.slices.size
        if slices == 1:
            return None
        if plan is not None and not all(isinstance(how, str) for how in plan.values()):
            check_found_tokens(plan, sequence=sequence)
            return plan
        self._cut = choose_cut(model, partial(compute, self._job, model, self._batch), plan, slices, sequence=sequence)
        agree_on(self._team, {"cut of the model": self._cut.to_dict()})
        return self._cut

    def check(self, model: nn.Module, placing: Placing) -> list[CutEvent | ShardEvent]:
        """Refuse a model that computes something else, now that it lies over workers as `placing` has it."""
        whole, gradients, split = self._whole, self._whole.gradients is not None, placing.split
        try:
            cut = self._in_stages(model, split) if split.partly else self._measure(model, gradients=gradients)
        except (IndexError, ValueError, TypeError, RuntimeError, AssertionError) as error:
            self._team.lines.leave_if_broken()
            raise self._misfit(f"it fails ({(str(error).splitlines() or [''])[0]}).") from error
        worst, where = self._largest_difference(model, split, cut)  # all workers, also where the loss is wrong
        wrong = []
        if not math.isclose(whole.loss, cut.loss, rel_tol=LOSS_TOLERANCE, abs_tol=LOSS_TOLERANCE):
            wrong.append(f"the loss of two samples is {cut.loss:g}")
        allowed = GRADIENT_TOLERANCE.get(next(model.parameters()).dtype, 0.01)
        if worst is not None and (wrong or worst > allowed):
            wrong.append(f"the gradient of {where} differs {'most, ' * bool(wrong)}by {worst:.2g} of its size")
        if wrong:
            raise self._misfit(f"{'; '.join(wrong)}.{self._advice(where)}")
        differences = (abs(cut.loss - whole.loss), worst, where)
        return [*self._cut_event(split, differences), *self._shard_event(model, placing.sharding, differences)]

    def _cut_event(self, split: Split, differences: tuple[float, float | None, str]) -> Iterator[CutEvent]:
        if self._team.slices.size == 1 and not isinstance(split, Pipeline):
            return
        layers = [(one.layer, one.how) for one in self._cut.layers] if self._cut is not None else []
        left = [(one.layer, one.reason) for one in self._cut.whole] if self._cut is not None else []
        stages = split.stages if isinstance(split, Pipeline) else None
        units = [(one.name, stages.stage_of(at), one.cost) for at, one in enumerate(stages.units)] if stages else []
        speeds = [round(one, 3) for one in stages.speeds] if stages else []
        yield CutEvent(self._team.slices.size, layers, left, *differences, units, speeds)

    def _shard_event(
        self, model: nn.Module, sharding: Sharding | None, differences: tuple[float, float | None, str]
    ) -> Iterator[ShardEvent]:
        if sharding is not None:
            units, kept = (list(names) for names in sharding.of[model])
            yield ShardEvent(sharding.word, self._shards, units, kept, *differences)

    def _in_stages(self, model: nn.Module, split: Split) -> Measured:
        """The same by the stages of a pipeline, in two micro-batches; gradients are computed in any case."""
        trial = _Trial(self._job, model, self._batch, self._shards)
        with _evaluating(model):
            split.run(trial)
        loss = None if trial.lost else split.tell(trial.loss)
        if loss is None:
            raise WorkersLost(PART_LOST)
        here = {split.aliases.get(name, name): one for name, one in parameters_of(model).items()}
        found = {name: None if one.grad is None else _kept(one.grad) for name, one in here.items() if one.requires_grad}
        drop(here.values())
        return Measured(float(loss), found)

    def _largest_difference(self, model: nn.Module, split: Split, cut: Measured) -> tuple[float | None, str]:
        """Of any gradient on any worker of the replica, beside its size, and of which parameter; None: not known."""
        if self._whole.gradients is None or cut.gradients is None:
            return None, ""
        sizes = {name: 0.0 if one is None else float(one.abs().max()) for name, one in self._whole.gradients.items()}
        noise = NOISE * max(sizes.values(), default=0.0)
        here = {split.aliases.get(name, name): one for name, one in parameters_of(model).items()}
        differences = [0.0] * len(sizes)
        for place, (name, expected) in enumerate(self._whole.gradients.items()):
            if name not in here:  # on another stage
                continue
            gradient, parameter = cut.gradients.get(name), here[name]
            part = None if gradient is None else local_of(aligned(gradient, parameter)).cpu()
            if part is not None and not is_sliced(parameter, "shard"):  # of its shards, each has its part of the sum
                part = part * self._shards
            wanted = None if expected is None else cut_as(parameter, expected)
            differences[place] = _distance(part, wanted) / (sizes[name] + noise or 1.0)
        sides = self._team.inside.gather(torch.tensor(differences, dtype=torch.float64)).wait()
        if sides is None:
            raise WorkersLost(PART_LOST)
        worst = torch.stack(sides).max(0).values.nan_to_num(nan=math.inf)
        place = int(worst.argmax()) if len(worst) else 0
        return (float(worst[place]), list(sizes)[place]) if len(worst) else (None, "")

    def _advice(self, parameter: str) -> str:
        """What to leave as it is, if the gradient of this parameter is wrong; empty: not known."""
        layer = parameter.rpartition(".")[0] or parameter
        if not layer or self._team.slices.size == 1:
            return ""
        return f" Leave the layer {layer}, or the layers between which it stands, out of tensor_plan."

    def _misfit(self, found: str) -> ModelError:
        if self._shards > 1 and self._team.slices.size == self._team.stages.size == 1:
            return ModelError(
                f"the model cannot be sharded: whole, the loss of two samples was {self._whole.loss:g}; sharded, "
                f"{found} The parameters of a block are there while it is called: call model(x) and layer(x) rather "
                "than other methods of theirs, and use no weight of a block outside of it; or leave shard= out of the "
                "plan"
            )
        if self._team.slices.size == 1:
            return ModelError(
                "the stages of the pipeline do not compute what the model does: whole, the loss of two samples was "
                f"{self._whole.loss:g}; in stages, {found} Name other stages with Job(stages=[...]), or leave "
                "pipeline out of the plan"
            )
        reasons = "; ".join(dict.fromkeys(one.reason for one in self._cut.layers if one.reason)) if self._cut else ""
        told = f" What was seen of these layers: {reasons}." if reasons and self._job.tensor_plan else ""
        return ModelError(
            f"{'tensor_plan' if self._job.tensor_plan else 'the cut'} does not fit the model: whole, the loss of two "
            f"samples was {self._whole.loss:g}; cut, {found}{told} Cut linear layers in pairs, the first by column, "
            "the one that takes its output by row, with nothing but functions of single elements or heads between "
            "them; leave out layers that share their weight with another"
        )

    def _measure(self, model: nn.Module, *, gradients: bool) -> Measured:
        """All workers that hold a replica together call this."""
        with _evaluating(model):
            with torch.set_grad_enabled(gradients):
                loss = compute(self._job, model, self._batch)
            if not gradients:
                return Measured(float(loss), None)
            asked = {name: one for name, one in parameters_of(model).items() if one.requires_grad}
            if any(is_sliced(one, "shard") for one in asked.values()):
                loss.backward(torch.full_like(loss, 1 / self._shards))  # type: ignore[no-untyped-call]
                made = tuple(one.grad for one in asked.values())
                drop(asked.values())
            else:
                made = torch.autograd.grad(loss, list(asked.values()), allow_unused=True)
            return Measured(float(loss.detach()), {name: _kept(one) for name, one in zip(asked, made, strict=True)})

    def _has_room(self, model: nn.Module) -> bool:
        """Whether all workers of the replica have the memory for gradients of the whole model."""
        needed = ROOM * sum(one.nbytes for one in model.parameters())
        device = next((one.device for one in model.parameters()), torch.device("cpu"))
        free = psutil.virtual_memory().available / max(1, self._team.membership.size)
        if device.type == "cuda":
            free = min(free, torch.cuda.mem_get_info(device)[0])
        without = torch.tensor([float(free < needed)])
        if not self._team.inside.sum(without).wait():
            raise WorkersLost(PART_LOST)
        return float(without) == 0.0


class _Trial:
    """Two samples as a share; see `split/seam.py`, `Share`."""

    def __init__(self, job: Job, model: nn.Module, batch: Batch, shards: int) -> None:
        self._job, self._model, self._batch, self._shards = job, model, batch, shards
        self._factors: list[float] = []
        self.loss: Tensor | None = None
        """On the worker that has it."""
        self.lost = False

    def compute(self) -> None:
        raise AssertionError("it goes through stages")

    def micros(self, most: int) -> Sequence[Micro]:
        parts = cut_rows(self._batch, most)
        weights = [float(self._job.weigh(part) if self._job.weigh else len(part)) for part in parts]
        self._factors = [weight / (sum(weights) or 1.0) for weight in weights]
        return [
            Micro(partial(compute, self._job, self._model, part), factor / self._shards, kind_of(part, "trial"))
            for part, factor in zip(parts, self._factors, strict=True)
        ]

    def done(self, losses: Sequence[Tensor] | None) -> None:
        self.lost = losses is None
        if losses:
            pairs = [(loss, factor) for loss, factor in zip(losses, self._factors, strict=True) if factor]
            self.loss = torch.tensor([sum(float(loss) * factor for loss, factor in pairs)], dtype=torch.float64)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; the former mode afterwards, and nothing of a sharded model gathered."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        reshard(model)
        for module, mode in training.items():
            module.training = mode


def model_of_job(job: Job) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A model of the job, and what computes the loss of two samples with it; in this process alone."""
    torch.manual_seed(job.seed)
    model, order = job.make_model(), job.order(job.resolve(1))
    materialise(subject_of(job, model), job.data.train, order, "cpu")
    return model, partial(compute, job, model, two_that_count(job, order, "cpu"))


def cut_of_job(job: Job, slices: int, *, sequence: bool = False) -> Cut:
    """How the model of a job would be cut, found by this process alone."""
    model, run = model_of_job(job)
    return choose_cut(model, run, job.tensor_plan, slices, sequence=sequence)


def first_batch(job: Job, order: Order, device: str, count: int) -> Batch:
    """The first samples of a run, at most `count` of them."""
    ids = order.ids(0, 0)[:count]
    return read(job.data.train, ids, device)


def two_that_count(job: Job, order: Order, device: str) -> Batch:
    """Two of the first samples, such as weigh something if there are any: the loss of others is a mean over nothing."""
    first = first_batch(job, order, device, LOOKED_AT if job.weigh else 2)
    if job.weigh is None:
        return first
    heavy = [one for one in cut_rows(first, len(first)) if job.weigh(one) > 0][:2]
    ids = np.concatenate([one.ids for one in heavy]) if heavy else first.ids[:2]
    return read(job.data.train, ids, device)


def compute(job: Job, model: nn.Module, batch: Batch) -> Tensor:
    """The loss of a batch, with the same draws each time."""
    torch.manual_seed(job.seed)
    return job.compute(model, batch)[0]


def _kept(gradient: Tensor | None) -> Tensor | None:
    """In main memory, unless it is a slice."""
    return gradient if gradient is None or hasattr(gradient, "placements") else gradient.detach().cpu()


def _distance(one: Tensor | None, other: Tensor | None) -> float:
    if one is None or other is None:
        there = one if other is None else other
        return 0.0 if there is None or not there.numel() else float(there.abs().max())
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0
