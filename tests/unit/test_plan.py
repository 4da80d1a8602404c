from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cordee.core.errors import PlanError
from cordee.core.plan import Plan
from cordee.core.refusals import REFUSALS
from cordee.split.schedules import SCHEDULES

TEXTS = [
    "sync=allreduce",
    "share=sampled",
    "share=proportional,proportions=5:3:2",
    "share=sampled,proportions=0.5:1",
    "batchnorm=replica,accumulate=3,bucket_mb=0.5,overlap=false,backend=gloo",
]


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_printed_is_read_back(text: str, tmp_path: Path) -> None:
    plan = Plan.parse(text)
    assert str(plan) == text
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    file = tmp_path / "plan.yaml"
    file.write_text(plan.to_yaml(), encoding="utf-8")
    assert Plan.parse(file) == Plan.parse(str(file)) == plan


def test_auto_and_a_plan_itself() -> None:
    assert Plan.parse("auto") == Plan() == Plan.parse(str(Plan()))
    plan = Plan(accumulate=2)
    assert Plan.parse(plan) is plan


def test_values_get_their_types() -> None:
    plan = Plan.parse(" accumulate = 2 , overlap=FALSE, bucket_mb=4,proportions=5:3")
    assert (plan.accumulate, plan.overlap, plan.bucket_mb, plan.proportions) == (2, False, 4.0, (5.0, 3.0))
    assert type(plan.bucket_mb) is float
    assert Plan.from_dict({"proportions": [5, 3], "bucket_mb": 1}).proportions == (5.0, 3.0)
    assert hash(plan) == hash(Plan.parse(str(plan)))


def test_proportions_imply_the_share_unless_it_is_given() -> None:
    assert Plan.parse("proportions=5:3:2").share == "proportional"
    assert Plan.parse("proportions=5:3:2,share=sampled").share == "sampled"
    assert Plan.parse("proportions=5:3:2,share=equal").refusals(3) != []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shar=equal", ["'shar'", "Did you mean 'share'", "proportions"]),
        ("zzz=1", ["'zzz'", "share", "accumulate"]),
        ("share=equall", ["share", "equall", "equal, proportional, sampled", "Did you mean share=equal"]),
        ("accumulate=0", ["accumulate", "'0'", "at least 1"]),
        ("accumulate=2.5", ["accumulate", "2.5", "whole number"]),
        ("bucket_mb=nan", ["bucket_mb", "nan", "number"]),
        ("bucket_mb=-1", ["bucket_mb", "at least 0"]),
        ("overlap=perhaps", ["overlap", "perhaps", "true or false"]),
        ("proportions=5:-3", ["proportions", "5:-3", "at least 0"]),
        ("proportions=0:0", ["proportions", "0:0", "not all 0"]),
        ("proportions=5;3", ["proportions", "5;3", "colons"]),
        ("share", ["'share' is not key=value", "auto"]),
        ("share=", ["key=value"]),
        ("", ["key=value", "auto"]),
        ("share=equal,share=sampled", ["'share' twice", "equal", "sampled"]),
    ],
)
def test_errors_name_the_key_the_value_and_what_is_allowed(text: str, words: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.parse(text)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "values", [{"pipeline": 0}, {"accumulate": True}, {"share": None}, {"overlap": 1}, {"proportions": 3}]
)
def test_python_callers_are_checked_too(values: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=next(iter(values))):
        Plan(**values)


