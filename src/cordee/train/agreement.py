"""That all workers train the same: each says what it was given, and what differs is told before it does harm.

Hosts are started one by one, by hand or by another launcher. Another learning rate on one of them, or data that
were drawn anew there, would train something else without any sign of it.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cordee.core.errors import JobError
from cordee.core.plan import Plan
from cordee.feed.order import Order
from cordee.feed.source import Source, digest_of
from cordee.group.team import Team
from cordee.train.job import Job

MOST_TOLD = 4
_BY_MACHINE = ("params", "fused", "foreach", "capturable", "compile", "graphs")
"""What a plan or an optimizer may have otherwise where the machine is another."""


def agree_on(team: Team, given: Mapping[str, Any]) -> None:
    """Go on if all workers were given the same; every one of them calls this. Else raise `JobError` on all of them."""
    if team.alone:
        return
    words = {name: json.dumps(value, default=str) for name, value in given.items()}
    digest = torch.frombuffer(bytearray(hashlib.sha256(repr(words).encode()).digest()), dtype=torch.uint8).double()
    while True:
        sums = torch.cat([digest, digest**2, torch.ones(1, dtype=torch.float64)])
        if team.agree([sums]):
            break
    of_digest, of_square = sums[:-1].chunk(2)
    if not torch.equal(of_square * sums[-1], of_digest**2):  # equal, and only then, if all numbers are
        raise JobError(_difference(team, words))


def of_job(job: Job, *, resume: bool) -> dict[str, Any]:
    """What a job asks for, as far as it can be told by looking at it."""
    names = ("batch_per", "batch", "scale_lr", "epochs", "seed", "schedule_per", "clip", "eval_batch")
    stop = {name: callable(value) or value for name, value in vars(job.stop).items()}
    own = {name: getattr(job, name) is not None for name in ("objective", "schedule", "weigh", "start_from")}
    data = {
        f"{part} data": of_data(source)
        for part in ("train", "validation", "test")
        if (source := getattr(job.data, part)) is not None
    }
    return {
        "--resume": resume,
        **{name: getattr(job, name) for name in names},
        "keep_best": job.save.keep_best,
        **data,
        **own,
        "metrics": sorted(job.metrics),
        "stop": stop,
        "save": vars(job.save),
    }


def of_data(source: Source) -> str:
    """A data set."""
    return f"{len(source)} samples with fingerprint {source.fingerprint}"


def of_loop(source: Source, order: Order, epochs: int | None, start: tuple[int, int]) -> dict[str, Any]:
    """What `batches` goes through."""
    return {"data": of_data(source), "epochs": epochs, "from (epoch, step)": start, **order.describe()}


def of_model(model: nn.Module, plan: Plan) -> dict[str, Any]:
    """Names, shapes and number formats; and how it is to be trained."""
    state = {**model.state_dict(), **dict(model.named_buffers())}
    shapes = [f"{name} {tuple(one.shape)} {one.dtype}" for name, one in state.items() if isinstance(one, Tensor)]
    count = sum(parameter.numel() for parameter in model.parameters())
    keys = {name: value for name, value in plan.to_dict().items() if name not in _BY_MACHINE}
    return {"plan": keys, "model": f"{count} parameters with fingerprint {digest_of(line.encode() for line in shapes)}"}


def of_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """Its class, and the numbers of each group of parameters."""
    groups = []
    for group in optimizer.param_groups:
        numbers = {name: _plain(value) for name, value in group.items() if name not in _BY_MACHINE}
        groups.append({**numbers, "parameters": len(group["params"])})
    return {"optimizer": type(optimizer).__name__, "optimizer's settings": groups[0] if len(groups) == 1 else groups}


def state_of(model: nn.Module) -> list[Tensor]:
    """All that a model holds: buffers too that it does not save, except for what has no memory of its own (expand)."""
    held = [*model.state_dict(keep_vars=True).values(), *model.buffers()]
    tensors = {id(one): one for one in held if isinstance(one, Tensor)}
    return [one for one in tensors.values() if not any(step == 0 < size - 1 for step, size in _strides(one))]


def share(team: Team, tensors: Sequence[Tensor]) -> bool:
    """Give all workers the first one's tensors; whether some worker had others. Every one of them calls this."""
    if team.alone or not tensors:
        return False
    before = [tensor.detach().clone() for tensor in tensors]
    team.share_from_first(tensors)
    others = float(any(not torch.equal(one, two) for one, two in zip(before, tensors, strict=True)))
    while not team.agree([differing := torch.tensor([others])]):
        pass
    return bool(differing)


def _strides(tensor: Tensor) -> Iterator[tuple[int, int]]:
    return zip(tensor.stride(), tensor.shape, strict=True)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def _difference(team: Team, words: dict[str, str]) -> str:
    """Told with the first worker's side and that of the first who differs from it."""
    advice = (
        "Give the same job, options and data to all of them; data that are drawn at random need a seed, such as "
        "np.random.default_rng(0)"
    )
    table = _gathered(team, {"at": socket.gethostname(), **words})
    if table is None:
        return f"the workers were not given the same. {advice}"
    first = table[0]
    rank, other = next((rank, one) for rank, one in enumerate(table) if {**one, "at": ""} != {**first, "at": ""})
    names = [name for name in {**first, **other} if name != "at" and first.get(name) != other.get(name)]
    told = [_both(name, first.get(name, "nothing"), other.get(name, "nothing")) for name in names[:MOST_TOLD]]
    more = f" and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else ""
    who = (f"worker 0 on {first['at']}", f"worker {rank} on {other['at']}")
    return f"{who[0]} and {who[1]} were not given the same: {'; '.join(told)}{more}. {advice}"


def _both(name: str, first: str, other: str) -> str:
    sides = [side if side == "nothing" else json.loads(side) for side in (first, other)]
    return f"{name}: {' and '.join(differing(*sides))}"


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


def settings_of(optimizer: Optimizer) -> Any:
    """Its numbers, in a form that a file gives back as it was."""
    return json.loads(json.dumps(of_optimizer(optimizer)["optimizer's settings"], default=str))


def _gathered(team: Team, words: dict[str, str]) -> list[dict[str, str]] | None:
    """Those of all workers; None if one was lost."""
    raw = json.dumps(words).encode()
    lengths = team.layers.gather(torch.tensor([len(raw)])).wait()
    if lengths is None:
        return None
    longest = max(int(length) for length in lengths)
    texts = team.layers.gather(torch.frombuffer(bytearray(raw.ljust(longest)), dtype=torch.uint8)).wait()
    return None if texts is None else [json.loads(bytes(text.tolist())) for text in texts]
