"""What can be wrong in the record of a start: steps, chains of samples, generations, shares and states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from cordee.core.events import PositionEvent
from cordee.core.plan import Plan
from cordee.core.words import plural
from cordee.feed.coming import micro_sizes
from cordee.feed.order import Order
from cordee.feed.share import Shares
from cordee.watch.audit.chains import epochs_with_a_sample_twice, recompute
from cordee.watch.audit.starts import Start


@dataclass(frozen=True)
class Finding:
    """What is wrong in a record."""

    step: int
    """After which step it shows, over all starts; 0: before the first."""
    text: str


def findings_of(start: Start, order: Order | None) -> Iterator[Finding]:
    """All that is wrong in one start; `order` is None for a loop of the user's own."""
    if order is not None and start.job is not None:
        yield from _of_steps(start.steps, start.job.steps, order)
        yield from _of_chains(start, order)
        for epoch, step in epochs_with_a_sample_twice(order, max((step for step, _ in start.steps), default=0)):
            yield Finding(step, f"the order of epoch {epoch} has a sample twice")
    yield from _of_groups(start, order)
    yield from _of_ends(start)
    yield from (Finding(step, text) for step, text in (*start.parts.wrong(start.lost), *_of_windows(start)))


def _of_windows(start: Start) -> Iterator[tuple[int, str]]:
    """Each step is in a window, where there are any: one replica alone has none, and sync=auto not always."""
    shared = bool(start.positions) and all(len(one.owners) > 1 for one in start.positions)
    if start.job is not None and start.parts.items and shared and Plan.parse(start.plan).sync != "auto":
        last = max((step for step, _ in start.steps), default=0) if start.ends() else 0
        yield from start.parts.left_out(start.job.steps, last)


def _of_steps(steps: Sequence[tuple[int, int]], before: int, order: Order) -> Iterator[Finding]:
    """The steps on record follow one another, and have as many samples as the order says."""
    for step, samples in steps:
        if step <= before:
            yield Finding(step, f"step {step} is on record twice")
            continue
        if step > before + 1:
            missing = f"step {step - 1} is" if step == before + 2 else f"steps {before + 1} to {step - 1} are"
            yield Finding(before + 1, f"{missing} not on record")
        if samples != (size := order.size((step - 1) % order.steps)):
            yield Finding(step, f"step {step} has {plural(samples, 'sample')} on record: the order has {size}")
        before = step


def _of_chains(start: Start, order: Order) -> Iterator[Finding]:
    """The chain of each position is the one of the order."""
    last = max([start.job.steps if start.job else 0, *(step for step, _ in start.steps)])
    chains = recompute(order, {one.step for one in start.positions if one.step <= last})
    for worker, group in groupby(sorted(start.positions, key=lambda one: one.worker), lambda one: one.worker):
        right = 0
        for one in group:
            if one.step < right:
                yield Finding(one.step, f"worker {worker} went back from step {right} to step {one.step}")
            if one.step > last:
                if start.told_all:
                    yield Finding(last + 1, f"worker {worker} has {one.step} steps: {last} are on record")
                break
            if (one.order_sha256, one.samples) != chains[one.step]:
                yield Finding(one.step, _of_chain(one, right, chains[one.step][1]))
                break
            right = one.step


def _of_chain(one: PositionEvent, right: int, samples: int) -> str:
    """What a position says that is not the order's, if the one before was."""
    where = f"from step {right + 1} to step {one.step}" if one.step > right else f"at step {one.step}"
    count = f"{one.samples} samples in all, where the order has {samples}"
    what = count if one.samples != samples else "as many samples as the order has, but others, or in other places"
    return f"worker {one.worker} has lost, repeated or exchanged samples {where}: {what}"


def _of_groups(start: Start, order: Order | None) -> Iterator[Finding]:
    """The workers of a generation agree on it, and their shares are the whole of each batch."""
    for generation in sorted({one.generation for one in start.positions}):
        here = [one for one in start.positions if one.generation == generation]
        first, step = here[0], min(one.step for one in here)
        formed = start.groups.get(generation, first.members)
        for one in here:
            if (one.members, one.owners) != (formed, first.owners) or one.worker not in formed:
                yield Finding(one.step, f"worker {one.worker} sees other members in generation {generation}")
        begun = {one.step for one in here if one.why in ("start", "regroup")}
        if len(begun) > 1 and not start.parts.items:  # a window's steps are committed together, at its end
            after = " and ".join(map(str, sorted(begun)))
            yield Finding(step, f"the workers of generation {generation} began after different steps: {after}")
        cuts = {one.step: one.shares for one in here if one.shares}
        if any(one.shares != cuts[one.step] for one in here if one.shares):
            yield Finding(step, f"the workers of generation {generation} cut steps by different shares")
        if order is not None:
            plan = Plan.parse(start.plan)
            for shares in {repr(one): one for one in cuts.values()}.values():
                if not _is_whole(Shares.from_list(shares), first.owners, order, plan):
                    yield Finding(step, f"the shares of generation {generation} are not each place of a batch once")


def _is_whole(shares: Shares, owners: Sequence[int], order: Order, plan: Plan) -> bool:
    """Whether the shares of all owners are each position of a batch once, or piece, in each size that a batch has."""
    sizes = set()
    for step in {0, order.steps - 1}:
        each = micro_sizes(order, plan.parts, step)
        sizes |= {len(each)} if plan.exact else {*each}
    for _, share in shares.entries:
        for size in sizes:
            cuts = [np.asarray(share.positions(size, owners, index, (0, 0, 0))) for index in range(len(owners))]
            if not np.array_equal(np.sort(np.concatenate(cuts)), np.arange(size)):
                return False
    return True


def _of_ends(start: Start) -> Iterator[Finding]:
    """Each worker that was there at the end has the same steps and the same parameters."""
    ends = start.ends()
    if not ends:
        return
    step = max(one.step for one in ends.values())
    if start.told_all:
        yield from _of_last_words(start, step)
    whole = ends[min(ends)]
    for one in ends.values():
        if (one.step, one.order_sha256) != (whole.step, whole.order_sha256):
            yield Finding(one.step, f"worker {one.worker} ended after other steps than worker {whole.worker}")
    for _, group in groupby(sorted(ends.values(), key=lambda one: one.part), lambda one: one.part):
        first, *others = group
        for one in others:
            if one.params_sha256 != first.params_sha256:
                text = f"the parameters of worker {one.worker} are not those of worker {first.worker}"
                yield Finding(one.step, f"{text}, though they end after the same step")


def _of_last_words(start: Start, step: int) -> Iterator[Finding]:
    """What workers say at the end, after this step, is on record."""
    for worker in sorted(start.members - start.ends().keys()):
        yield Finding(step, f"worker {worker} was there at the end, and left no position")
    if start.steps and start.job is not None and step > start.steps[-1][0]:
        yield Finding(step, f"the workers ended after step {step}: the last step on record is {start.steps[-1][0]}")
