"""`sync=auto`: how replicas agree is chosen by what is measured: the gentlest way that hides behind the computing.

It begins with exact sums in every step, or, on a link on which one of them would take long, with the gentlest way that
does not. Every few steps all replicas agree on how long they compute and how fast the link between them is, and take
the same decision (`sync/ways.py`): exact sums, codecs, or local steps whose merges are compressed. Each decision is an
event, with its numbers and the step times that it forecasts; the next one tells what was measured. Where there is
nothing to choose from there is one decision, and what is measured for the others takes little of the time between them.

What a codec has left out goes with the next step or merge of the same kind, whichever codec that has. Before gradients
are added up again after local steps, what merges have left out is added, and the states of optimizers, which were each
replica's own, are averaged.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cordee.core.events import DecisionEvent
from cordee.core.window import Rule
from cordee.group.comm import Handle
from cordee.group.team import Team
from cordee.sync.allreduce import AllReduce
from cordee.sync.buckets import Bucket
from cordee.sync.local import LocalSteps
from cordee.sync.lossy import CODECS, LEFT_OUT, LEFT_OUT_OF_MERGES, Exact, Lossy
from cordee.sync.measuring import Clock, Link, costs_of
from cordee.sync.seam import Agreed, Kept, Recorded, Sync, Treatment
from cordee.sync.ways import Cost, Decision, Measured, Way, decide, first_way

FIRST, SOON, EVERY = 2, 8, 20
"""Steps before the first decision, after one that changed the way, and after one that did not."""
SPARE = 30
"""Then so many times as long as it took to measure the link lies between that decision and the next one."""
FASTER = 2.0
"""Merges that send little tell too little of a fast link: if they seem so many times faster, the link is probed."""
BEGIN_S = 0.1
"""The first steps or window, which measure computing, go by the gentlest way that sends at most so long per step."""
BUCKET_MB = 2.0
"""Small, so that much of it is sent while the backward pass goes on."""


class Settings(NamedTuple):
    """What the choice depends on besides what is measured."""

    ways: Sequence[Way]
    """Among which it is made, the gentlest first, local steps last."""
    merges: Callable[[], bool]
    """Whether the training can do local steps."""
    overlap: bool
    """Whether gradients may be sent during the backward pass."""
    bucket_mb: float
    lifts: bool
    """Whether learning rates are higher in local steps; see `LocalSteps`."""


class Adaptive(Sync):
    """Adds gradients up, or merges parameters, by a way that is chosen again every few steps; see `Sync`."""

    def __init__(self, parameters: Sequence[nn.Parameter], team: Team, settings: Settings, kept: Kept) -> None:
        """It begins with exact sums that are not hidden, to measure the computing alone."""
        super().__init__(parameters)
        self.team, self._settings, self._overlap = team, settings, settings.overlap
        self._gradients = Changing(self.parameters, team, kept)
        self._ways = Changing(self.parameters, team, kept, name=LEFT_OUT_OF_MERGES)
        self._sums = AllReduce(self.parameters, self._gradients, bucket_mb=settings.bucket_mb, overlap=False)
        self._local = LocalSteps(self.parameters, self._ways, every=1, lifts=settings.lifts)
        self.way = Way()
        self._apart = False
        """Whether the states of optimizers are each replica's own."""
        self._clock = Clock(team, warms_up=True)
        self._compute_s = math.inf
        """Of a step without what is sent, as far as it is known."""
        self._link = Link(team, self.parameters)
        self._link_then = math.inf
        """How fast it was at the last decision, in bytes per second."""
        self._generation = 0
        """In which this was measured."""
        self._tried: dict[Way, tuple[float, float]] = {}
        self._costs: dict[str, Cost] = {}
        self._is_new = False
        """Whether the way in use was taken by the last decision."""
        self._done, self._next = 0, float(FIRST)
        """Steps since this was made, on all replicas at the same time, and after which of them to decide."""
        self._spared_until = 0.0
        """The time before which none goes into a decision; 0: the last one took none."""

    def meet(self) -> None:
        """Measure the link, and begin by another way where exact sums would take long."""
        while self.team.replicas > 1 and self.parameters and len(self._settings.ways) > 1:
            self._renew()
            own = torch.zeros(self.team.replicas, 2, dtype=torch.float64)
            own[self.team.replica] = torch.tensor([self._link.measure(), self._settings.merges()])
            if self.team.agree([own]) and own[:, 0].min() > 0.0:
                link, merges = own.amin(dim=0).tolist()
                costs = self._try_codecs()
                ways = [way for way in self._settings.ways if merges or not way.every]
                self._use(first_way(ways, costs, link, BEGIN_S))
                self._link_then = link
                if self.way != Way():
                    reason = f"{self.way}: an exact sum would take {costs['none'].sent / link:.3g} s"
                    self._tell(1, Way(), reason, Measured(0.0, 0.0, 0.0, link), {})
                return

    def begin(self, record: Recorded | None) -> bool:
        """In local steps nothing is sent early."""
        return bool(self.way.every) or self._sums.begin(record)

    def commit(self, record: Recorded, *, void: bool, treatment: Treatment) -> Agreed | None:
        """By all-reduce; in a window, this replica's own."""
        if self.in_hand is not None:
            return self._local.commit(record, void=void, treatment=treatment)
        return self._sums.commit(record, void=void, treatment=treatment)

    def barrier(self) -> bool:
        """Merge; decide again, if it is time."""
        if not self._local.barrier():
            return False
        assert self.in_hand is not None
        self._clock.merged(self.in_hand.steps)
        self._count(self.in_hand.steps)
        return True

    def update(self, optimizer: Optimizer) -> None:
        """Step; the first time after local steps, with the mean of all replicas' optimizers."""
        self._local.in_hand = self.in_hand
        if self.in_hand is not None:
            self._apart = True
            self._local.update(optimizer)
        else:
            if self._apart:
                self._come_together(optimizer)
            self._sums.update(optimizer)
        self._clock.updated()
        if self.in_hand is None:
            self._count(1)

    def merge(self, *, saving: bool = False) -> Kept:
        """Parameters are equal after every step and after every merge."""
        return self._gradients.merge() | self._ways.merge() if saving else {}

    def forget(self, *, passed: bool) -> None:
        """Drop what was sent and all gradients."""
        self._sums.forget(passed=passed)

    def close(self) -> None:
        """Take the hooks off the parameters."""
        self._sums.close()

    @torch.no_grad()
    def _come_together(self, optimizer: Optimizer) -> None:
        """Add what merges have left out, and average what the optimizer keeps of these parameters."""
        for parameter, rest in zip(self.parameters, self._ways.give_up(), strict=False):
            parameter.add_(rest)
        states = [optimizer.state.get(parameter, {}).values() for parameter in self.parameters]
        own = [one for state in states for one in state if isinstance(one, Tensor) and one.is_floating_point()]
        while self.team.replicas > 1:
            total = [one / self.team.replicas for one in own]
            if self.team.agree(total):
                for one, mean in zip(own, total, strict=True):
                    one.copy_(mean)
                break
        self._apart = False

    # ------------------------------------------------------------- decisions

    def _count(self, steps: int) -> None:
        """So many more steps are done; decide again, if it is time, or will be before the next window ends."""
        self._done += steps
        if self._done + max(1, self.way.every) <= self._next or not self.parameters:
            return
        if self._has_time():
            self._decide(self.team.steps + steps)
        else:
            self._next = self._done + SOON

    def _has_time(self) -> bool:
        """Whether what the last decision took is little beside the time since: so all agree, in the mean."""
        while self._spared_until and self.team.replicas > 1:
            spare = torch.tensor([time.perf_counter() - self._spared_until], dtype=torch.float64)
            if self.team.agree([spare]):
                return spare.item() >= 0.0
        return True

    def _decide(self, steps: int) -> None:
        """After so many steps: all replicas measure, agree and decide; until they do, also if workers are lost.

        Between local steps the link is as fast as the last merge was, or seems slower: a merge by a way that is new
        does much for the first time, and one that sends little tells little. It is probed before another way is taken.
        """
        merges = self._settings.merges()
        ways = [way for way in self._settings.ways if merges or not way.every or way == self.way]
        probes = not self.way.every
        while self.team.replicas > 1:
            self._renew()
            costs = self._try_codecs()
            link = self._link.measure() if probes else self._local.link(costs[self.way.codec].seconds)
            names = sorted(costs)
            own = [self._clock.compute_s, 1.0 / self._clock.compute_s, self._clock.step_s, link, len(ways)]
            table = torch.zeros(self.team.replicas, len(own) + len(names), dtype=torch.float64)
            table[self.team.replica] = torch.tensor([*own, *(costs[name].seconds for name in names)])
            if not self.team.agree([table]) or table[:, 3].min() <= 0.0:
                continue
            (compute_s, _, step_s, *_), seconds = table[:, :5].amax(dim=0).tolist(), table[:, 5:].amax(dim=0).tolist()
            shared_s = self.team.replicas / float(table[:, 1].sum())
            measured = self._seen(Measured(compute_s, shared_s, step_s, float(table[:, 3].min()), self._is_new))
            if not probes and measured.link > FASTER * self._link_then:
                probes = True
                continue
            ways = ways[: int(table[:, 4].min())]  # local steps are the last: the others are the same on all replicas
            costs = {name: costs[name]._replace(seconds=most) for name, most in zip(names, seconds, strict=True)}
            decision = decide(measured, costs, ways, self.way, self._tried)
            if probes or decision.choice == self.way:
                self._take(steps, measured, decision)
                if probes and not self._is_new:
                    self._spared_until = time.perf_counter() + SPARE * self._link.worth_s
                return
            probes = True

    def _renew(self) -> None:
        """What was measured counts among these replicas, and with their shares."""
        if self._generation != self.team.membership.generation:
            self._generation = self.team.membership.generation
            self._link.forget()
            self._costs, self._tried, self._compute_s, self._link_then = {}, {}, math.inf, math.inf

    def _try_codecs(self) -> dict[str, Cost]:
        """What each of them takes; tried once among these replicas."""
        if not self._costs:
            codecs = {way.codec for way in self._settings.ways}
            self._costs = costs_of(self.parameters, codecs, self.team.replicas, self.team.sums.stations)
        return self._costs

    def _seen(self, measured: Measured) -> Measured:
        """With what is known of the computing alone: where gradients are sent meanwhile, that takes longer."""
        undisturbed = self.way.every or not self._sums.overlap
        compute_s = measured.compute_s if undisturbed else min(self._compute_s, measured.compute_s)
        return measured._replace(compute_s=compute_s, shared_s=min(measured.shared_s, compute_s))

    def _take(self, steps: int, measured: Measured, decision: Decision) -> None:
        before = self.way
        self._use(decision.choice)
        self._compute_s, self._link_then = measured.compute_s, measured.link
        self._tried[before] = measured.link, measured.step_s / measured.compute_s
        self._sums.overlap = self._overlap
        self._is_new = before != self.way
        if len(self._settings.ways) == 1:
            self._next = math.inf
        else:
            self._next, self._spared_until = self._done + (SOON if self._is_new else EVERY), 0.0
        self._tell(steps + 1, before, decision.reason, measured, decision.forecast_s)
        self._clock = Clock(self.team)

    def _use(self, way: Way) -> None:
        """By this way from the next step on."""
        self.way = way
        self.rule = Rule(way.every) if way.every else None
        (self._ways if way.every else self._gradients).take(way.codec)

    def _tell(self, step: int, before: Way, reason: str, measured: Measured, forecast_s: Mapping[Way, float]) -> None:
        """One of all has the decision on record."""
        if self.team.speaks:
            compute_ms, link_mbit = round(1e3 * measured.compute_s, 3), round(8e-6 * measured.link, 3)
            measured_ms = round(1e3 * measured.step_s, 3)
            forecast_ms = {str(way): round(1e3 * seconds, 3) for way, seconds in forecast_s.items()}
            numbers = (compute_ms, link_mbit, measured_ms, forecast_ms)
            self.team.channel.post(DecisionEvent(step, str(before), str(self.way), reason, *numbers))


