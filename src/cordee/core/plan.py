"""The plan: how a job is trained here, as one frozen value that is parsed, printed, saved and compared.

The fields of `Plan` are the only place where a key is written down. What parsing accepts, what printing
shows and what help and docs say is read from the fields' metadata.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import msgspec

from cordee.core.errors import PlanError
from cordee.core.fewer import fewer
from cordee.core.mesh import Shape
from cordee.core.plantext import read_pairs, read_yaml, shown, written
from cordee.core.refusals import REFUSALS
from cordee.core.window import Rule
from cordee.core.words import did_you_mean, plural

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
ASYNC_STEPS = 20
"""After so many steps all workers come together, where each push is applied at once; at the end of an epoch too."""


@dataclass(frozen=True)
class Key:
    """What is known of one key of a plan."""

    name: str
    part: str
    """The part of the plan it belongs to: feed, split, sync or device."""
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    """The allowed words; empty for numbers and switches."""
    minimum: float = -math.inf

    @property
    def allowed(self) -> str:
        """What may be written after `name=`, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.default, tuple):
            return "numbers of at least 0, not all 0, separated by colons, such as 5:3:2"
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        return f"{kind} of at least {self.minimum:g}"

    def read(self, given: Any) -> Any:
        """The value meant by `given` (text from a command line, or a value from YAML or Python)."""
        try:
            value = _converted(given, type(self.default))
            fits = value in self.choices if self.choices else isinstance(value, tuple) or value >= self.minimum
        except (TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            hint = did_you_mean(given, self.choices, f"{self.name}={{}}") if isinstance(given, str) else ""
            raise PlanError(f"plan key {self.name} was given {shown(given)}; expected {self.allowed}.{hint}")
        return value


def _converted(given: Any, kind: type) -> Any:
    """`given`, which may be text, as a value of the type of a key's default; `ValueError` if it is none."""
    if kind is tuple:
        values = tuple(_converted(one, float) for one in (given.split(":") if isinstance(given, str) else given))
        if values and (min(values) < 0 or sum(values) == 0):
            raise ValueError
        return values
    if kind is str and isinstance(given, bool):  # YAML reads true and false so, where words are meant
        return written(given)
    if kind in (int, float) and isinstance(given, str):
        given = kind(given)
    value: Any = msgspec.convert(given, kind, strict=not isinstance(given, str))
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError
    return value


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
        choices=("equal", "proportional", "sampled", "local", "balanced"),
    )
    proportions: tuple[float, ...] = _key(
        (), "feed", "parts of a global batch: one number per worker; per replica with tensor or pipeline above 1"
    )

    tensor: int = _key(1, "split", "workers over which the linear layers of a replica are cut", minimum=1)
    sequence: bool = _key(
        False, "split", "with tensor above 1: each worker holds some of the tokens where layers are not cut"
    )
    pipeline: int = _key(1, "split", "stages of layers that a replica lies over, each on workers of its own", minimum=1)
    schedule: str = _key("1f1b", "split", "in which order the stages compute micro-batches", choices=SCHEDULES)
    micro_batches: int = _key(0, "split", "so many walk through a pipeline in a step; 0: two per stage", minimum=0)
    shard: str = _key(
        "none",
        "split",
        "what is spread over workers instead of copied, each of which computes its own share of the batch",
        choices=("none", "optimizer", "gradients", "params"),
    )
    shards: int = _key(
        0, "split", "workers over which shard= spreads one replica; 0: all that tensor= and pipeline= leave", minimum=0
    )

    sync: str = _key(
        "allreduce",
        "sync",
        "how the replicas agree",
        choices=("allreduce", "server", "local", "auto"),
    )
    faithful: str = _key(
        "any", "sync", "what sync=auto may choose: exact sums alone, or also lossy ones", choices=("any", "same")
    )
    mode: str = _key(
        "sync",
        "sync",
        "under sync=server: add up a step's gradients, apply each at once, or at once with a bound on how far apart",
        choices=("sync", "async", "stale"),
    )
    staleness: int = _key(0, "sync", "steps that a worker may be ahead of the slowest under mode=stale", minimum=0)
    push: str = _key(
        "gradients",
        "sync",
        "what workers push under sync=server: gradients, or how far their parameters have gone in a window",
        choices=("gradients", "parameters"),
    )
    servers: int = _key(1, "sync", "over how many parameter servers the parameters are spread", minimum=1)
    persist: bool = _key(True, "sync", "each parameter server writes what it acknowledges into the run's folder")
    backups: bool = _key(True, "sync", "each parameter server has a backup, on another host if there is one")
    local_steps: int = _key(1, "sync", "steps between two merges under sync=local or push=parameters", minimum=1)
    local_lr: str = _key(
        "root",
        "sync",
        "learning rate in local steps: of Adam and its kin times the root of the number of parts, or the same",
        choices=("root", "same"),
    )
    merge: str = _key(
        "wait",
        "sync",
        "whether workers wait for a merge under sync=local, or compute the next window while it travels behind",
        choices=("wait", "behind"),
    )
    outer: str = _key(
        "average",
        "sync",
        "what a merge makes of the replicas' mean: takes it, or goes towards it with momentum",
        choices=("average", "nesterov"),
    )
    outer_lr: float = _key(0.7, "sync", "learning rate of outer=nesterov", minimum=0.0)
    outer_momentum: float = _key(0.9, "sync", "momentum of outer=nesterov", minimum=0.0)
    compress: str = _key(
        "none",
        "sync",
        "how gradients are made smaller on the wire, or what is merged",
        choices=("none", "bf16", "fp16", "int8", "onebit", "topk", "powersgd"),
    )
    batchnorm: str = _key(
        "exact", "sync", "BatchNorm over the global batch, or over each replica's share", choices=("exact", "replica")
    )
    accumulate: int = _key(1, "sync", "micro-batches that a step is computed in", minimum=1)
    exact: bool = _key(
        False, "sync", "the same bits on any number of workers: fixed pieces of a batch, added up in a fixed tree"
    )
    pieces: int = _key(
        8, "sync", "under exact=true: into so many a batch is cut; each is computed by one worker, at once", minimum=1
    )
    bucket_mb: float = _key(
        0.0,
        "sync",
        "gradients that travel together, in MiB; 0: 4 on CPUs (compressed: 2), 25 on GPUs, but between hosts what the "
        "slowest link carries in 35 ms (not below 0.5), if that is less",
        minimum=0.0,
    )
    overlap: bool = _key(True, "sync", "send gradients while the backward pass goes on")
    backend: str = _key(
        "auto",
        "sync",
        "who carries gradients; auto: shared memory within a host, NCCL between GPUs, else gloo",
        choices=("auto", "gloo", "nccl"),
    )

    replace: bool = _key(False, "sync", "start another worker in the place of one that was lost, on the same host")
    recover: str = _key(
        "ask",
        "sync",
        "where no whole replica is left: end, or continue by itself, on fewer workers or on the full number",
        choices=("ask", "fewer", "full"),
    )
    copy_every: int = _key(
        0,
        "sync",
        "steps between two copies of the state in memory, here and on the next host, for recover=; 0: none",
        minimum=0,
    )

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
    recompute: str = _key(
        "none", "device", "which activations are computed again, not kept", choices=("none", "block", "selective")
    )
    offload: str = _key(
        "none", "device", "what a GPU keeps in host memory", choices=("none", "optimizer", "activations", "all")
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
            return cls.from_dict(read_yaml(Path(text)))
        return cls.from_dict(read_pairs(text))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """The plan with these keys, the others at their defaults; `proportions` alone imply `share=proportional`."""
        known = [key.name for key in plan_keys()]
        for name in values:
            if name not in known:
                hint = did_you_mean(name, known, "{!r}") if isinstance(name, str) else ""
                raise PlanError(f"plan key {shown(name)} is not known.{hint} Allowed keys: {', '.join(known)}.")
        implied = {"share": "proportional"} if values.get("proportions") else {}
        return cls(**{**implied, **values})

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
    def faithfulness(self) -> Literal["exact", "same", "statistical"]:
        """How near the result is to that of one process: `exact` (bits), `same` (rounding) or `statistical`."""
        if self.exact:
            return "exact"
        lossy = self.compress != "none" or self.batchnorm == "replica" or (self.sync, self.faithful) == ("auto", "any")
        return "statistical" if lossy or self.window is not None else "same"

    def shape(self, workers: int) -> Shape:
        """What a replica lies over, of so many workers."""
        left = max(1, workers // (self.pipeline * self.tensor))
        return Shape(self.pipeline, 1 if self.shard == "none" else self.shards or left, self.tensor)

    @property
    def micros(self) -> int:
        """Micro-batches that a share is cut into, if it has so many samples; see `parts` for the exact mode."""
        return (self.micro_batches or 2 * self.pipeline) if self.pipeline > 1 else self.parts

    @property
    def parts(self) -> int:
        """In so many parts samples are read and computed one after the other: in exact mode those of a whole step."""
        return self.pieces if self.exact else self.accumulate

    @property
    def merges(self) -> bool:
        """Whether replicas update by themselves, and merge their parameters at the end of each window."""
        return self.sync == "local" or (self.sync == "server" and self.push == "parameters")

    @property
    def window(self) -> Rule | None:
        """How replicas share steps out in windows; None: in every step each computes its share, and all agree."""
        if self.merges:
            return Rule(self.local_steps, behind=self.merge == "behind")
        if self.sync == "server" and (self.mode == "async" or (self.mode == "stale" and self.staleness)):
            bound = self.staleness if self.mode == "stale" else None
            return Rule(ASYNC_STEPS, bound, redo=False)
        return None

    @property
    def statistics(self) -> str:
        """Over what BatchNorm normalises: `exact`, the global batch, or `replica`, which windows imply."""
        return "replica" if self.window is not None else self.batchnorm

    def on_fewer(self, workers: int) -> Plan:
        """This plan where it runs on so many workers; else one that runs on any number, state in shares."""
        return fewer(self, workers)

    def refusals(self, workers: int) -> list[str]:
        """Why this plan cannot run on so many workers; empty when it can."""
        words = {name: written(value) for name, value in self.to_dict().items()}
        cut = {"tensor": "1", "pipeline": "1", "shard": "none"}
        words["cut"] = ",".join(f"{name}={words[name]}" for name, whole in cut.items() if words[name] != whole)
        each = self.tensor * self.pipeline
        shares = plural(workers // each, "replica" if self.shard == "none" else "shard")
        more = {"workers": workers, "named": len(self.proportions), "each": each, "shares": shares}
        return [rule.reason.format(**more, **words) for rule in REFUSALS if rule.applies(self, workers)]

    def check(self, workers: int) -> None:
        """Raise `PlanError` with every reason why this plan cannot run on so many workers."""
        if reasons := self.refusals(workers):
            raise PlanError(f"plan {self} cannot run on {workers} worker(s): " + " ".join(reasons))


def plan_keys() -> tuple[Key, ...]:
    """The table of keys, in the order in which a plan prints them."""
    return tuple(Key(name=one.name, default=one.default, **one.metadata) for one in fields(Plan))
