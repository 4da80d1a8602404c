"""That all workers train the same: each says what it was given, and what differs is told before it does harm.

Hosts are started one by one, by hand or by another launcher. Another learning rate on one of them, or data that
were drawn anew there, would train something else without any sign of it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cordee.core.errors import CheckpointError, JobError
from cordee.core.plan import Plan
from cordee.feed.source import Source, digest_of
from cordee.group.alike import alike
from cordee.group.comm import Comm
from cordee.group.team import Team
from cordee.train.devices import conditions
from cordee.train.job import Job

MOST_TOLD = 4
_BY_MACHINE = ("params", "fused", "foreach", "capturable", "compile", "graphs")
"""What a plan or an optimizer may have otherwise where the machine is another."""


def agree_on(team: Team, given: Mapping[str, Any]) -> None:
    """Go on if all workers were given the same; every one of them calls this. Else raise `JobError` on all of them."""
    if team.alone:
        return
    own = json.dumps([socket.gethostname(), given], default=str).encode()
    while True:
        sides = gather_bytes(team.world, own)
        # A worker may have received all sides and another one not: what follows makes it one agreement.
        if team.settle([team.world.sum(torch.zeros(1))] if sides else [], (), void=sides is None):
            break
    table = [json.loads(side) for side in sides or ()]
    at, first = table[0]
    for rank, (place, other) in enumerate(table):
        if other == first:
            continue
        pairs = {name: (first.get(name, "nothing"), other.get(name, "nothing")) for name in {**first, **other}}
        told = [f"{name}: {' and '.join(differing(*pair))}" for name, pair in pairs.items() if pair[0] != pair[1]]
        more = f" and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
        raise JobError(
            f"worker 0 on {at} and worker {rank} on {place} were not given the same: {'; '.join(told[:MOST_TOLD])}"
            f"{more}. Give the same job, options and data to all of them; data that are drawn at random need a seed, "
            "such as np.random.default_rng(0)"
        )


def gather_bytes(comm: Comm, raw: bytes) -> list[bytes] | None:
    """Those of all members, of any length; None if one was lost."""
    lengths = comm.gather(torch.tensor([len(raw)])).wait()
    if lengths is None:
        return None
    padded = raw.ljust(int(max(lengths)))
    parts = comm.gather(torch.frombuffer(bytearray(padded), dtype=torch.uint8)).wait()
    if parts is None:
        return None
    return [part.numpy().tobytes()[: int(length)] for part, length in zip(parts, lengths, strict=True)]


def of_job(job: Job, *, resume: bool) -> dict[str, Any]:
    """What a job asks for, as far as it can be told by looking at it: of functions, whether there are any."""
    aside = ("data", "name", "callbacks", "tensor_plan")
    parts = {f"{part} data": of_data(source) for part, source in job.data.sets.items()}
    return {
        "--resume": resume,
        **{name: callable(value) or value for name, value in vars(job).items() if name not in aside},
        **parts,
        "start_from": job.start_from is not None,
        "metrics": sorted(job.metrics),
        "stop": {name: callable(value) or value for name, value in vars(job.stop).items()},
        "save": vars(job.save),
    }


def of_data(source: Source) -> str:
    """A data set."""
    what = f"{len(source)} samples" if source.traits.stream is None else "an endless stream"
    return f"{what} with fingerprint {source.fingerprint}"


def of_model(model: nn.Module, plan: Plan) -> dict[str, Any]:
    """Names, shapes and number formats; and how it is to be trained."""
    state = {**model.state_dict(), **dict(model.named_buffers())}
    shapes = [f"{name} {tuple(one.shape)} {one.dtype}" for name, one in state.items() if isinstance(one, Tensor)]
    count = sum(parameter.numel() for parameter in model.parameters())
    keys = {name: value for name, value in plan.to_dict().items() if plan.exact or name not in _BY_MACHINE}
    alike = {}
    if plan.exact:
        device = next((str(one.device) for one in model.parameters()), "cpu")
        alike = {"what exact=true needs alike (--threads 1, for instance)": conditions(plan.pieces, device)}
    said = f"{count} parameters with fingerprint {digest_of(line.encode() for line in shapes)}"
    return {**alike, "plan": keys, "model": said}


def of_optimizer(optimizer: Optimizer, *, counts: bool = False) -> dict[str, Any]:
    """Its class, and the numbers of each group of parameters; `counts`: also how many parameters that has."""
    groups = []
    for group in optimizer.param_groups:
        own = {name: value for name, value in group.items() if name not in _BY_MACHINE}
        numbers = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in own.items()}
        groups.append({**numbers, "parameters": len(group["params"])} if counts else numbers)
    return {"optimizer": type(optimizer).__name__, "optimizer's settings": groups[0] if len(groups) == 1 else groups}


def without_counts(settings: Any) -> Any:
    """Settings of an optimizer as former versions saved them, without the number of parameters in each group."""
    if isinstance(settings, list):
        return [without_counts(one) for one in settings]
    return {name: value for name, value in settings.items() if name != "parameters"}


def state_of(model: nn.Module) -> list[Tensor]:
    """All that a model holds: buffers too that it does not save, except for what has no memory of its own (expand)."""
    held = [*model.state_dict(keep_vars=True).values(), *model.buffers()]
    tensors = {id(one): one for one in held if isinstance(one, Tensor)}
    return [one for one in tensors.values() if not any(map(_is_expanded, one.stride(), one.shape))]


def _is_expanded(step: int, size: int) -> bool:
    return step == 0 < size - 1


def share_model(model: nn.Module, team: Team, plan: Plan) -> None:
    """Make the model the same on every worker, which all have to have been given alike; every worker calls this."""
    agree_on(team, of_model(model, plan))
    # Made from one seed they are mostly alike, and slow links are spared; of a replica in slices that is not known.
    if team.sliced or not alike(state_of(model), team):
        team.share_from_first(state_of(model))


def differing(first: Any, other: Any) -> tuple[str, str]:
    """Both in words; of tables, and of several of them, only what differs."""
    if isinstance(first, dict) and isinstance(other, dict):
        names = [name for name in {**first, **other} if first.get(name) != other.get(name)]
        one, two = (", ".join(f"{name} {side.get(name)}" for name in names) for side in (first, other))
        return one, two
    if isinstance(first, list) and isinstance(other, list) and len(first) == len(other):
        pairs = [differing(*pair) for pair in zip(first, other, strict=True) if pair[0] != pair[1]]
        return "; ".join(one for one, _ in pairs), "; ".join(two for _, two in pairs)
    return str(first), str(other)


def in_json(value: Any) -> Any:
    """In a form that a file gives back as it was."""
    return json.loads(json.dumps(value, default=str))


def refuse_another(saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise if a checkpoint was trained on another data set, batch or order than what is asked for now."""
    for what in now:
        if saved[what] != now[what]:
            before, after = differing(saved[what], now[what])
            raise CheckpointError(
                f"the checkpoint belongs to another {what}: saved {before}, now {after}. Resume with the same job and "
                "data, or start a new run in another folder (start_from= takes only the weights)"
            )