class Changing(Lossy):
    """Adds up by a codec that may change between two steps, or by none."""

    def __init__(self, parameters: Sequence[nn.Parameter], team: Team, kept: Kept, name: str = LEFT_OUT) -> None:
        """It begins with exact sums."""
        super().__init__("bf16", parameters, team, kept, name)
        self._choice = "none"
        self._exact: list[Bucket] = []
        """Buckets of the open step that are added up as they are."""

    def take(self, choice: str) -> None:
        """From the next step on, add up by this codec."""
        if choice != self._choice:
            self._choice = choice
            self._memory.clear()
            self._codec = CODECS.get(choice, self._codec)

    def begin(self) -> None:
        """A step begins, or begins again."""
        super().begin()
        self._exact.clear()

    def sum(self, bucket: Bucket, turn: int) -> Handle:
        """By the codec in use; what was left out goes along."""
        if self._choice != "none":
            return super().sum(bucket, turn)
        self.add_left_out(bucket, turn)
        self._exact.append(bucket)
        return Exact.sum(self, bucket, turn)

    def commit(self) -> None:
        """The step has committed."""
        super().commit()
        for bucket in self._exact:
            for parameter in bucket.parameters:
                self._left_out.pop(parameter, None)

    def merge(self) -> Kept:
        """What all replicas have left out, if they have: on all of them alike."""
        return super().merge() if self._left_out else {}

    def give_up(self) -> list[Tensor]:
        """What all replicas have left out, for each parameter: the caller uses it, and it is kept no more."""
        total = self.merge().get(self.name, [])
        self._left_out.clear()
        return total
