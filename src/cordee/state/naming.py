"""The state of a training by logical name: parameters are called by what they are, not by the rank that holds them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_map_only

from cordee.core.damage import named
from cordee.core.errors import CheckpointError
from cordee.group.sliced import Place, axes_of, cut_as, is_sliced, like, local_of, places_of
from cordee.state.files import pieces
from cordee.state.plain import Take, as_it_is, decode, encode, to_cpu

MODEL = "model."
"""What the name of a model's tensor begins with; the rest is its name in the `state_dict`."""

OPTIM = "optim."
"""What the name of an optimizer's tensor begins with: `optim.<optimizer>.<parameter>.<state>`."""

_SHOWN = 5  # names listed in an error before it says "and N more"


@dataclass(frozen=True)
class Slice:
    """Which part of a whole tensor a worker holds."""

    places: list[Place]
    whole: list[int]
    """The shape of all parts together."""
    axes: frozenset[str] = frozenset()
    """The axes of the mesh along which it is cut; along others, all workers hold the same."""


@dataclass(frozen=True)
class Snapshot:
    """One moment of a training: its tensors and the rest as JSON."""

    tensors: dict[str, torch.Tensor]
    meta: dict[str, Any] = field(default_factory=dict)
    slices: dict[str, Slice] = field(default_factory=dict)
    """Of which tensors this is only a part, and which."""

    @property
    def extra(self) -> dict[str, Any]:
        """What `with_extra` added: position in the data, random state, whatever the caller needs to go on."""
        return dict(decode(self.meta.get("extra", {}), self.tensors))

    def with_extra(self, **values: Any) -> Snapshot:
        """The same snapshot with more values for the caller: numbers, strings, tensors, lists and dicts of them."""
        tensors = dict(self.tensors)
        added = {name: encode(value, f"extra.{name}", tensors) for name, value in values.items()}
        return replace(self, tensors=tensors, meta={**self.meta, "extra": {**self.meta.get("extra", {}), **added}})

    def only(self, writes: Callable[[str], bool], copied: AbstractSet[str] = frozenset()) -> Snapshot:
        """The tensors that one of several owners writes: those of `writes` that it alone has, or a slice of them.

        `copied`: axes along which another owner comes first, so that it writes what is not cut along them.
        """
        axes = {name: one.axes for name, one in self.slices.items()}
        names = [name for name in self.tensors if copied <= axes.get(name, frozenset()) and writes(name)]
        return replace(self, tensors={name: self.tensors[name] for name in names})

    def copied(self) -> Snapshot:
        """The same with copies of all tensors in main memory."""
        return replace(self, tensors={name: to_cpu(tensor, name) for name, tensor in self.tensors.items()})

    def weights(self) -> dict[str, torch.Tensor]:
        """The model's tensors by their `state_dict` names, each once (tied ones under their first name)."""
        return {name[len(MODEL) :]: tensor for name, tensor in self.tensors.items() if name.startswith(MODEL)}

    @property
    def aliases(self) -> dict[str, str]:
        """For every tied name of the model, without prefix, the name under which its tensor is kept."""
        return dict(self.meta.get("aliases", {}))


def capture(
    model: nn.Module,
    optimizers: Mapping[str, Optimizer] | None = None,
    schedules: Mapping[str, LRScheduler] | None = None,
    *,
    live: bool = False,
    called: Mapping[str, str] | None = None,
) -> Snapshot:
    """The state of model, optimizers and schedules; costs one copy of every tensor to main memory.

    With `live` the snapshot holds large parameters and optimizer states themselves, at no cost: the caller keeps them
    from changing until it was written. Buffers, which a forward pass may change, are copied all the same. `called` has
    names of parameters here that a checkpoint knows by others: of what several stages of a pipeline use.
    """
    slices: dict[str, Slice] = {}

    def take(tensor: torch.Tensor, name: str) -> torch.Tensor:
        if is_sliced(tensor):
            slices[name] = Slice(places_of(tensor), list(tensor.shape), axes_of(tensor))
        return (as_it_is if live else to_cpu)(local_of(tensor), name)

    optimizers, schedules, called = optimizers or {}, schedules or {}, called or {}
    tensors: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    values: dict[str, Any] = {}
    owners: dict[int, str] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            values[name] = encode(value, MODEL + name, tensors)
            continue
        first = owners.setdefault(id(value), called.get(name, name))
        if first != name:
            aliases[name] = first
        if MODEL + first not in tensors:
            tensors[MODEL + first] = (take if isinstance(value, nn.Parameter) else to_cpu)(value, MODEL + first)
    names = {id(one): called.get(name, name) for name, one in model.named_parameters()}
    meta = {
        "aliases": aliases,
        "model": values,
        "optimizers": {key: _capture_optimizer(key, one, names, tensors, take) for key, one in optimizers.items()},
        "schedules": {key: encode(one.state_dict(), f"schedule.{key}", tensors) for key, one in schedules.items()},
    }
    return Snapshot(tensors, meta, slices)