@pytest.mark.parametrize(
    ("text", "message"),
    [("- share\n", "expected a mapping"), ("share: [", "is not YAML"), ("shar: equal\n", "Did you mean 'share'")],
)
def test_a_wrong_yaml_file(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.yml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(PlanError, match=message):
        Plan.parse(file)


def test_a_missing_yaml_file_is_named() -> None:
    with pytest.raises(PlanError, match=r"/not-there\.yaml could not be read: No such file"):
        Plan.parse("not-there.yaml")


REFUSED = (
    (Plan(proportions=(5, 3)), 2, "mean nothing under share=equal"),
    (Plan(share="proportional"), 2, "needs proportions"),
    (Plan(share="proportional", proportions=(5, 3, 2)), 2, "name 3 worker.s., but 2 start"),
    (Plan(graphs="true"), 2, "graphs=true needs compile=true"),
    (Plan(copy_every=5), 2, "copy_every=5 means nothing under recover=ask.*; set recover=fewer or recover=full"),
    (Plan(servers=2), 2, "servers=2 means nothing under sync=allreduce; set sync=server"),
    (Plan(sync="server", precision="fp16"), 2, "sync=server does not work with precision=fp16"),
    (Plan(faithful="same"), 2, "faithful=same says what sync=auto may choose"),
    (Plan(mode="async"), 2, "mode=async means nothing under sync=allreduce; set sync=server"),
    (Plan(sync="server", staleness=4), 2, "staleness=4 means nothing under mode=sync; set mode=stale"),
    (Plan(push="parameters"), 2, "push=parameters means nothing under sync=allreduce; set sync=server"),
    (Plan(sync="server", push="parameters", mode="async"), 2, "so it has no mode=async, which applies each push"),
    (Plan(sync="server", push="parameters", mode="stale", staleness=2), 2, "so it has no mode=stale"),
    (Plan(sync="server", push="parameters", compress="powersgd"), 2, "compress=powersgd needs a sum"),
    (Plan(sync="server", local_steps=4), 2, "or sync=server,push=parameters"),
    (Plan(share="balanced", sync="local"), 2, "share=balanced works where all replicas commit each step together"),
    (Plan(share="balanced", sync="server", mode="async"), 2, "share=balanced works where all replicas commit"),
    (Plan(share="balanced", sync="auto"), 2, "share=balanced works where all replicas commit each step together"),
    (Plan(share="balanced", shard="params"), 2, "share=balanced does not work with shard=params yet"),
    (Plan(local_steps=4), 2, "local_steps=4 means nothing under sync=allreduce; set sync=local"),
    (Plan(local_lr="same"), 2, "local_lr=same means nothing under sync=allreduce; set sync=local"),
    (Plan(merge="behind"), 2, "merge=behind means nothing under sync=allreduce; set sync=local"),
    (Plan(outer="nesterov"), 2, "outer=nesterov means nothing under sync=allreduce; set sync=local"),
    (Plan(sync="local", outer="nesterov", outer_momentum=1.5), 2, "outer_momentum=1.5 lets the outer update grow"),
    (Plan(sync="local", precision="fp16"), 2, "sync=local does not work with precision=fp16"),
    (Plan(sync="auto", compress="int8"), 2, "compress=int8 means nothing under sync=auto"),
    (Plan(sync="server", compress="powersgd"), 2, "compress=powersgd needs a sum over all replicas"),
    (
        Plan(tensor=2, compress="bf16"),
        4,
        "compress=bf16, which keeps .* leave compress out, or keep replicas whole",
    ),
    (Plan(tensor=2, replace=True), 4, "replace=true works where every worker holds the whole model"),
    (Plan(offload="all", sync="local"), 2, "works with sync=allreduce alone, not with sync=local"),
    (Plan(offload="activations", compile=True), 1, "offload=activations does not work with compile=true yet"),
    (Plan(shard="params", offload="activations"), 2, "were not tried together on a GPU yet; leave offload out"),
    (
        Plan(tensor=2, offload="optimizer"),
        2,
        "with offload=optimizer, which moves .* with tensor=2: more workers",
    ),
    (Plan(tensor=2), 3, "tensor=2 puts each replica on 2 workers; start a multiple of 2"),
    (Plan(tensor=2, pipeline=2), 6, "tensor=2,pipeline=2 puts each replica on 4 workers; start a multiple of 4"),
    (
        Plan(pipeline=2, compile=True),
        2,
        "pipeline=2 does not work with compile=true, because .* or use shard=params alone",
    ),
    (Plan(pipeline=2, accumulate=3), 2, "leave accumulate=3 out, and set micro_batches=3"),
    (Plan(schedule="gpipe"), 2, "schedule=gpipe means nothing without stages; set pipeline=2"),
    (Plan(micro_batches=4), 2, "micro_batches=4 means nothing without stages; set pipeline=2 or more, or use acc"),
    (Plan(sequence=True), 2, "sequence=true shares the tokens out .* set tensor=2 or more"),
    (Plan(tensor=2, sync="local"), 4, "tensor=2 does not work with sync=local, whose merges.* use sync=allreduce"),
    (Plan(tensor=2, compile=True), 4, "tensor=2 does not work with compile=true, because"),
    (
        Plan(tensor=2, precision="fp16"),
        4,
        "precision=fp16, because a gradient that overflows .* use precision=bf16",
    ),
    (
        Plan(tensor=2, share="proportional", proportions=(5, 3, 2)),
        4,
        r"5:3:2 has 3 number\(s\), but 4 workers under tensor=2 are 2 replicas: give one number for each",
    ),
    (Plan(shard="params", tensor=2, share="sampled", proportions=(1, 1)), 8, "tensor=2,shard=params are 4 shards"),
    (Plan(pipeline=2, share="proportional", proportions=(1, 1)), 3, "start a multiple of 2 workers"),
    (Plan(shard="params", replace=True), 2, "replace=true works where every worker holds the whole model"),
    (Plan(shards=2), 2, "shards=2 means nothing under shard=none; set shard=optimizer, gradients or params"),
    (Plan(shard="params", shards=2, tensor=2), 6, "on 2 x tensor=2 x pipeline=1 workers; start a multiple"),
    (Plan(shard="params", layout="channels_last"), 2, "keeps parameters in rows"),
    (Plan(shard="params", sync="auto"), 2, "shard=params does not work with sync=auto, whose"),
    (
        Plan(shard="params", compile=True, graphs="true"),
        2,
        "gathers parameters into other memory .* leave graphs out",
    ),
    (Plan(shard="params", precision="fp16"), 2, "shard=params does not work with precision=fp16, because"),
    (Plan(shard="params", compress="bf16"), 2, "shard=params does not work with compress=bf16, which"),
    (Plan(shard="params", shards=3, pipeline=2), 8, "on 3 x tensor=1 x pipeline=2 workers; start a multiple"),
    (Plan(pipeline=2, schedule="zero-bubble", layout="channels_last"), 2, "torch crashes on CPUs .* schedule=1f1b"),
    (Plan(pipeline=2, schedule="zero-bubble", recompute="block"), 2, "in pieces: .* use schedule=1f1b"),
    (Plan(pieces=4), 2, "pieces=4 means nothing without exact=true; set it, or use accumulate=4"),
    (Plan(exact=True, sync="server"), 2, "exact=true does not work with sync=server, which .* use sync=allreduce"),
    (Plan(exact=True, compress="bf16"), 2, "exact=true does not work with compress=bf16, because"),
    (Plan(exact=True, tensor=2), 2, "exact=true does not work with tensor=2, where the shapes"),
    (Plan(exact=True, shard="params"), 2, "exact=true does not work with shard=params, where the shapes"),
    (Plan(exact=True, batchnorm="replica"), 2, "exact=true does not work with batchnorm=replica, whose running"),
    (Plan(exact=True, accumulate=3), 2, "exact=true does not work with accumulate=3, .* and set pieces=3"),
    (Plan(exact=True, share="balanced"), 2, "exact=true does not work with share=balanced, because a piece"),
    (Plan(exact=True, compile=True), 2, "exact=true does not work with compile=true, whose kernels depend"),
)


@pytest.mark.parametrize(("plan", "workers", "reason"), REFUSED)
def test_refusals(plan: Plan, workers: int, reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        plan.check(workers)
    assert len(plan.refusals(workers)) == 1


def test_plans_that_run() -> None:
    Plan().check(1)
    Plan().check(7)
    Plan.parse("proportions=5:3:2").check(3)
    Plan.parse("tensor=2").check(4)
    for schedule in SCHEDULES:
        Plan(tensor=2, pipeline=2, schedule=schedule, micro_batches=8).check(8)
    Plan(pipeline=2, recompute="block").check(2)
    Plan(tensor=2, sequence=True, recompute="block").check(2)
    Plan(tensor=2, sequence=True, pipeline=2).check(4)
    Plan(tensor=2, sequence=True, shard="params").check(4)
    Plan.parse("shard=params,proportions=5:3:2").check(3)
    Plan.parse("tensor=2,pipeline=2,proportions=5:3").check(8)
    Plan.parse("shard=params,shards=2,tensor=2,proportions=5:3:2:1").check(8)
    Plan.parse("shard=optimizer,shards=2,tensor=2").check(8)
    for word in ("optimizer", "gradients", "params"):
        Plan(tensor=2, pipeline=2, shard=word, schedule="zero-bubble").check(8)
    Plan.parse("shard=optimizer,shards=2,tensor=2,recompute=block").check(8)
    Plan.parse("sync=server,push=parameters,local_steps=8,outer=nesterov,local_lr=same,compress=int8").check(3)


def test_each_rule_refuses_a_plan_above() -> None:
    unmet = [rule.reason for rule in REFUSALS if not any(rule.applies(plan, workers) for plan, workers, _ in REFUSED)]
    assert not unmet


def test_the_shape_of_a_replica() -> None:
    assert Plan(tensor=2).shape(4) == (1, 1, 2)
    assert Plan(tensor=2, pipeline=3).shape(6) == (3, 1, 2)
    assert Plan(shard="params").shape(6) == (1, 6, 1)
    assert Plan(shard="params", tensor=2).shape(6) == (1, 3, 2)
    assert Plan(shard="params", shards=2, tensor=2).shape(8) == (1, 2, 2)
    assert Plan(shard="params", pipeline=2, tensor=2).shape(8) == (2, 2, 2)


def test_faithfulness() -> None:
    assert Plan(share="sampled", accumulate=2).faithfulness == "same"
    assert Plan(exact=True, precision="fp16").faithfulness == "exact"
    assert Plan(batchnorm="replica").faithfulness == "statistical"
    assert Plan(sync="local").faithfulness == "statistical"
    assert Plan(sync="server", push="parameters").faithfulness == "statistical"
