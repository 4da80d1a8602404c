"""Which plans cannot run, and why: a table of rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from cordee.core.errors import PlanError

if TYPE_CHECKING:
    from cordee.core.plan import Plan


class Refusal(NamedTuple):
    """A rule of `Plan.check`."""

    applies: Callable[[Plan, int], bool]
    """Whether a plan cannot run on a number of workers by this rule."""
    reason: str
    """With the plan's keys in braces; `workers` is the number of workers, `named` that of the proportions, `cut` what
    of `tensor`, `pipeline` and `shard` it sets, `each` the workers that compute a share of the batch together, `shares`
    how many replicas, or shards of them, that makes."""


LESS_MEMORY = "What needs less memory with {cut}: more workers per replica, recompute=block, or a smaller batch."


def _refuse_cut(text: str, why: str, applies: Callable[[Plan], bool]) -> Refusal:
    """What does not work where a replica lies over several workers; `why`: the cause, and what to do instead."""
    return Refusal(
        lambda plan, workers: (plan.tensor, plan.pipeline, plan.shard) != (1, 1, "none") and applies(plan),
        f"{{cut}} does not work with {text}, {why}",
    )


def _refuse_exact(text: str, why: str, applies: Callable[[Plan], bool]) -> Refusal:
    """What cannot give the same bits on any number of workers; `why`: the cause, and what to do instead."""
    return Refusal(lambda plan, workers: plan.exact and applies(plan), f"exact=true does not work with {text}, {why}")


REFUSALS = (
    Refusal(
        lambda plan, workers: bool(plan.proportions) and plan.share == "equal",
        "proportions={proportions} mean nothing under share=equal; set share=proportional.",
    ),
    Refusal(
        lambda plan, workers: not plan.proportions and plan.share == "proportional",
        "share=proportional needs proportions, one number per worker (per replica under tensor= or pipeline=), such as "
        "proportions=5:3:2.",
    ),
    Refusal(
        lambda plan, workers: plan.copy_every > 0 and plan.recover == "ask",
        "copy_every={copy_every} means nothing under recover=ask, where a run that lost its state ends; set "
        "recover=fewer or recover=full.",
    ),
    Refusal(
        lambda plan, workers: plan.share == "balanced" and (plan.merges or plan.sync == "auto" or plan.mode != "sync"),
        "share=balanced works where all replicas commit each step together: with sync=allreduce, or sync=server and "
        "mode=sync. Where they compute windows, the faster ones take more parts by themselves; leave share out.",
    ),
    Refusal(
        lambda plan, workers: plan.share == "balanced" and plan.shard != "none",
        "share=balanced does not work with shard={shard} yet, whose workers wait for each other in every layer; leave "
        "one of them out.",
    ),
    Refusal(
        lambda plan, workers: plan.tensor * plan.pipeline == 1 and len(plan.proportions) not in (0, workers),
        "proportions={proportions} name {named} worker(s), but {workers} start.",
    ),
    Refusal(
        lambda plan, workers: (
            plan.tensor * plan.pipeline > 1
            and workers % (plan.tensor * plan.pipeline) == 0
            and len(plan.proportions) not in (0, workers // (plan.tensor * plan.pipeline))
        ),
        "proportions={proportions} has {named} number(s), but {workers} workers under {cut} are {shares}: give one "
        "number for each of them.",
    ),
    Refusal(
        lambda plan, workers: plan.graphs == "true" and not plan.compile,
        "graphs=true needs compile=true: graphs are made of what it compiles.",
    ),
    Refusal(
        lambda plan, workers: plan.servers > 1 and plan.sync != "server",
        "servers={servers} means nothing under sync={sync}; set sync=server.",
    ),
    Refusal(
        lambda plan, workers: plan.faithful != "any" and plan.sync != "auto",
        "faithful={faithful} says what sync=auto may choose, and means nothing under sync={sync}; leave it out.",
    ),
    Refusal(
        lambda plan, workers: plan.mode != "sync" and plan.sync != "server",
        "mode={mode} means nothing under sync={sync}; set sync=server.",
    ),
    Refusal(
        lambda plan, workers: plan.staleness > 0 and plan.mode != "stale",
        "staleness={staleness} means nothing under mode={mode}; set mode=stale.",
    ),
    Refusal(
        lambda plan, workers: plan.push != "gradients" and plan.sync != "server",
        "push={push} means nothing under sync={sync}; set sync=server.",
    ),
    Refusal(
        lambda plan, workers: plan.push == "parameters" and plan.mode != "sync",
        "push=parameters averages what all workers have done in a window, so it has no mode={mode}, which applies each "
        "push by itself; leave mode out, and give local_steps, such as local_steps=8.",
    ),
    Refusal(
        lambda plan, workers: plan.sync == "server" and plan.precision == "fp16",
        "sync=server does not work with precision=fp16, whose scale is the workers' own; use precision=bf16 or fp32.",
    ),
    Refusal(
        lambda plan, workers: plan.local_steps > 1 and not plan.merges,
        "local_steps={local_steps} means nothing under sync={sync}; set sync=local, or sync=server,push=parameters.",
    ),
    Refusal(
        lambda plan, workers: plan.local_lr != "root" and not (plan.merges or plan.sync == "auto"),
        "local_lr={local_lr} means nothing under sync={sync}; set sync=local, or sync=server,push=parameters.",
    ),
    Refusal(
        lambda plan, workers: plan.merge != "wait" and plan.sync != "local",
        "merge={merge} means nothing under sync={sync}; set sync=local.",
    ),
    Refusal(
        lambda plan, workers: plan.outer != "average" and not plan.merges,
        "outer={outer} means nothing under sync={sync}; set sync=local, or sync=server,push=parameters.",
    ),
    Refusal(
        lambda plan, workers: plan.outer_momentum >= 1,
        "outer_momentum={outer_momentum} lets the outer update grow without end; give a number below 1, such as 0.9.",
    ),
    Refusal(
        lambda plan, workers: plan.sync == "local" and plan.precision == "fp16",
        "sync=local does not work with precision=fp16, whose scale all replicas share; use precision=bf16 or fp32.",
    ),
    Refusal(
        lambda plan, workers: plan.compress != "none" and plan.sync == "auto",
        "compress={compress} means nothing under sync=auto, which chooses by itself; leave one of them out.",
    ),
    Refusal(
        lambda plan, workers: plan.sync == "server" and plan.compress == "powersgd",
        "compress=powersgd needs a sum over all replicas before it can go on, which no push to a server holds; use "
        "bf16, fp16, int8, onebit or topk, or sync=allreduce.",
    ),
    Refusal(
        lambda plan, workers: plan.offload in ("optimizer", "all") and plan.sync != "allreduce",
        "offload={offload} keeps the state of an optimizer in host memory, which works with sync=allreduce alone, not "
        "with sync={sync}; leave one of them out.",
    ),
    Refusal(
        lambda plan, workers: plan.offload in ("activations", "all") and plan.compile,
        "offload={offload} does not work with compile=true yet, which keeps activations by itself; use "
        "offload=optimizer, or leave one of them out.",
    ),
    Refusal(
        lambda plan, workers: plan.replace and (plan.tensor * plan.pipeline > 1 or plan.shard != "none"),
        "replace=true works where every worker holds the whole model: not with tensor or pipeline above 1, nor with "
        "shard=.",
    ),
    Refusal(
        lambda plan, workers: plan.shards > 0 and plan.shard == "none",
        "shards={shards} means nothing under shard=none; set shard=optimizer, gradients or params.",
    ),
    Refusal(
        lambda plan, workers: plan.sequence and plan.tensor == 1,
        "sequence=true shares the tokens out over the workers of a replica; set tensor=2 or more.",
    ),
    Refusal(
        lambda plan, workers: plan.shard != "none" and plan.shards > 0 and workers % plan.shape(workers).size > 0,
        "shards={shards} puts each replica on {shards} x tensor={tensor} x pipeline={pipeline} workers; start a "
        "multiple of that, or leave shards out.",
    ),
    Refusal(
        lambda plan, workers: plan.shard != "none" and plan.layout == "channels_last",
        "shard={shard} keeps parameters in rows, and not with layout=channels_last; leave layout out.",
    ),
    Refusal(
        lambda plan, workers: workers % (plan.tensor * plan.pipeline) > 0,
        "{cut} puts each replica on {each} workers; start a multiple of {each} workers.",
    ),
    Refusal(
        lambda plan, workers: plan.pipeline == 1 and plan.schedule != "1f1b",
        "schedule={schedule} means nothing without stages; set pipeline=2 or more.",
    ),
    Refusal(
        lambda plan, workers: plan.schedule == "zero-bubble" and plan.layout == "channels_last",
        "schedule=zero-bubble does not work with layout=channels_last: torch crashes on CPUs when it computes the "
        "gradients of such weights by themselves; leave layout out, or use schedule=1f1b.",
    ),
    Refusal(
        lambda plan, workers: plan.pipeline == 1 and plan.micro_batches > 0,
        "micro_batches={micro_batches} means nothing without stages; set pipeline=2 or more, or use accumulate.",
    ),
    Refusal(
        lambda plan, workers: plan.pipeline > 1 and plan.accumulate > 1,
        "pipeline={pipeline} computes a step in micro-batches anyway: leave accumulate={accumulate} out, and set "
        "micro_batches={accumulate}.",
    ),
    Refusal(
        lambda plan, workers: plan.recompute != "none" and plan.schedule == "zero-bubble" and plan.pipeline > 1,
        "recompute={recompute} does not work with schedule=zero-bubble, which computes a backward pass in pieces: for "
        "each of them a block would be computed again, that of a transformer four times; use schedule=1f1b.",
    ),
    Refusal(
        lambda plan, workers: plan.pieces != 8 and not plan.exact,
        "pieces={pieces} means nothing without exact=true; set it, or use accumulate={pieces}.",
    ),
    _refuse_exact(
        "sync={sync}",
        "which does not add up a step's gradients in one fixed order; use sync=allreduce.",
        lambda plan: plan.sync != "allreduce",
    ),
    _refuse_exact(
        "compress={compress}",
        "because each worker leaves out of its own sum what does not fit; leave compress out.",
        lambda plan: plan.compress != "none",
    ),
    _refuse_exact(
        "{cut}",
        "where the shapes that a worker computes depend on how many there are; keep replicas whole.",
        lambda plan: (plan.tensor, plan.pipeline, plan.shard) != (1, 1, "none"),
    ),
    _refuse_exact(
        "batchnorm=replica",
        "whose running statistics depend on which pieces a worker has seen; leave it out, and take another norm, such "
        "as GroupNorm.",
        lambda plan: plan.batchnorm == "replica",
    ),
    _refuse_exact(
        "accumulate={accumulate}",
        "because a batch is computed in pieces anyway; leave accumulate out, and set pieces={accumulate}.",
        lambda plan: plan.accumulate > 1,
    ),
    _refuse_exact(
        "share={share}",
        "because a piece of a batch is computed by one worker, not sample by sample; use share=equal, proportional or "
        "sampled, which then cut by whole pieces.",
        lambda plan: plan.share in ("local", "balanced"),
    ),
    _refuse_exact(
        "compile=true",
        "whose kernels depend on which sizes of pieces a worker has met before; leave compile out.",
        lambda plan: plan.compile,
    ),
    _refuse_cut(
        "sync={sync}",
        "whose merges, servers and codecs take whole parameters, of which a worker has a part here; use "
        "sync=allreduce, or keep replicas whole: recompute=block or accumulate=N then save memory.",
        lambda plan: plan.sync != "allreduce",
    ),
    _refuse_cut(
        "compile=true",
        "because torch.compile cannot trace how workers exchange slices and stages within the model; leave compile "
        "out, or use shard=params alone, which can be compiled.",
        lambda plan: plan.compile and plan.tensor * plan.pipeline > 1,
    ),
    Refusal(
        lambda plan, workers: plan.shard != "none" and plan.graphs == "true" and plan.compile,
        "shard={shard} gathers parameters into other memory in each step, but graphs=true replays kernels over the "
        "memory of the first one; leave graphs out.",
    ),
    _refuse_cut(
        "precision=fp16",
        "because a gradient that overflows on one worker would have to void the step on all workers of its replica; "
        "use precision=bf16, which needs no scale, or fp32.",
        lambda plan: plan.precision == "fp16",
    ),
    _refuse_cut(
        "offload={offload}",
        "which moves the state of an optimizer as whole tensors, of which a worker has a part here; leave offload out. "
        + LESS_MEMORY,
        lambda plan: plan.offload in ("optimizer", "all"),
    ),
    _refuse_cut(
        "offload=activations",
        "because the two were not tried together on a GPU yet; leave offload out. " + LESS_MEMORY,
        lambda plan: plan.offload == "activations",
    ),
    _refuse_cut(
        "compress={compress}",
        "which keeps what it leaves out by whole parameters, of which a worker has a part here; leave compress out, "
        "or keep replicas whole. With each replica on one host only gradients cross the network.",
        lambda plan: plan.compress != "none",
    ),
)


def refuse_on_cpu(offload: str, device: str) -> None:
    """Say of a plan for GPUs that it means nothing here."""
    if offload != "none" and device == "cpu":
        raise PlanError(
            f"plan key offload={offload} moves what a GPU holds to host memory, but this run computes on the CPU, "
            "whose memory that is: leave offload out. What takes less memory on a CPU: recompute=block, accumulate=N "
            "or tensor=N"
        )