def restore(
    snapshot: Snapshot,
    model: nn.Module,
    optimizers: Mapping[str, Optimizer] | None = None,
    schedules: Mapping[str, LRScheduler] | None = None,
    *,
    partly: bool = False,
    called: Mapping[str, str] | None = None,
    on_host: bool = False,
) -> None:
    """Put a snapshot back; what does not fit is named by a `CheckpointError`, raised before anything is changed.

    `partly`: the model here is a part of the one that was saved, and takes what is its own; `called` as in `capture`.
    `on_host`: the state of optimizers stays in host memory.
    """
    parameters = {(called or {}).get(name, name): one for name, one in model.named_parameters()}
    kept, tensors = snapshot.meta, snapshot.tensors
    optimizers, schedules = optimizers or {}, schedules or {}
    with named(lambda reason: CheckpointError(f"the checkpoint does not fit the job, or is damaged ({reason})")):
        _same_names("optimizers", kept.get("optimizers", {}), optimizers)
        _same_names("schedules", kept.get("schedules", {}), schedules)
        for key, optimizer in optimizers.items():
            _check_groups(key, kept["optimizers"][key], optimizer, parameters, partly=partly)
        values = decode(kept.get("model", {}), tensors)
        load_weights(model, {**under_all_names(snapshot.weights(), snapshot.aliases), **values}, partly=partly)
        for key, optimizer in optimizers.items():
            _restore_optimizer(kept["optimizers"][key], optimizer, parameters, tensors, on_host=on_host)
        for key, schedule in schedules.items():
            schedule.load_state_dict(decode(kept["schedules"][key], tensors))


