"""The plan: how a job is trained here, as one frozen value that is parsed, printed, saved and compared.

The fields of `Plan` are the only place where a key is written down. What parsing accepts, what printing
shows and what help and docs say is read from the fields' metadata.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from cordee.core.damage import DAMAGE
from cordee.core.errors import PlanError
from cordee.core.plan_key import Key, shown, written
from cordee.core.words import did_you_mean

Faithfulness = Literal["exact", "same", "statistical"]


def _key(default: Any, part: str, help: str, **more: Any) -> Any:
    """A field of the plan together with its row of the table of keys."""
    return field(default=default, metadata={"part": part, "help": help, **more})


@dataclass(frozen=True)
class Plan:
    """How to train a job here: Feed × Split × Sync, and what the devices do."""

    share: str = _key(
        "equal",
        "feed",
        "who computes which samples of a global batch",
        choices=("equal", "proportional", "sampled", "balanced"),
        built=("equal", "proportional", "sampled"),
    )
    proportions: tuple[float, ...] = _key((), "feed", "each worker's part of a global batch, one number a worker")

    tensor: int = _key(1, "split", "workers over which the linear layers of a replica are cut", minimum=1)
    pipeline: int = _key(1, "split", "ranks over which the layers are cut", minimum=1, built=(1,))
    shard: str = _key(
        "none",
        "split",
        "what is spread over the replicas instead of copied",
        choices=("none", "optimizer", "gradients", "params"),
        built=("none",),
    )

    sync: str = _key(
        "allreduce",
        "sync",
        "how the replicas agree",
        choices=("allreduce", "server", "local"),
        built=("allreduce", "local"),
    )
    mode: str = _key(
        "sync", "sync", "how far a parameter server waits", choices=("sync", "async", "stale"), built=("sync",)
    )
    staleness: int = _key(0, "sync", "steps that a worker may be ahead under mode=stale", minimum=0, built=(0,))
    servers: int = _key(1, "sync", "parameter servers under sync=server", minimum=1, built=(1,))
    local_steps: int = _key(1, "sync", "steps between two merges under sync=local", minimum=1)
    compress: str = _key(
        "none", "sync", "how gradients are made smaller on the wire", choices=("none", "fp16", "int8"), built=("none",)
    )
    batchnorm: str = _key(
        "exact", "sync", "BatchNorm over the global batch, or over each replica's share", choices=("exact", "replica")
    )
    accumulate: int = _key(1, "sync", "micro-batches that a step is computed in", minimum=1)
    bucket_mb: float = _key(25.0, "sync", "gradients that travel together, in MiB", minimum=0.01)
    overlap: bool = _key(True, "sync", "send gradients while the backward pass goes on")
    backend: str = _key(
        "auto",
        "sync",
        "who carries gradients; auto: shared memory within a host, NCCL between GPUs, else gloo",
        choices=("auto", "gloo", "nccl"),
    )

    replace: bool = _key(False, "sync", "start another worker in the place of one that was lost, on the same host")

    precision: str = _key(
        "fp32", "device", "the number format of the mathematics", choices=("fp32", "tf32", "bf16", "fp16")
    )
    compile: bool = _key(False, "device", "compile model and loss with torch.compile")
    graphs: str = _key(
        "auto",
        "device",
        "with compile=true on a GPU: replay the kernels of a step as CUDA graphs; auto: where a worker is alone",
        choices=("auto", "true", "false"),
    )
    fused: bool = _key(True, "device", "let PyTorch's optimizers update all parameters in one kernel")
    layout: str = _key(
        "auto",
        "device",
        "where the channels of images lie in memory; auto: last on GPUs",
        choices=("auto", "contiguous", "channels_last"),
    )

    def __post_init__(self) -> None:
        """Check every value by its row of the table; what is kept is of the field's own type."""
        for key in plan_keys():
            object.__setattr__(self, key.name, key.read(getattr(self, key.name)))

    @classmethod
    def parse(cls, given: str | os.PathLike[str] | Plan) -> Plan:
        """The plan meant by `auto`, a YAML file's path, or `key=value,...`; a plan is handed through."""
        if isinstance(given, Plan):
            return given
        text = os.fspath(given).strip()
        if text == "auto":
            return cls()
        if text.endswith((".yaml", ".yml")):
            return cls.from_dict(_read_yaml(Path(text)))
        return cls.from_dict(_read_pairs(text))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """The plan with these keys, the others at their defaults; `proportions` alone imply `share=proportional`."""
        known = {key.name: key for key in plan_keys()}
        for name in values:
            if name not in known:
                raise _unknown(name if isinstance(name, str) else shown(name), list(known))
        read = {name: known[name].read(value) for name, value in values.items()}
        if read.get("proportions") and "share" not in read:
            read["share"] = "proportional"
        return cls(**read)

    def to_dict(self) -> dict[str, Any]:
        """Every key with its value, ready for JSON; `from_dict` gives the same plan back."""
        values = {key.name: getattr(self, key.name) for key in plan_keys()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def to_yaml(self) -> str:
        """The text of a YAML file that `parse` reads as this plan."""
        import yaml  # only who reads or writes a plan's file pays for this import

        return yaml.safe_dump(self.to_dict(), sort_keys=False, default_flow_style=None)

    def __str__(self) -> str:
        """`key=value,...` of what differs from the defaults; `sync=allreduce` when nothing does."""
        changed = {key.name: getattr(self, key.name) for key in plan_keys() if getattr(self, key.name) != key.default}
        return ",".join(f"{name}={written(value)}" for name, value in (changed or {"sync": self.sync}).items())

    @property
    def faithfulness(self) -> Faithfulness:
        """How near the result is to that of one process: `exact` (bits), `same` (rounding) or `statistical`."""
        lossy = self.compress != "none" or self.batchnorm == "replica"
        return "statistical" if lossy or self.sync == "local" or self.mode != "sync" else "same"

    @property
    def statistics(self) -> str:
        """Over what BatchNorm normalises: `exact`, the global batch, or `replica`, which local steps imply."""
        return "replica" if self.sync == "local" else self.batchnorm

    def refusals(self, world_size: int) -> list[str]:
        """Why this plan cannot run on `world_size` workers; empty when it can."""
        reasons = (rule(self, world_size) for rule in REFUSALS)
        return [reason for reason in reasons if reason is not None]

    def check(self, world_size: int) -> None:
        """Raise `PlanError` with every reason why this plan cannot run on `world_size` workers."""
        reasons = self.refusals(world_size)
        if reasons:
            raise PlanError(f"plan {self} cannot run on {world_size} worker(s): " + " ".join(reasons))


def _refuse_idle_proportions(plan: Plan, world_size: int) -> str | None:
    """Proportions that the share does not look at."""
    if not plan.proportions or plan.share != "equal":
        return None
    return f"proportions={written(plan.proportions)} mean nothing under share=equal; set share=proportional."


def _refuse_missing_proportions(plan: Plan, world_size: int) -> str | None:
    """A proportional share of unknown proportions."""
    if plan.share != "proportional" or plan.proportions:
        return None
    return "share=proportional needs proportions, one number a worker, such as proportions=5:3:2."


def _refuse_miscounted_proportions(plan: Plan, world_size: int) -> str | None:
    """Proportions for more or fewer workers than there are."""
    if not plan.proportions or len(plan.proportions) == world_size:
        return None
    return f"proportions={written(plan.proportions)} name {len(plan.proportions)} worker(s), but {world_size} start."


def _refuse_graphs_of_nothing(plan: Plan, world_size: int) -> str | None:
    """Graphs are made of compiled kernels."""
    if plan.graphs != "true" or plan.compile:
        return None
    return "graphs=true needs compile=true: graphs are made of what it compiles."


def _refuse_steps_without_merges(plan: Plan, world_size: int) -> str | None:
    """Local steps where replicas agree on every step."""
    if plan.local_steps == 1 or plan.sync == "local":
        return None
    return f"local_steps={plan.local_steps} means nothing under sync={plan.sync}; set sync=local."


def _refuse_local_fp16(plan: Plan, world_size: int) -> str | None:
    """A scale of the loss that each replica would choose for itself."""
    if plan.sync != "local" or plan.precision != "fp16":
        return None
    return "sync=local does not work with precision=fp16, whose scale all replicas share; use precision=bf16 or fp32."


def _refuse_replaced_slices(plan: Plan, world_size: int) -> str | None:
    """A replica over several workers does not continue without one of them."""
    if not plan.replace or plan.tensor * plan.pipeline == 1:
        return None
    return "replace=true works where every worker holds the whole model: not with tensor or pipeline above 1."


def _refuse_incomplete_replicas(plan: Plan, world_size: int) -> str | None:
    """Workers that are not enough for one more replica."""
    if world_size % plan.tensor == 0:
        return None
    return (
        f"tensor={plan.tensor} puts each replica on {plan.tensor} workers; start a multiple of {plan.tensor} workers."
    )


def _refuse_sliced(plan: Plan, world_size: int) -> str | None:
    """What does not work yet where a replica is cut into slices."""
    refused = {
        f"sync={plan.sync}": plan.sync != "allreduce",
        "compile=true": plan.compile,
        "precision=fp16": plan.precision == "fp16",
        f"share={plan.share}": plan.share == "proportional",
    }
    names = [name for name, given in refused.items() if given and plan.tensor > 1]
    return (
        f"tensor={plan.tensor} does not work with {' or '.join(names)} yet; leave one of them out." if names else None
    )


REFUSALS: tuple[Callable[[Plan, int], str | None], ...] = (
    _refuse_idle_proportions,
    _refuse_missing_proportions,
    _refuse_miscounted_proportions,
    _refuse_graphs_of_nothing,
    _refuse_steps_without_merges,
    _refuse_local_fp16,
    _refuse_replaced_slices,
    _refuse_incomplete_replicas,
    _refuse_sliced,
)
"""The rules of `Plan.check`: each gives the reason why a plan cannot run on a number of workers, or None."""


def plan_keys() -> tuple[Key, ...]:
    """The table of keys, in the order in which a plan prints them."""
    return tuple(Key(name=one.name, default=one.default, **one.metadata) for one in fields(Plan))


def _unknown(name: str, known: list[str]) -> PlanError:
    """The error for a key that no plan has."""
    hint = did_you_mean(name, known, "{!r}")
    return PlanError(f"plan key {shown(name)} is not known.{hint} Allowed keys: {', '.join(known)}.")


def _read_pairs(text: str) -> dict[str, str]:
    """The pairs of `key=value,...`."""
    values: dict[str, str] = {}
    for item in text.split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not name or not equals or not value:
            raise PlanError(f"plan {text!r}: {item!r} is not key=value. Expected auto, a .yaml file, or key=value,...")
        if name in values:
            raise PlanError(f"plan {text!r} gives {name!r} twice: {values[name]!r} and {value!r}. Keep one of them.")
        values[name] = value
    return values


def _read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a plan's file."""
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"plan file {path.absolute()} could not be read: {error.strerror}.") from None
    except (yaml.YAMLError, *DAMAGE) as error:
        raise PlanError(f"plan file {path.absolute()} is not YAML: {str(error)[:500]}") from None
    if not isinstance(values, dict):
        raise PlanError(
            f"plan file {path.absolute()} holds {shown(values)}; expected a mapping of keys, such as share: equal."
        )
    return values
