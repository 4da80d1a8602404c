"""The reducers of a session: one for each optimizer, and what they do together."""

from __future__ import annotations

import contextlib
import gc
import inspect
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.optim import Optimizer

from cordee.core.errors import UsageError
from cordee.core.plan import Plan
from cordee.core.window import Rule
from cordee.group.alike import alike
from cordee.group.team import Team
from cordee.split.shard import parameters_of
from cordee.sync.adaptive import BUCKET_MB as ADAPTIVE_BUCKET_MB
from cordee.sync.adaptive import Adaptive, Settings
from cordee.sync.allreduce import BUCKET_MB, AllReduce
from cordee.sync.batchnorm import batchnorms
from cordee.sync.local import LocalSteps, Outer
from cordee.sync.lossy import LEFT_OUT, LEFT_OUT_OF_MERGES, Exact, Lossy
from cordee.sync.meeting_points import backward_from, meeting_points
from cordee.sync.pieces import Pieces, TreeSums
from cordee.sync.seam import Kept, Recorded, Sync
from cordee.sync.server.packing import Packing
from cordee.sync.server.pushed import MEAN, PushedSteps, outer_optimizer
from cordee.sync.server.served import Served
from cordee.sync.sliced import SlicedSums
from cordee.sync.ways import WAYS
from cordee.train.agreement import agree_on, of_optimizer
from cordee.train.gathering import count_calls
from cordee.train.offload import HostState
from cordee.train.placing import Placing

