"""What a worker needs of memory, beside what there is: refused is what certainly does not fit."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from cordee.core.errors import PlanError
from cordee.core.plan import Plan
from cordee.diagnose.room import GIB, Kept, Needs, Room, Sizes, Verdict, estimate, judge, share_of
from cordee.split.shard import gathered_bytes
from cordee.split.stages import plan_stages
from cordee.train import fitting
from cordee.train.counting import saved_bytes, with_activations
from cordee.train.cutting import first_batch, model_of_job
from cordee.train.fitting import check_fits, estimate_of_job, sizes_of, state_bytes
from cordee.train.jobfile import load_job
from cordee.train.stepper import Stepper
from harness import JOBS

SIZES = Sizes(4 * GIB, 4 * GIB, 8 * GIB, Kept(GIB, 2 * GIB), Kept(GIB / 4, GIB), blocks=5)
"""Of one billion parameters: 1 GiB of activations per sample, a quarter with recompute."""


def test_needs_by_plan() -> None:
    needs = estimate(SIZES, Plan(), batch=8, replicas=2)
    assert (needs.samples, needs.certain, needs.buckets) == (4, 16 * GIB, 25 * 2**20)
    assert needs.activations == 2 * GIB + (6 - 2) * GIB // 5  # those that are kept, and one block's
    offloaded = estimate(SIZES, Plan(offload="all"), batch=8, replicas=1)
    assert (offloaded.state, offloaded.host) == (2 * GIB, (8 + 3) * GIB)
    assert offloaded.activations == 2 * GIB + (10 - 3) * GIB // 5
    assert estimate(SIZES, Plan(sync="server"), batch=8, replicas=1).state == 0  # its servers have it
    sharded = estimate(replace(SIZES, gathered=3 * GIB), Plan(shard="params"), batch=8, replicas=2)
    assert (sharded.total, sharded.certain) == (needs.total + 3 * GIB, needs.certain)
    plan = Plan(share="proportional", proportions=(3, 1), accumulate=2)
    assert (share_of(8, plan, 2), share_of(7, Plan(accumulate=4), 2), share_of(1, Plan(), 4)) == (3, 1, 1)


@pytest.mark.parametrize(
    ("word", "micros", "staged", "expected"),
    [
        ("params", 1, False, (2 + 8 + 9) + (2 + 9)),  # the rest, two units one after the other; gradients of one
        ("gradients", 4, False, 23 + (2 + 9)),
        ("optimizer", 1, False, 23 + (2 + 9)),
        ("optimizer", 4, False, 23 + 23),  # gradients of all micro-batches are kept whole
        ("params", 1, True, 23 + 23),
    ],
)
def test_what_is_gathered_in_a_step_counts_too(word: str, micros: int, staged: bool, expected: int) -> None:
    whole = {"bytes.weight": 2, "blocks.0.up": 3, "blocks.0.down": 1, "blocks.1.up": 8, "blocks.2.up": 9}
    units = ("blocks.0", "blocks.1", "blocks.2")
    assert gathered_bytes(whole, units, word, micros=micros, staged=staged) == expected
    assert gathered_bytes(whole, (), "params", micros=micros, staged=staged) == 2 * 23


def test_a_sharded_job_is_estimated_by_what_it_keeps_and_what_it_gathers() -> None:
    job = load_job(JOBS / "gpt.py", {})
    parameters = sum(one.nbytes for one in job.make_model().parameters())
    needs = {word: estimate_of_job(job, Plan(shard=word), 4)[0] for word in ("params", "gradients")}
    for one in needs.values():  # between steps all words keep a quarter
        assert (one.parameters, one.gradients, one.state) == (parameters // 4, parameters // 4, parameters // 2)
    assert parameters < needs["params"].gathered <= 2 * parameters
    assert needs["gradients"].gathered >= needs["params"].gathered


@pytest.mark.parametrize(
    ("plan", "room", "refused", "warned"),
    [
        (Plan(), Room(40 * GIB, GIB, on_gpu=True), (), ()),
        (
            Plan(),
            Room(15 * GIB, GIB, on_gpu=True),
            ("at least 16.0 GiB of GPU", "15.0 GiB", "offload=opt"),
            (),
        ),
        (Plan(), Room(15 * GIB, GIB), ("of host memory", "tensor=2", "fewer workers"), ()),
        (Plan(), Room(17 * GIB, GIB, on_gpu=True), (), ("about", "recompute=block", "accumulate=2")),
        (Plan(offload="optimizer"), Room(40 * GIB, GIB, on_gpu=True), ("keeps 8.0 GiB in host memory",), ()),
    ],
)
def test_what_cannot_fit_is_refused(plan: Plan, room: Room, refused: tuple[str, ...], warned: tuple[str, ...]) -> None:
    found = judge(estimate(SIZES, plan, batch=8, replicas=1), room, plan)
    assert all(word in found.refusal for word in refused) and all(word in found.warning for word in warned)
    assert (bool(found.refusal), bool(found.warning)) == (bool(refused), bool(warned))
    assert (found == Verdict()) == (not refused and not warned)


@pytest.mark.parametrize(
    ("plan", "workers", "offered", "not_offered"),
    [
        ("sync=allreduce", 1, "offload=optimizer recompute=block accumulate=2 shard=params tensor=2", ""),
        ("tensor=2", 2, "recompute=block accumulate=2 shard=params tensor=4", "offload"),
        ("pipeline=2", 2, "recompute=block micro_batches=8 shard=params tensor=2", "offload accumulate"),
        ("pipeline=2,schedule=zero-bubble", 2, "micro_batches=8 shard=params", "recompute"),
        ("compile=true", 1, "offload=optimizer shard=params", "tensor offload=activations"),
        ("compress=int8", 2, "offload=optimizer recompute=block", "tensor shard"),
        ("precision=fp16", 2, "recompute=block", "tensor shard"),
        ("offload=all", 1, "recompute=block accumulate=2", "tensor shard offload=optimizer"),
        ("sync=local,local_steps=4", 2, "recompute=block", "tensor shard offload=optimizer"),
        ("layout=channels_last", 2, "recompute=block tensor=2", "shard"),
        ("proportions=3:1", 2, "shard=params tensor=2", ""),
        ("share=balanced", 2, "tensor=2", "shard"),
    ],
)
def test_only_what_can_run_is_offered(plan: str, workers: int, offered: str, not_offered: str) -> None:
    parsed = Plan.parse(plan)
    needs = estimate(replace(SIZES, held=9 * GIB), parsed, batch=80, replicas=1)
    said = judge(needs, Room(20 * GIB, 99 * GIB, on_gpu=True), parsed)
    ways = re.findall(r"(\w+=[\w-]+)(?: \(|;|$)", said.warning.partition("What needs less: ")[2])
    assert all(one in ways for one in offered.split())
    assert not [one for one in ways for word in not_offered.split() if one.startswith(word)]
    for one in ways:  # and each can really be written beside what is there
        name, _, value = one.partition("=")
        changed = Plan.from_dict({**parsed.to_dict(), name: value})
        assert not changed.refusals(workers * (changed.tensor if parsed.proportions else 4)), one


def test_offloading_that_host_memory_cannot_hold() -> None:
    plan = Plan(offload="all")
    refusal = judge(estimate(SIZES, plan, batch=8, replicas=1), Room(40 * GIB, GIB, on_gpu=True), plan).refusal
    assert "leave offload out, and use tensor=2" in refusal and "fewer workers per host" in refusal


def test_the_state_of_optimizers_is_known_before_their_first_step() -> None:
    parameters = [nn.Parameter(torch.zeros(10, 30)), nn.Parameter(torch.zeros(7))]
    bytes_of = 4 * 307
    for optimizer, times in (
        (torch.optim.AdamW(parameters), 2),
        (torch.optim.AdamW(parameters, amsgrad=True), 3),
        (torch.optim.SGD(parameters, lr=0.1), 0),
        (torch.optim.SGD(parameters, lr=0.1, momentum=0.9), 1),
    ):
        assert state_bytes(optimizer) == times * bytes_of

    class Own(torch.optim.SGD):
        """Not one of PyTorch's: it may keep anything."""

    assert state_bytes(Own(parameters, lr=0.1)) is None


