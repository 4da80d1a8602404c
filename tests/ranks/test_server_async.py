"""`sync=server,mode=async|stale`: every push is applied once, within its bound, as the record says."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cordee.core.events import Event, JobEvent, ServerEvent
from cordee.feed.batch import Batch
from cordee.feed.share import Share
from cordee.sync.lossy import CODECS
from cordee.train.job import Job
from cordee.train.jobfile import load_job
from exchange import exchange
from harness import Run, job_file, train

Reference = Callable[..., Run]


def audit(run: Run, reference: Run, bound: int | None = None) -> None:
    """Each part of each step was pushed once, in windows; no worker was further ahead than its bound."""
    for name in ("steps", "samples", "order_sha256"):
        assert run.result[name] == reference.result[name], name
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)
    items, version = 0, 0
    for window in run.of("window"):
        done = [(step, part) for _, step, part in window["items"]]
        parts = range(len(window["workers"]))
        wanted = [(step, part) for step in range(window["first"], window["last"] + 1) for part in parts]
        assert sorted(done) == wanted
        items += len(done)
        for place, (step, _) in enumerate(done):
            former = [one for one in wanted if bound is not None and one[0] < step - bound]
            assert set(former) <= set(done[:place]), f"step {step} before {former}"
    for event in run.of("pushes"):
        version = max(version, event["version"])
    assert version == items, "updates that the servers have made, and pushes that were acknowledged"


def replay(run: Run, job: Job, codec: str = "none") -> dict[str, torch.Tensor]:
    """All pushes one after the other in this process, each with the parameters that it was computed with."""
    order = job.order(job.resolve(1))
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    model = job.model().train()
    optimizer = job.optimizer(model.parameters())
    kept: dict[torch.Tensor, list[Any]] = {}
    workers = {
        step: window["workers"] for window in run.of("window") for step in range(window["first"], window["last"] + 1)
    }
    pushes = sorted((push[2], push, event["worker"]) for event in run.of("pushes") for push in event["pushes"])
    assert [version for version, _, _ in pushes] == list(range(1, 1 + len(pushes)))
    left_out: dict[int, torch.Tensor] = {}
    former = [{name: tensor.clone() for name, tensor in model.state_dict().items()}]
    saved = [event["step"] for event in run.of("checkpoint")]
    for version, (step, part, _, stale), worker in pushes:
        if saved and step > saved[0]:  # a checkpoint has what all have left out; from there on each has its part of it
            saved.pop(0)
            left_out = dict.fromkeys(left_out, torch.stack(list(left_out.values())).mean(0)) if left_out else {}
        at = divmod(step - 1, order.steps)
        ids = order.ids(*at)
        own = ids[np.asarray(Share().positions(len(ids), workers[step], part, (*at, 0)), dtype=int)]
        if not len(own):  # more workers than samples: the push is counted, and changes nothing
            former.append(former[-1])
            continue
        model.load_state_dict(former[version - 1 - stale])
        loss, _ = job.compute(model, Batch(own, job.data.train.gather(own)))
        optimizer.zero_grad()
        loss.backward()
        if job.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip)
        if codec != "none":
            compress(codec, list(model.parameters())[::-1], left_out, worker, len(own) / len(ids))
        model.load_state_dict(former[version - 1])
        apply(optimizer, kept, len(own) / len(ids))
        former.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    return former[-1]


@torch.no_grad()
def apply(optimizer: torch.optim.Optimizer, kept: dict[torch.Tensor, list[Any]], w: float) -> None:
    """An update by the part w of a global batch, by the formulas of `cordee.sync.server.parts`."""
    (group,) = optimizer.param_groups
    for p in group["params"]:
        g, rate, decay = p.grad, group["lr"] * w, group["weight_decay"]
        if isinstance(optimizer, torch.optim.SGD):
            b = group["momentum"]
            (buffer,) = kept.get(p, [torch.zeros_like(p)])
            kept[p] = [b**w * buffer + (1 - b**w) / (1 - b) * (g + decay * p)]
            p -= rate * kept[p][0]
            continue
        b1, b2 = group["betas"]
        steps, first, second = kept.get(p, [0.0, torch.zeros_like(p), torch.zeros_like(p)])
        steps, first = steps + w, b1**w * first + (1 - b1**w) * g
        mean = first / (1 - b1**steps)
        second = b2**w * second + (1 - b2**w) * (w * g * g + (1 - w) * mean * mean)
        kept[p] = [steps, first, second]
        p -= rate * (decay * p + mean / ((second / (1 - b2**steps)).sqrt() + group["eps"]))


def compress(
    codec: str, parameters: list[torch.nn.Parameter], left_out: dict[int, torch.Tensor], worker: int, share: float
) -> None:
    """Make the gradients what a server reads of them; the worker adds what it has left out, in parts of a step."""
    gradients = [one.grad for one in parameters if one.grad is not None]
    flat = torch.cat([one.reshape(-1) for one in gradients])
    flat += left_out.get(worker, torch.zeros_like(flat)) / share
    rests, _ = exchange(CODECS[codec], [flat], [[flat]], [{}])
    left_out[worker] = rests[0] * share
    for one, part in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
        one.copy_(part.view_as(one))


@pytest.mark.parametrize(
    ("plan", "workers", "settings"),
    [
        ("mode=async", 3, {"optimizer": "momentum"}),
        ("mode=stale,staleness=2", 2, {"clip": 0.5}),
        ("mode=async,compress=topk", 3, {"optimizer": "sgd"}),
        ("mode=stale,staleness=2,compress=int8", 2, {"optimizer": "momentum"}),
        ("mode=async", 4, {"batch": 3, "samples": 100}),
    ],
)
def test_every_push_is_applied_once(
    plan: str, workers: int, settings: dict[str, object], reference: Reference, tmp_path: Path
) -> None:
    run = train("mlp", tmp_path / "run", workers=workers, plan=f"sync=server,{plan}", epochs=2, **settings)
    audit(run, reference("mlp", epochs=2, **settings), bound=2 if "stale" in plan else None)
    job = load_job(job_file("mlp"), {name: str(value) for name, value in settings.items()})
    weights = replay(run, job, plan.partition("compress=")[2] or "none")
    most = 1e-9 if "optimizer" in settings else 1e-6  # Adam counts steps in float32, here in parts of one
    for name, tensor in weights.items():
        assert float(np.abs(run.tensors[name] - tensor.numpy()).max()) <= most, name


@pytest.mark.parametrize("plan", ["mode=async,servers=2", "mode=stale,staleness=4"])
def test_a_slow_worker_computes_less(plan: str, reference: Reference, tmp_path: Path) -> None:
    run = train("uneven", tmp_path / "run", workers=2, plan=f"sync=server,{plan}", slow=1, optimizer="sgd")
    audit(run, reference("mlp", epochs=2), bound=4 if "stale" in plan else None)
    items = [item[0] for window in run.of("window") for item in window["items"]]
    assert items.count(1) < items.count(0)


def test_no_staleness_is_one_process(reference: Reference, tmp_path: Path) -> None:
    run = train("mlp", tmp_path / "run", workers=2, plan="sync=server,mode=stale,staleness=0")
    np.testing.assert_allclose(run.losses, reference("mlp").losses, rtol=1e-12)


def test_it_continues_under_another_plan(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train("mlp", out, workers=3, plan="sync=server,mode=async,servers=2", stop_steps=7, epochs=2)
    train("mlp", out, workers=2, plan="sync=server,mode=stale,staleness=1", resume=True, stop_steps=13, epochs=2)
    run = train("mlp", out, workers=2, resume=True, epochs=2)
    assert run.result["steps"] == 20 and run.losses[-1] < run.losses[0]
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)


@pytest.mark.parametrize("victims", [("first 0",), ("first 0", "backup 1"), ("first 1", "backup 1")])
def test_servers_and_a_worker_are_killed(victims: tuple[str, ...], reference: Reference, tmp_path: Path) -> None:
    """A push that was not acknowledged by all servers is made again by another worker, and applied where it was not."""
    pids: dict[str, int] = {}

    def strike(event: Event) -> None:
        if isinstance(event, ServerEvent) and event.what != "lost":
            pids[f"{event.what} {event.shard}"] = event.pid
        if isinstance(event, JobEvent):  # the training begins
            for victim in victims:
                os.kill(pids[victim], signal.SIGKILL)

    plan = "sync=server,mode=async,servers=2"
    run = train("uneven", tmp_path / "run", workers=3, plan=plan, listen=strike, slow=1, dies=2, where="part:5")
    assert {"failure", "server"} <= {event["event"] for event in run.events}
    audit(run, reference("mlp", epochs=2))