_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Reducers:
    """Finds the reducer of an optimizer; with two optimizers nothing is sent before `step` asks for it."""

    def __init__(self, team: Team, plan: Plan, models: list[nn.Module], placing: Placing) -> None:
        """None yet; `models` are those that were prepared, and will be, as `placing` has laid them out."""
        self.kept: list[Kept] = []
        """What each of them kept when it was last saved, in the order in which they were made."""
        self.taken_up: list[Kept] = []
        """The same of the run that is resumed or entered, for the next ones that are made."""
        self._team, self._plan, self._models, self._placing = team, plan, models, placing
        self._window = plan.window
        self.one_update = False
        """Whether each batch is known to have one update, as in the loop of a job."""
        self.least = 1
        """So many updates may be expected of a step: two, if some parameters are in no optimizer so far."""
        self._strays: set[nn.Parameter] = set()
        """Parameters outside of all models, which are known to be the same on all workers."""
        self.loop: dict[str, Any] = {}
        """What is gone through; all workers have to go through the same."""
        self.pieces = Pieces()
        """Under exact=true: those of the step that trains."""
        self._passing = False
        """Whether a backward pass is under way."""
        self._of: dict[Optimizer, Sync] = {}
        self._hosted: dict[Optimizer, HostState] = {}
        team.on_regroup.append(self._renew)

    def of(self, optimizer: Optimizer, *, agree: bool = True) -> tuple[Sync, bool]:
        """What sums the gradients of this optimizer's parameters; False if a collective failed meanwhile.

        A new one is compared with those of the other workers, unless they do not `agree` now.
        """
        if (known := self.known(optimizer)) is not None:
            return known, True
        parameters, reducer = _trained(optimizer), self._of.get(optimizer)
        _refuse_closure(optimizer)
        same = next((key for key, other in self._of.items() if _covers(other, parameters)), None)
        if reducer is None and same is not None:  # made anew for another stage: nothing changes for the gradients
            return self._enter(optimizer, self._of.pop(same), agree), True
        sound = self.hold_back()
        for key, other in list(self._of.items()):  # its own former one, and those of stages with fewer parameters
            if other is reducer or set(other.parameters) <= set(parameters):
                self._of.pop(key).close()
        sync = self._enter(optimizer, self._make(parameters, optimizer), agree)
        if agree:
            sync.meet()
        return sync, sound

    def known(self, optimizer: Optimizer) -> Sync | None:
        """The reducer of its parameters as they are now; None if there is none yet."""
        reducer = self._of.get(optimizer)
        return reducer if reducer is not None and _covers(reducer, _trained(optimizer)) else None

    def _make(self, parameters: Sequence[nn.Parameter], optimizer: Optimizer) -> Sync:
        plan, team = self._plan, self._team
        kept = self.taken_up.pop(0) if self.taken_up else {}
        if plan.exact:
            return TreeSums(parameters, team, lambda: self.pieces, bucket_mb=plan.bucket_mb)
        if team.sliced:
            return SlicedSums(
                parameters, team, bucket_mb=plan.bucket_mb or BUCKET_MB, counts=self._placing.split.counts
            )
        overlap, lifts = plan.overlap and not self._of, plan.local_lr == "root"
        if plan.sync == "auto":
            real = all(parameter.is_floating_point() for parameter in parameters)
            ways = WAYS if plan.faithful == "any" and real else WAYS[:1]
            settings = Settings(ways, self._can_merge, overlap, plan.bucket_mb or ADAPTIVE_BUCKET_MB, lifts)
            return Adaptive(parameters, team, settings, kept)
        if plan.sync == "server":
            return self._serve(parameters, optimizer, kept, overlap=overlap)
        name = LEFT_OUT_OF_MERGES if plan.merges else LEFT_OUT
        adds = Exact(team) if plan.compress == "none" else Lossy(plan.compress, parameters, team, kept, name)
        if plan.sync == "local":
            return LocalSteps(parameters, adds, every=plan.local_steps, lifts=lifts, outer=self._outer(), kept=kept)
        return AllReduce(parameters, adds, bucket_mb=plan.bucket_mb, overlap=overlap)

    def _serve(self, parameters: Sequence[nn.Parameter], optimizer: Optimizer, kept: Kept, *, overlap: bool) -> Sync:
        """Parameter servers apply gradients, or what local steps come to."""
        plan, team = self._plan, self._team
        name = LEFT_OUT_OF_MERGES if plan.merges else LEFT_OUT
        packing = Packing(plan.compress, parameters, team, kept, name) if plan.compress != "none" else None
        outside = outer_optimizer(parameters, self._outer() or MEAN, kept) if plan.merges else None
        served = Served(
            parameters,
            optimizer if outside is None else outside,
            team,
            servers=plan.servers,
            key=len(self._of),
            overlap=overlap and plan.window is None,
            packing=packing,
        )
        if outside is None:
            return served
        lifts = plan.local_lr == "root"
        return PushedSteps(served, outside, packing or Exact(team), every=plan.local_steps, lifts=lifts)

    def _outer(self) -> Outer | None:
        """The outer update of the plan; None: a merge takes the mean."""
        plan = self._plan
        return Outer(plan.outer_lr, plan.outer_momentum) if plan.outer == "nesterov" else None

    @property
    def rule(self) -> Rule | None:
        """How the next steps are shared out in windows; None: all replicas compute their shares of the same step."""
        if self._window is None:
            for sync in self._of.values():
                return sync.rule
        return self._window

    def _can_merge(self) -> bool:
        """Whether sync=auto may do local steps here: no pass needs the other replicas, and a batch has one update."""
        plan = self._plan
        exact = plan.batchnorm == "exact" and any(batchnorms(model) for model in self._models)
        return self.one_update and not (exact or count_calls() or plan.replace or plan.precision == "fp16")

    def merge(self, *, saving: bool) -> None:
        """Make the parameters equal on all replicas."""
        kept = [sync.merge(saving=saving) for sync in self._of.values()]
        self.kept = kept if saving else self.kept

    def _renew(self) -> None:
        """After a regrouping: if others have come in, all reducers begin anew, as theirs do. Nothing is under way."""
        if not self._team.came:
            return
        former, self._of, self.taken_up = self._of, {}, list(self.kept)
        for key, sync in former.items():
            sync.close()
            self._of[key] = self._make(sync.parameters, key)

    def _enter(self, optimizer: Optimizer, reducer: Sync, agree: bool) -> Sync:
        if agree:
            agree_on(self._team, {**of_optimizer(optimizer, counts=self._plan.pipeline == 1), **self.loop})
            self._check_strays(optimizer)
        self._of[optimizer] = reducer
        if self._plan.offload in ("optimizer", "all") and optimizer not in self._hosted:
            self._hosted[optimizer] = HostState(optimizer)
        given = {one for each in self._of.values() for one in each.parameters}
        self.least = 2 if any(one.requires_grad and one not in given for one in self.all_parameters()) else 1
        return reducer

    def _check_strays(self, optimizer: Optimizer) -> None:
        """Refuse parameters that no prepared model holds, unless they are the same on all workers."""
        known = {one for model in self._models for one in parameters_of(model).values()} | self._strays
        strays = [one for group in optimizer.param_groups for one in group["params"] if one not in known]
        if not strays:
            return
        name = type(optimizer).__name__
        if (owner := owner_of(strays)) is not None:
            raise UsageError(
                f"{name} was given parameters of a {type(owner).__name__} that was never prepared: they would begin "
                "with other numbers on every worker, and its layers and buffers would know its share alone. Write "
                "model = s.prepare(model) for every model, then make its optimizer"
            )
        if not alike(strays, self._team):
            raise UsageError(
                f"{name} was given parameters that no prepared model holds, and that begin with other numbers on every "
                "worker. Put them into a module and prepare it: s.prepare(nn.ParameterList([...])), or make them "
                "alike: torch.manual_seed(0) before"
            )
        self._strays.update(strays)

    def backward(
        self, loss: Tensor, factor: float, met: Sequence[GradientEdge], early: Sync | None, record: Recorded
    ) -> None:
        """Run the backward pass of my share, whose loss counts `factor` times; `early` sends what is complete.

        A share that weighs nothing (`factor` 0) and meets no other in its backward pass leaves no gradient.
        """
        silent = factor == 0.0 and not met and self._placing.sharding is None
        if silent:
            self._pass_for_nothing(loss)
        if early is not None:  # an empty share too, though its gradients were there before: it sends when others do
            early.begin(record)
        self._passing = True
        if self._placing.sharding is not None and factor == 0.0 and (outputs := self._placing.sharding.outputs(loss)):
            backward_from(meeting_points(loss), outputs)
        elif met:
            backward_from(met)
        elif not silent:
            wide = loss if loss.dtype in (torch.float32, torch.float64) else loss.float()
            wide.backward(torch.full_like(wide, factor))  # type: ignore[no-untyped-call]
        self._passing = False
        if self._placing.sharding is not None:
            self._placing.sharding.end()

    def _pass_for_nothing(self, loss: Tensor) -> None:
        """An empty share: run the backward pass, whose collectives the others wait for, and drop what it gives."""
        kept = [(parameter, parameter.grad) for parameter in self.all_parameters()]
        for parameter, _ in kept:
            parameter.grad = None
        if loss.requires_grad:
            loss.backward(torch.zeros_like(loss))  # type: ignore[no-untyped-call]
        for parameter, gradient in kept:
            parameter.grad = gradient

    def only(self) -> Sync | None:
        """The reducer, if there is just one."""
        return next(iter(self._of.values())) if len(self._of) == 1 else None

    def hold_back(self) -> bool:
        """Gradients of this step come in more than one piece: send nothing early from now on; False: a loss."""
        held = [reducer.begin(None) for reducer in self._of.values()]  # all of them, whatever the first says
        return all(held)

    def forget(self, *, more: bool = False) -> None:
        """Drop the gradients of a step that was void, or to which no step came; `more`: of all models too."""
        for reducer in self._of.values():
            reducer.forget(passed=not self._passing)
        self._passing = False
        if self._placing.sharding is not None:
            self._placing.sharding.forget()
        for parameter in self.all_parameters() if more else ():
            parameter.grad = None

    def close(self) -> None:
        """Take all hooks off."""
        with contextlib.suppress(ValueError):  # closed already
            self._team.on_regroup.remove(self._renew)
        for reducer in self._of.values():
            reducer.close()

    def all_parameters(self) -> list[nn.Parameter]:
        """Those of all models and of all optimizers: one that has not stepped yet has no reducer."""
        of_models = [parameter for model in self._models for parameter in parameters_of(model).values()]
        return list(dict.fromkeys(of_models + [p for reducer in self._of.values() for p in reducer.parameters]))