def test_a_start_is_refused_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    job = load_job(JOBS / "gpt.py", {})
    model, stepper = job.make_model(), Stepper(plan=Plan(recompute="block"))
    start = partial(
        check_fits, job, stepper, job.order(job.resolve(1)), stepper.place(model), job.make_optimizer(model)
    )
    monkeypatch.setattr(fitting, "room_of", lambda model, device: Room(2**18, 2**18))
    with pytest.raises(PlanError, match=r"recompute=block does not fit: a worker needs at least 1\.0 MiB of host"):
        start()
    monkeypatch.setattr(fitting, "room_of", lambda model, device: Room(2**40, 2**40))
    start()


def test_activations_of_a_batch_follow_from_those_of_few_samples() -> None:
    job, stepper = load_job(JOBS / "gpt.py", {}), Stepper()
    model, order = job.make_model(), job.order(job.resolve(1))
    sizes = with_activations(sizes_of(model, job.make_optimizer(model)), job, order, model, stepper)
    measured = saved_bytes(model, lambda: job.compute(model, first_batch(job, order, "cpu", 101))[0])
    assert sizes.kept is not None and sizes.kept.at(101) == pytest.approx(measured, rel=0.01)


def test_activations_of_a_pipeline_follow_from_its_table() -> None:
    """Of micro-batches under way, on the worker that keeps most of them; not those of the whole model and share."""
    job = load_job(JOBS / "gpt.py", {})
    whole = estimate_of_job(job, Plan(), 1)[0]
    assert whole.activations is not None

    def needs(words: str, counts: list[int]) -> Needs:
        stages = plan_stages(*model_of_job(job), counts, costs="parameters")
        found = estimate_of_job(job, Plan.parse(f"pipeline=2,schedule={words}"), 2, stages)[0]
        assert found.samples == 26 and found.activations is not None  # a quarter of 101, rounded up
        return found

    one, all_of_them = needs("1f1b", [3, 3]), needs("gpipe", [3, 3])
    assert (one.micros, all_of_them.micros) == (2, 4)  # of the first stage, and of the last one, which has the head
    both = one.activations / 2 + all_of_them.activations / 4
    assert both == pytest.approx(whole.activations * 26 / 101, rel=0.01)
    assert f"activations of 2 x {one.samples} samples" in str(one)
    assert needs("1f1b,recompute=block", [3, 3]).activations < one.activations
    assert needs("interleaved", [2, 1, 1, 2]).micros == 3  # once for each of its stages
    assert estimate_of_job(job, Plan(pipeline=2), 2)[0].activations is None  # no stages, no estimate