def under_all_names(weights: Mapping[str, torch.Tensor], aliases: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """`weights` with tied ones under each of their names."""
    return {**weights, **{name: weights[kept] for name, kept in aliases.items()}}


def load_weights(model: nn.Module, weights: Mapping[str, Any], *, partly: bool = False) -> None:
    """Copy `weights` into `model` strictly by name, shape and dtype; some may be values that are not tensors.

    `partly`: of the weights, the model takes those that it has.
    """
    own = model.state_dict(keep_vars=True)
    given = with_tied(own, {name: one for name, one in weights.items() if not partly or name in own})
    _same_names("tensors of the model", given, own)
    for name, value in own.items():
        stored = given[name]
        if not isinstance(value, torch.Tensor) or not isinstance(stored, torch.Tensor):
            continue
        if (stored.shape, stored.dtype) != (value.shape, value.dtype):
            raise CheckpointError(
                f"{name} is {tuple(stored.shape)} of {stored.dtype} in the file, but {tuple(value.shape)} of "
                f"{value.dtype} in the model. Build the model with the sizes and precision that it was saved with."
            )
        given[name] = like(value, cut_as(value, stored))
    model.load_state_dict(given, strict=True)


def with_tied(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` with all names of each tied tensor of `own`; files such as Hugging Face's hold it under one of them."""
    names: dict[int, list[str]] = {}
    for name, one in own.items():
        if isinstance(one, torch.Tensor):
            names.setdefault(id(one), []).append(name)
    full = dict(given)
    for group in names.values():
        held = [name for name in group if name in given]
        for name in held[1:]:
            if given[held[0]] is not given[name] and not torch.equal(given[held[0]], given[name]):
                raise CheckpointError(
                    f"{held[0]} and {name} are one tensor in the model, but two different ones in the file. "
                    "Build the model with the same tied weights as when it was saved."
                )
        full.update({name: given[held[0]] for name in group if held and name not in given})
    return full


def fingerprint(weights: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in the order of the names: equal when all bits are equal."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name]
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        for piece in pieces(tensor):
            digest.update(piece)
    return digest.hexdigest()


def _capture_optimizer(
    key: str, optimizer: Optimizer, known: Mapping[int, str], tensors: dict[str, torch.Tensor], take: Take
) -> dict[str, Any]:
    groups, state = [], {}
    for index, (group, names) in enumerate(zip(optimizer.param_groups, _names(key, optimizer, known), strict=True)):
        rest = {name: value for name, value in group.items() if name != "params"}
        groups.append({"params": names, "values": encode(rest, f"{OPTIM}{key}.group-{index}", tensors)})
        for name, parameter in zip(names, group["params"], strict=True):
            if parameter in optimizer.state:
                state[name] = encode(dict(optimizer.state[parameter]), f"{OPTIM}{key}.{name}", tensors, take)
    return {"kind": type(optimizer).__name__, "groups": groups, "state": state}


def _names(key: str, optimizer: Optimizer, names: Mapping[int, str]) -> list[list[str]]:
    """The names of the parameters in each group of the optimizer; `names` by the `id` of a parameter."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise CheckpointError(
                    f"the optimizer {key!r} holds a parameter of shape {tuple(parameter.shape)} that is not part of "
                    "the model, so it has no name in a checkpoint. Make it, or the loss that owns it, a part of it."
                )
    return [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


def _check_groups(
    key: str, kept: Mapping[str, Any], optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], *, partly: bool
) -> None:
    """Refuse another kind of optimizer, or the same one over other parameters, before anything is changed."""
    if kept["kind"] != type(optimizer).__name__:
        raise CheckpointError(
            f"the optimizer {key!r} was a {kept['kind']} in the checkpoint and is a {type(optimizer).__name__} now. "
            "Resume with the same optimizer, or start a new run from the checkpoint's weights alone."
        )
    now = _names(key, optimizer, {id(one): name for name, one in parameters.items()})
    here = {name for group in now for name in group}
    stored = [[name for name in group["params"] if not partly or name in here] for group in kept["groups"]]
    if list(map(sorted, stored)) != list(map(sorted, now)):
        raise CheckpointError(
            f"the optimizer {key!r} had parameters in groups of {[len(group) for group in stored]} in the checkpoint "
            f"and has them in groups of {[len(group) for group in now]} now, or others. "
            "Build model and optimizer as when the checkpoint was written, or start a new run from its weights alone."
        )


def _restore_optimizer(
    kept: Mapping[str, Any],
    optimizer: Optimizer,
    parameters: Mapping[str, nn.Parameter],
    tensors: Mapping[str, torch.Tensor],
    *,
    on_host: bool,
) -> None:
    numbers = count()
    groups = []
    for stored, group in zip(kept["groups"], optimizer.param_groups, strict=True):
        values = _on_device(decode(stored["values"], tensors), _scalar_device(group))
        # How the update is computed belongs to this start, not to the state.
        values.update({name: group[name] for name in ("fused", "foreach") if name in group})
        groups.append({**values, "params": list(islice(numbers, len(group["params"])))})
    # Groups go through the optimizer's own door (it fills in defaults and calls hooks); the state does not, because
    # that door casts every state to the parameter's dtype and so would round an fp32 moment of a bf16 parameter.
    optimizer.load_state_dict({"state": {}, "param_groups": groups})
    for stored, group in zip(kept["groups"], optimizer.param_groups, strict=True):
        scalar = _scalar_device(group)
        for name in stored["params"]:
            if name in kept["state"] and name in parameters:
                optimizer.state[parameters[name]] = {
                    entry: _on_device(value, scalar) if entry == "step" else _beside(parameters[name], value, on_host)
                    for entry, value in decode(kept["state"][name], tensors).items()
                }


def _scalar_device(group: Mapping[str, Any]) -> torch.device:
    """Where an optimizer keeps step counts and tensor rates: beside the parameters only if a kernel reads them."""
    on_device = bool(group.get("capturable") or group.get("fused"))
    return group["params"][0].device if on_device and group["params"] else torch.device("cpu")


def _beside(parameter: torch.Tensor, value: Any, on_host: bool) -> Any:
    """A copy of a parameter's state on its device or `on_host`, and of its strides where it has its shape.

    Fused kernels walk through the memory of both side by side: in another layout (channels-last, transposed) they would
    update one number with the state of another.
    """
    if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
        local = torch.empty_like(local_of(parameter), dtype=value.dtype, device="cpu" if on_host else None)
        return like(parameter, local.copy_(cut_as(parameter, value)))
    return _on_device(value, parameter.device)


def _on_device(value: Any, device: torch.device) -> Any:
    """A copy of `value` with its tensors on `device`: the snapshot must not change when the training goes on."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device, copy=True), value)


def _same_names(what: str, given: Iterable[str], expected: Iterable[str]) -> None:
    missing = sorted(set(expected) - set(given))
    unexpected = sorted(set(given) - set(expected))
    if missing or unexpected:
        raise CheckpointError(
            f"the {what} do not fit: missing in the file {few(missing)}; in the file but unknown here "
            f"{few(unexpected)}. Load it into a model and optimizers built by the same job."
        )


def few(names: Sequence[str]) -> str:
    """The first of many names, for an error."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more if names else "nothing"
