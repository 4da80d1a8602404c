"""What a run with local steps must come to: its windows once more, in this process, by the record of who did what."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from cordee.feed.batch import Batch
from cordee.feed.share import Share
from cordee.sync.buckets import grouped, make_bucket
from cordee.sync.local import PULL
from cordee.sync.lossy import CODECS
from cordee.train.job import Job
from cordee.train.jobfile import load_job
from exchange import exchange
from harness import Run, job_file


def assert_replayed(run: Run, job: str, share: Share | None = None, **settings: Any) -> None:
    """Losses and parameters of the run are those of its record; `outer_*`: of what torch's SGD is given; `codec`."""
    outer = {name.removeprefix("outer_"): settings.pop(name) for name in list(settings) if name.startswith("outer_")}
    codec = settings.pop("codec", None)
    made = load_job(job_file(job), {name: str(value) for name, value in settings.items()})
    losses, weights = replay(run, made, share or Share(), codec, **outer)
    np.testing.assert_allclose(run.losses, losses, rtol=1e-12)
    for name, tensor in weights.items():
        assert float(np.abs(run.tensors[name] - tensor.numpy()).max()) <= 1e-9, name


def replay(
    run: Run, job: Job, share: Share, codec: str | None = None, **outer: float
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of the workers of a run, side by side in this process, averaged at the end of each window.

    What a window left behind is averaged at the end of the next one; if that is waited for, together with it. Steps
    before a window's first were computed again: only their gradients count. With `outer`, what torch's SGD is given,
    the way to the average is a gradient for that. With a `codec`, replicas send their ways by it.
    """
    order = job.order(job.resolve(1))
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    model = job.model().train()
    workers = sorted({worker for window in run.of("window") for worker in window["workers"]})
    models = {worker: copy.deepcopy(model) for worker in workers}
    optimizers = {worker: job.optimizer(one.parameters()) for worker, one in models.items()}
    schedules = {worker: job.schedule(one) for worker, one in optimizers.items()} if job.schedule else {}
    outside = torch.optim.SGD(model.parameters(), nesterov=True, **outer) if outer else None
    losses: dict[int, float] = {}
    left_out: dict[int, Any] = {}

    def compute(worker: int, number: int, workers: list[int], part: int, *, again: bool = False) -> int:
        at = divmod(number - 1, order.steps)
        ids = order.ids(*at)
        own = ids[np.asarray(share.positions(len(ids), workers, part, (*at, 0)))]
        loss, _ = job.compute(models[worker], Batch(own, job.data.train.gather(own)))
        optimizers[worker].zero_grad()
        loss.backward()
        with faster(optimizers[worker], share.fractions(workers)):
            optimizers[worker].step()
        if not again:
            losses[number] = losses.get(number, 0.0) + len(own) * float(loss.detach()) / len(ids)
        return len(own)

    points: dict[int, nn.Module] = {}
    gone: dict[int, list[torch.Tensor]] = {}
    left: dict[int, int] = {}
    former: list[int] = []
    for window in run.of("window"):
        seen = dict.fromkeys([item[0] for item in window["items"]], 0)
        for worker, number, part in window["items"]:
            again = number < window["first"]
            seen[worker] += compute(worker, number, former if again else window["workers"], part, again=again)
        former = window["workers"]
        if window["behind"]:
            ways = {worker: ahead(models[worker], points.get(worker, model)) for worker in seen}
            sent = {worker: moved(model, way) for worker, way in gone.items()}
            if sent and codec is not None:
                exchange_ways(model, sent, left, codec, left_out)
            if sent:
                average(model, {sent[worker]: count for worker, count in left.items()}, outside)
            for worker in sent:
                pull(models[worker], moved(model, ways[worker]))
            points, gone, left = {worker: copy.deepcopy(models[worker]) for worker in seen}, ways, seen
            for schedule in schedules.values():
                for _ in range(window["last"] - window["first"] + 1):
                    schedule.step()
            continue
        for worker, way in gone.items():
            both = [one + other for one, other in zip(way, ahead(models[worker], points[worker]), strict=True)]
            models[worker].load_state_dict(moved(model, both, like=models[worker]).state_dict())
        seen = {worker: count + left.get(worker, 0) for worker, count in seen.items()}
        points, gone, left = {}, {}, {}
        if codec is not None and len(seen) > 1:
            exchange_ways(model, models, seen, codec, left_out)
            if any(event["step"] == window["last"] for event in run.of("checkpoint")):  # each has a part of it all
                mean = sum(left_out[worker] for worker in seen) / len(seen)
                left_out = dict.fromkeys(seen, mean)
        average(model, {models[worker]: count for worker, count in seen.items()}, outside)
        for one in models.values():
            one.load_state_dict(model.state_dict())
        for schedule in schedules.values():
            for _ in range(window["last"] - window["first"] + 1):
                schedule.step()
    for step in run.of("step")[len(losses) :]:  # one worker alone is left, and has no windows
        (last,) = run.of("regroup")[-1]["workers"]
        compute(last, step["step"], [last], 0)
        model.load_state_dict(models[last].state_dict())
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return [losses[number] for number in sorted(losses)], weights


@torch.no_grad()
def ahead(model: nn.Module, point: nn.Module) -> list[torch.Tensor]:
    """How far a replica has gone since it was at a point."""
    return [now - then for now, then in zip(model.parameters(), point.parameters(), strict=True)]


@torch.no_grad()
def moved(model: nn.Module, way: list[torch.Tensor], like: nn.Module | None = None) -> nn.Module:
    """Where a `way` leads from the common model, with the buffers of `like`."""
    end = copy.deepcopy(like or model)
    for parameter, start, own in zip(end.parameters(), model.parameters(), way, strict=True):
        parameter.copy_(start + own)
    return end


@torch.no_grad()
def pull(replica: nn.Module, end: nn.Module) -> None:
    """Let a replica go half of the distance to where it would end."""
    for parameter, target in zip(replica.parameters(), end.parameters(), strict=True):
        parameter.lerp_(target, PULL)


@contextmanager
def faster(optimizer: torch.optim.Optimizer, fractions: list[float]) -> Iterator[None]:
    """AdamW takes larger steps in parts of a batch, with the same weight decay."""
    (group,) = optimizer.param_groups
    before = dict(group)
    if isinstance(optimizer, torch.optim.AdamW):
        factor = 1 / sum(part * part**0.5 for part in fractions)
        group.update(lr=before["lr"] * factor, weight_decay=before["weight_decay"] / factor)
    yield
    group.update(lr=before["lr"], weight_decay=before["weight_decay"])


@torch.no_grad()
def exchange_ways(
    model: nn.Module, models: dict[int, nn.Module], seen: dict[int, int], codec: str, left_out: dict[int, torch.Tensor]
) -> None:
    """Put each replica where the mean of all ways from `model` leads, as a codec sends them."""
    total, flats, views = sum(seen.values()), [], []
    before = dict(model.named_parameters())
    for worker, count in seen.items():
        (group,) = grouped(list(models[worker].parameters()), 4.0)
        bucket = make_bucket(group, 0, 1)
        names = {id(parameter): name for name, parameter in models[worker].named_parameters()}
        for parameter, way in zip(group, bucket.views[0], strict=True):
            way.copy_((parameter - before[names[id(parameter)]]) * (count / total))
        bucket.flats[0].add_(left_out.get(worker, torch.zeros(())))
        flats.append(bucket.flats[0])
        views.append((group, bucket.views[0], names))
    rests, _ = exchange(CODECS[codec], flats, [windows for _, windows, _ in views], [{} for _ in flats])
    left_out.update(zip(seen, rests, strict=True))
    for group, windows, names in views:
        for parameter, way in zip(group, windows, strict=True):
            parameter.copy_(before[names[id(parameter)]] + way)


@torch.no_grad()
def average(model: nn.Module, seen: dict[nn.Module, int], outside: torch.optim.Optimizer | None) -> None:
    """Make `model` the mean of those, each weighted by its samples; or step towards it."""
    total = sum(seen.values())
    for parameter, *same in zip(model.parameters(), *(one.parameters() for one in seen), strict=True):
        mean = sum(one * (count / total) for one, count in zip(same, seen.values(), strict=True))
        assert isinstance(mean, torch.Tensor)
        if outside is None:
            parameter.copy_(mean)
        else:
            parameter.grad = parameter - mean
    if outside is not None:
        outside.step()


def assert_audited(run: Run, reference: Run) -> None:
    """Each step's samples came once, in the order of the reference."""
    for name in ("steps", "samples", "order_sha256"):
        assert run.result[name] == reference.result[name], name
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)


def parts_done(run: Run) -> dict[int, int]:
    """How many parts each worker has done."""
    items = [item for window in run.of("window") for item in window["items"]]
    return {worker: sum(one == worker for one, _, _ in items) for worker in {item[0] for item in items}}
