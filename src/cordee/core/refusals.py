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
    """With the plan's keys in braces; `workers` is the number of workers, `named` that of the proportions."""


def _refuse_sliced(text: str, applies: Callable[[Plan], bool]) -> Refusal:
    """What does not work yet where a replica is cut into slices."""
    return Refusal(
        lambda plan, workers: plan.tensor > 1 and applies(plan),
        f"tensor={{tensor}} does not work with {text} yet; leave one of them out.",
    )


REFUSALS = (
    Refusal(
        lambda plan, workers: bool(plan.proportions) and plan.share == "equal",
        "proportions={proportions} mean nothing under share=equal; set share=proportional.",
    ),
    Refusal(
        lambda plan, workers: not plan.proportions and plan.share == "proportional",
        "share=proportional needs proportions, one number a worker, such as proportions=5:3:2.",
    ),
    Refusal(
        lambda plan, workers: len(plan.proportions) not in (0, workers),
        "proportions={proportions} name {named} worker(s), but {workers} start.",
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
        lambda plan, workers: plan.replace and plan.tensor > 1,
        "replace=true works where every worker holds the whole model: not with tensor above 1.",
    ),
    Refusal(
        lambda plan, workers: workers % plan.tensor > 0,
        "tensor={tensor} puts each replica on {tensor} workers; start a multiple of {tensor} workers.",
    ),
    _refuse_sliced("sync={sync}", lambda plan: plan.sync != "allreduce"),
    _refuse_sliced("compile=true", lambda plan: plan.compile),
    _refuse_sliced("precision=fp16", lambda plan: plan.precision == "fp16"),
    _refuse_sliced("offload={offload}", lambda plan: plan.offload in ("optimizer", "all")),
    _refuse_sliced("share=proportional", lambda plan: plan.share == "proportional"),
    _refuse_sliced("compress={compress}", lambda plan: plan.compress != "none"),
)


def refuse_on_cpu(offload: str, device: str) -> None:
    """Say of a plan for GPUs that it means nothing here."""
    if offload != "none" and device == "cpu":
        raise PlanError(
            f"plan key offload={offload} moves what a GPU holds to host memory, but this run computes on the CPU, "
            "whose memory that is: leave offload out. What takes less memory on a CPU: recompute=block, accumulate=N "
            "or tensor=N"
        )
