"""sync=auto that goes over to local steps and back: beside the same in this process, by the record of who did what."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cordee.feed.batch import Batch
from cordee.feed.share import Share
from cordee.train.jobfile import load_job
from harness import Run, assert_same, job_file, train
from replay import assert_audited, average, exchange_ways, faster


def by_record(run: Run, codec: str, share: Share, **settings: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights: exact sums where the record has no window, merges by a codec at the end of each window."""
    job = load_job(job_file("switching"), {name: str(value) for name, value in settings.items()})
    order = job.order(job.resolve(1))
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    model = job.model().train()
    models = {worker: copy.deepcopy(model) for worker in [0, 1, 2]}
    optimizers = {worker: job.optimizer(one.parameters()) for worker, one in models.items()}
    windows = {window["first"]: window for window in run.of("window")}
    saved = {event["step"] for event in run.of("checkpoint")}
    losses: dict[int, float] = {}
    left_out: dict[int, Any] = {}
    apart, number = False, 1

    def loss_of(one: nn.Module, number: int, own: slice | np.ndarray) -> tuple[torch.Tensor, int, int]:
        ids = order.ids(*divmod(number - 1, order.steps))
        loss, _ = job.compute(one, Batch(ids[own], job.data.train.gather(ids[own])))
        return loss, len(ids[own]), len(ids)

    while number <= len(run.losses):
        if (window := windows.get(number)) is not None:
            seen = dict.fromkeys([item[0] for item in window["items"]], 0)
            for worker, at, part in window["items"]:
                epoch, step = divmod(at - 1, order.steps)
                size = len(order.ids(epoch, step))
                own = np.asarray(share.positions(size, window["workers"], part, (epoch, step, 0)))
                loss, count, whole = loss_of(models[worker], at, own)
                optimizers[worker].zero_grad()
                loss.backward()
                with faster(optimizers[worker], share.fractions(window["workers"])):
                    optimizers[worker].step()
                seen[worker] += count
                losses[at] = losses.get(at, 0.0) + count * float(loss.detach()) / whole
            if codec != "none":
                exchange_ways(model, models, seen, codec, left_out)
                if window["last"] in saved:
                    mean = sum(left_out[worker] for worker in seen) / len(seen)
                    left_out = dict.fromkeys(seen, mean)
            average(model, {models[worker]: count for worker, count in seen.items()}, None)
            for one in models.values():
                one.load_state_dict(model.state_dict())
            apart, number = True, window["last"] + 1
            continue
        loss, _, _ = loss_of(model, number, slice(None))
        losses[number] = float(loss.detach())
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        if apart:
            come_together(models, optimizers, left_out)
            apart, left_out = False, {}
        for worker, one in models.items():
            for parameter, gradient in zip(one.parameters(), gradients, strict=True):
                parameter.grad = gradient.clone()
            optimizers[worker].step()
        model.load_state_dict(models[0].state_dict())
        number += 1
    return [losses[one] for one in sorted(losses)], model.state_dict()


@torch.no_grad()
def come_together(models: dict[int, nn.Module], optimizers: dict[int, Any], left_out: dict[int, Any]) -> None:
    """What merges have left out is added, and what optimizers keep is averaged."""
    for one in models.values():
        offset = 0
        for parameter in reversed(list(one.parameters())):  # as they lie in their bucket
            if left_out:
                rest = sum(left_out.values())[offset : offset + parameter.numel()]
                parameter.add_(rest.view_as(parameter))
            offset += parameter.numel()
    kept = [[value for state in one.state.values() for value in state.values()] for one in optimizers.values()]
    for values in zip(*kept, strict=True):
        mean = sum(values) / len(values)
        for one in values:
            one.copy_(mean)


@pytest.mark.parametrize(
    ("codec", "optimizer", "begins"),
    [("none", "momentum", "none"), ("int8", "momentum", "int8:3"), ("topk", "adamw", "topk:2")],
)
def test_local_steps_and_back(codec: str, optimizer: str, begins: str, tmp_path: Path) -> None:
    """After local steps another way is decided on twice: before the link is probed, and after."""
    choices = f"none {codec}:2 {codec}:3 {codec}:3 none none none {codec}:2 {codec}:2"
    choices = choices if begins == "none" else choices.removeprefix("none ")
    settings = {"choices": choices, "optimizer": optimizer, "epochs": 2, "begins": begins}
    plan = "sync=auto,proportions=5:3:2"
    run = train("switching", tmp_path / "run", workers=3, plan=plan, **settings)
    lengths = {window["last"] - window["first"] + 1 for window in run.of("window")}
    assert {2, 3} <= lengths
    assert (run.of("window")[0]["first"] == 1) == (begins != "none")
    losses, weights = by_record(run, codec, Share("proportional", (5.0, 3.0, 2.0)), **settings)
    np.testing.assert_allclose(run.losses, losses, rtol=0, atol=1e-9)
    for name, tensor in run.tensors.items():
        np.testing.assert_allclose(tensor, weights[name].numpy(), rtol=0, atol=1e-8)
    assert_audited(run, train("mlp", tmp_path / "alone", epochs=2, optimizer=optimizer))