def _trained(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def _covers(sync: Sync, parameters: Sequence[nn.Parameter]) -> bool:
    """Whether these are the parameters that it agrees on: later ones may be unfrozen or added."""
    return len(sync.parameters) == len(parameters) and all(map(operator.is_, sync.parameters, parameters))


def owner_of(parameters: Sequence[nn.Parameter]) -> nn.Module | None:
    """A module that holds one of these parameters; None for parameters by themselves."""
    wanted = set(parameters)
    for thing in gc.get_objects():  # a parameter does not know its module; asked once, where there are strays
        if issubclass(type(thing), nn.Module) and not wanted.isdisjoint(thing._parameters.values()):
            return thing  # type: ignore[no-any-return]
    return None


def _refuse_closure(optimizer: Optimizer) -> None:
    """Some optimizers compute the loss several times within one update, each time over other parameters."""
    step = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    needed = [one.name for one in step if one.default is one.empty and one.kind in _BY_PLACE]
    if needed:
        raise UsageError(
            f"{type(optimizer).__name__} cannot be used here: its step() needs {', '.join(needed)}, to compute the "
            "loss of a batch several times in one update, where Cordée agrees on one gradient of it. Choose an "
            "optimizer that takes one gradient for one update, such as torch.optim.AdamW or SGD"
        )
