"""The job: what to train. Written once by the user, it knows nothing of machines."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from cordee.core.errors import JobError
from cordee.core.words import did_you_mean
from cordee.feed.batch import Batch, target_of
from cordee.feed.data import Data, as_data
from cordee.feed.order import SHUFFLES, Order
from cordee.train.callbacks import Callback


@dataclass(frozen=True)
class Stop:
    """When to end before the last epoch; all workers end after the same step."""

    steps: int | None = None
    """After so many steps over all epochs."""
    minutes: float | None = None
    """After so much time in this start of the run."""
    metric: str | None = None
    """Early stopping: end when this validation metric (`loss`, or one of the job's; `-name` if less is better) stops
    getting better. The run's model is then the best one by it, not the last."""
    patience: int = 3
    """Evaluations without progress before early stopping ends the run."""
    least_gain: float = 0.0
    """What counts as progress."""
    when: Callable[[Any], bool] | None = None
    """Own condition, asked after every step with the step just committed (`number`, `epoch`, `loss`, ...)."""


@dataclass(frozen=True)
class Save:
    """When checkpoints are written and which are kept. The last step of a run is always saved."""

    steps: int | None = None
    epochs: int | None = 1
    seconds: float | None = None
    keep_last: int = 3
    keep_best: str | None = None
    """Also keep the best by this validation metric: `accuracy`, `loss` for the lowest loss, `-name` if less is better.
    The run's model is then the best one, not the last. Default: by `Stop(metric=...)`, if it is there."""


@dataclass(frozen=True)
class Job:
    """What to train: model, loss, optimizer, data and batch, and when to stop.

    `loss` is the mean over the samples it is given; a model whose loss is not a function of output and target gives
    `objective(model, batch)` instead. What is computed per step depends on these fields and the seed alone.
    """

    model: Callable[[], nn.Module]
    data: Any
    optimizer: Callable[[Any], Optimizer]
    loss: Callable[[Any, Any], Tensor] | None = None
    objective: Callable[[nn.Module, Batch], Tensor | tuple[Tensor, Any]] | None = None
    """Loss of a batch, or (loss, output) where metrics need the output."""
    batch: int = 32
    batch_per: str = "step"
    """`step`: `batch` is the global batch. `replica`: times the number of workers at the first start, then frozen."""
    target: str | int | None = None
    """The field of a batch that `loss` and metrics compare with, by name, or by place in a tuple. Default: `y`, else
    `labels`, `label`, `targets` or `target`."""
    epochs: int | None = 1
    metrics: Mapping[str, Any] = field(default_factory=dict)
    schedule: Callable[[Optimizer], LRScheduler] | None = None
    schedule_per: str = "step"
    """Whether the schedule moves on after every `step` or every `epoch`."""
    scale_lr: str = "none"
    """With `batch_per="replica"`: multiply learning rates by the number of replicas (`linear`) or its root (`sqrt`)."""
    tensor_plan: Mapping[str, Any] | None = None
    """For plans with `tensor=N`: which layers are cut over N workers, and how. From names as `named_modules` has them,
    which may hold `*`, to `"column"` (by outputs), `"row"` (by inputs), `"vocabulary"` (rows of an embedding or a head)
    or a `ParallelStyle` of torch. Without it, what can be cut is found; with `"vocabulary"` and `"whole"` alone, these
    correct what is found."""
    stages: Sequence[str] | None = None
    """For plans with `pipeline=N`: the first layer of each stage, by its name. Without it, stages of equal cost are
    found."""
    clip: float | None = None
    """Largest norm of the global gradient."""
    weigh: Callable[[Batch], float] | None = None
    """What a batch weighs if it is not its number of samples; the loss must be the mean over that (tokens, say)."""
    seed: int = 0
    shuffle: str = "full"
    drop_last: bool = False
    steps_per_epoch: int | None = None
    """Treat the data as endless, with epochs of so many steps."""
    eval_batch: int | None = None
    """Batch of validation and test; default: `batch`."""
    stop: Stop = field(default_factory=Stop)
    save: Save = field(default_factory=Save)
    callbacks: Sequence[Callback] = ()
    start_from: str | None = None
    """Begin with the weights of this run folder, checkpoint, .safetensors file or Hugging Face folder, by name."""
    start_partly: bool = False
    """Of `start_from`, leave out what has another shape in this model; otherwise that is an error."""
    preflight: bool = True
    """Check before the first step that shares of a batch add up to the whole."""
    name: str = "job"

    def __post_init__(self) -> None:
        """Refuse what cannot work, naming field and value."""
        for name, takes in (("model", ""), ("optimizer", " params"), ("schedule", " optimizer")):
            value = getattr(self, name)
            if (not callable(value) or isinstance(value, nn.Module)) and (name, value) != ("schedule", None):
                raise JobError(
                    f"{name}={value!r}: expected a function that makes it, because every worker makes its own: "
                    f"{name}=lambda{takes}: ..."
                )
        if (self.loss is None) == (self.objective is None):
            raise JobError("a job needs either loss=f(output, target) or objective=f(model, batch)")
        for name, given in (("loss", self.loss), ("objective", self.objective)):
            if isinstance(given, type):  # calling it would only make an instance
                short = f"nn.{given.__name__}" if given.__module__.startswith("torch.nn.") else given.__name__
                raise JobError(f"{name} is the class {given.__name__}: expected a function or an instance, {short}()")
        count = "a whole number of at least 1"
        for name, fits, expected in (
            ("loss", self.loss is None or callable(self.loss), "a function of (output, target)"),
            ("objective", self.objective is None or callable(self.objective), "a function of (model, batch)"),
            ("metrics", isinstance(self.metrics, Mapping), "a dict from names to metrics"),
            ("tensor_plan", isinstance(self.tensor_plan, Mapping | None), "a dict from names of layers to cuts"),
            ("stages", _are_names(self.stages), "a list with the name of the first layer of each stage"),
            ("batch", _is_count(self.batch), count),
            ("epochs", self.epochs is None or _is_count(self.epochs), count),
            ("steps_per_epoch", self.steps_per_epoch is None or _is_count(self.steps_per_epoch), count),
            ("eval_batch", self.eval_batch is None or _is_count(self.eval_batch), count),
            ("batch_per", self.batch_per in ("step", "replica"), "one of step, replica"),
            ("schedule_per", self.schedule_per in ("step", "epoch"), "one of step, epoch"),
            ("scale_lr", self.scale_lr in ("none", "linear", "sqrt"), "one of none, linear, sqrt"),
            ("shuffle", self.shuffle in SHUFFLES, f"one of {', '.join(SHUFFLES)}"),
            ("clip", self.clip is None or (math.isfinite(self.clip) and self.clip > 0), "a number above 0"),
        ):
            if not fits:
                raise JobError(f"{name}={getattr(self, name)!r}: expected {expected}")
        if "loss" in self.metrics:
            raise JobError("metrics: 'loss' is the name of the loss itself, which is always measured: choose another")
        if self.scale_lr != "none" and self.batch_per != "replica":
            raise JobError(
                f"scale_lr={self.scale_lr!r} needs batch_per='replica': a batch per step does not grow with workers"
            )
        if self.epochs is None and self.stop.steps is None and self.stop.minutes is None and self.stop.when is None:
            raise JobError("epochs=None needs an end: stop=Stop(steps=...), Stop(minutes=...) or Stop(when=...)")
        object.__setattr__(self, "data", as_data(self.data))
        check_streams(self)
        known = ("loss", *self.metrics)
        for what, wanted in (("save.keep_best", self.save.keep_best), ("stop.metric", self.stop.metric)):
            metric = (wanted or "loss").lstrip("-")
            if metric not in known:
                near = did_you_mean(metric, known)
                raise JobError(f"{what}={wanted!r}: this job has no metric {metric!r}.{near} It has {', '.join(known)}")
            if wanted is not None and self.data.validation is None:
                raise JobError(
                    f"{what}={wanted!r} goes by a validation metric, but the data have no validation set: "
                    "data={'train': ..., 'validation': ...}, or cordee.data.arrays(x, y, validation=0.1)"
                )

    def resolve(self, replicas: int) -> Resolved:
        """Fix what depends on the number of replicas, once, at the first start of a run."""
        if self.batch_per == "step":
            return Resolved(self.batch, 1.0)
        factor = {"none": 1.0, "linear": float(replicas), "sqrt": math.sqrt(replicas)}[self.scale_lr]
        return Resolved(self.batch * replicas, factor)

    def order(self, resolved: Resolved) -> Order:
        """Which samples every step holds."""
        data: Data = self.data
        return Order(
            len(data.train),
            resolved.batch,
            seed=self.seed,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            steps_per_epoch=self.steps_per_epoch,
        )

    def make_model(self) -> nn.Module:
        """A new model of this job."""
        made = self.model()
        _check_made("model", made, isinstance(made, nn.Module), "a torch.nn.Module")
        return made

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer of this model; its function gets a list, to go through as often as it likes for its groups."""
        made = self.optimizer(list(model.parameters()))
        _check_made("optimizer", made, isinstance(made, Optimizer), "a torch.optim.Optimizer")
        return made

    def make_schedule(self, optimizer: Optimizer) -> LRScheduler | None:
        """The schedule of this optimizer, if the job has one."""
        if self.schedule is None:
            return None
        made = self.schedule(optimizer)
        fits = all(callable(getattr(made, name, None)) for name in ("step", "state_dict", "load_state_dict"))
        _check_made("schedule", made, fits, "a schedule of torch.optim.lr_scheduler")
        asked = inspect.signature(made.step).parameters.values()
        if needed := [one.name for one in asked if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]:
            raise JobError(
                f"schedule: {type(made).__name__} moves on by a value ({', '.join(needed)}), but a job's schedule goes "
                "by the number of steps or epochs alone. Take one that does (CosineAnnealingLR, MultiStepLR, ...), "
                "with stop=Stop(metric='loss') if the run should end when validation gets no better; or write a loop "
                "of your own (cordee.session), which may step it as it likes"
            )
        return made

    def check_schedule(self, schedule: LRScheduler | None, steps: int | None, steps_per_epoch: int) -> None:
        """Refuse a schedule that ends before the run does, which is after so many `steps` (None: not known)."""
        if steps is None or not isinstance(schedule, OneCycleLR):  # others of PyTorch's have no end
            return
        total = schedule.total_steps
        moves = steps if self.schedule_per == "step" else steps // steps_per_epoch
        if total < moves:
            raise JobError(
                f"schedule: {type(schedule).__name__} ends after total_steps={total}, but it moves on {moves} times in "
                f"this run, once every {self.schedule_per} (schedule_per={self.schedule_per!r}). Give it total_steps="
                f"{moves}, or end the run with it: stop=Stop(steps=...), epochs=... (A run that is resumed keeps the "
                "schedule that it began with.)"
            )

    def compute(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Any]:
        """Loss and output for one batch."""
        if self.objective is not None:
            found = self.objective(model, batch)
            return found if isinstance(found, tuple) else (found, None)
        assert self.loss is not None
        output = model(batch.x)
        return self.loss(output, self.target_of(batch)), output

    def target_of(self, batch: Batch) -> Any:
        """What `loss` and metrics compare an output with."""
        return target_of(batch, self.target)

    def replace(self, **fields: Any) -> Job:
        """The same job with other fields."""
        return dataclasses.replace(self, **fields)

    def last_step(self, steps_per_epoch: int) -> int | None:
        """The step after which a run ends if nothing else ends it; None where only something else does."""
        ends = [self.epochs * steps_per_epoch] if self.epochs is not None else []
        ends += [self.stop.steps] if self.stop.steps is not None else []
        return min(ends, default=None)


@dataclass(frozen=True)
class Resolved:
    """What was fixed at the first start of a run, and stays when it is resumed with other workers."""

    batch: int
    lr_factor: float


def check_streams(job: Job) -> None:
    """Refuse an endless stream where the data have to end, or in another order than that in which it comes."""
    for part, source in job.data.sets.items():
        if source.traits.stream is None:
            continue
        if part != "train":
            raise JobError(f"{part}: an endless stream has no end at which it is judged; give arrays or a dataset")
        wrong = {"steps_per_epoch=1000": job.steps_per_epoch is None, "shuffle='none'": job.shuffle != "none"}
        if missing := [text for text, is_wrong in wrong.items() if is_wrong]:
            raise JobError(
                f"data: an endless stream has no epochs of its own, and is used in the order in which it comes. Add "
                f"{', '.join(missing)} to the job. (For shuffled epochs write its rows to a store once: "
                "data=cordee.data.rows(factory))"
            )


def _are_names(value: Any) -> bool:
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    return value is None or (listed and all(isinstance(one, str) for one in value))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_made(name: str, made: Any, fits: bool, expected: str) -> None:
    """Refuse what a function of the job made, unless it `fits`."""
    if fits:
        return
    if made is None:
        raise JobError(f"{name}: the function gave None, expected {expected}. Is its return missing?")
    gave = f"the class {made.__name__}" if isinstance(made, type) else f"a {type(made).__name__}"
    raise JobError(f"{name}: the function gave {gave}, expected {expected}")