def test_a_worker_is_lost_in_local_steps(tmp_path: Path) -> None:
    """After three parts of its own, at least one of each window; others follow, however slow it is."""
    settings = {"choices": "none:2" + 8 * " none:3", "optimizer": "sgd", "epochs": 2}
    run = train("switching", tmp_path / "run", workers=3, plan="sync=auto", dies=1, **settings)
    assert [event["worker"] for event in run.of("failure")] == [1]
    assert run.of("window")[-1]["workers"] == [0, 2]
    assert_audited(run, train("mlp", tmp_path / "alone", epochs=2, optimizer="sgd"))


@pytest.mark.parametrize("kind", ["batchnorm", "gather"])
def test_passes_that_need_the_others_know_no_local_steps(kind: str, tmp_path: Path) -> None:
    """The link is told to be slow: codecs are taken, and no local steps."""
    run = train("slow_link", tmp_path / "run", workers=2, plan="sync=auto", kind=kind)
    choices = {event["choice"] for event in run.of("decision")}
    assert choices and choices <= {"bf16", "int8", "none"} and not run.of("window")
    assert all(not name.startswith("local") for event in run.of("decision") for name in event["forecast_ms"])


def test_a_slow_link_leads_to_local_steps(tmp_path: Path) -> None:
    run = train("slow_link", tmp_path / "run", workers=2, plan="sync=auto")
    first, second, *_ = run.of("decision")
    assert (first["before"], first["choice"], first["step"]) == ("none", "local_steps=8,compress=int8", 1)
    assert second["step"] == 9, "after the first window"
    assert run.of("window")[0]["last"] == 8 and run.result["samples_lost"] == run.result["samples_repeated"] == 0
    assert train("slow_link", tmp_path / "same", workers=2, plan="sync=auto,faithful=same").of("window") == []


def test_it_reacts_to_a_link_that_changes(tmp_path: Path) -> None:
    """Told: 1000 Mbit/s, 20 from step 30 on, and 1000 again from step 80 on; a step takes 0.1 s."""
    run = train("falling_link", tmp_path / "run", workers=2, plan="sync=auto", falls=30, returns=80)
    changes = [event for event in run.of("decision") if event["choice"] != event["before"]]
    fall = next(event for event in changes if event["step"] > 30)
    back = next(event for event in changes if event["step"] > 80)
    assert fall["before"] == back["choice"] == "none" and fall["choice"] != "none"
    assert fall["step"] <= 30 + 20 + 1 and back["step"] <= 80 + 20 + 1
    assert all(30 < event["step"] <= 51 or event["step"] > 80 for event in changes), "nothing else changes anything"


def test_where_there_is_one_way_there_is_one_decision(tmp_path: Path) -> None:
    plan = "sync=auto,faithful=same"
    run = train("falling_link", tmp_path / "run", workers=2, plan=plan, falls=30, returns=80)
    assert [event["step"] for event in run.of("decision")] == [3] and len(run.losses) > 100


def test_short_steps_are_probed_seldom(tmp_path: Path) -> None:
    """Told: 1000 Mbit/s, where it takes 36 ms to see that it is as it was, and steps of 20 ms."""
    run = train("falling_link", tmp_path / "run", workers=2, plan="sync=auto", falls=0, returns=0, step_s=0.02)
    first, second, *_ = [event["step"] for event in run.of("decision")]
    assert first == 3 and 50 <= second - first <= 70


def test_after_a_loss_codecs_are_tried_among_those_that_are_left(tmp_path: Path) -> None:
    """An exact sum sends 4/3 of a copy among three, and one among two."""
    tried = tmp_path / "tried"
    settings = {"falls": 0, "returns": 0, "dies": 10, "tried": tried}
    run = train("falling_link", tmp_path / "run", workers=3, plan="sync=auto", **settings)
    assert [event["worker"] for event in run.of("failure")] == [2]
    assert sorted(tried.read_text().splitlines()) == ["2 2", "2 2", "3 3", "3 3", "3 3"]


def test_a_worker_is_replaced(tmp_path: Path) -> None:
    """The newcomer decides with the others, though it has seen none of the steps before."""
    settings = {"starts": tmp_path / "starts", "fates": "1:3:SIGKILL", "waits": "6"}
    plan = "sync=auto,faithful=same,replace=true"
    run = train("replaced", tmp_path / "run", workers=3, plan=plan, **settings)
    assert [(event["worker"], event["replaces"]) for event in run.of("joined")] == [(3, 1)]
    told = [event["event"] for event in run.events if event["event"] in ("joined", "decision")]
    assert told == ["decision", "joined", "decision"], "once among those that begin, and once with the newcomer"
    assert_same(run, train("replaced", tmp_path / "alone", starts=tmp_path / "starts"))
