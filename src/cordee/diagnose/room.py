"""How much memory a worker needs for a plan, beside what there is: values in, values out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cordee.core.plan import Plan

GIB = 2**30


@dataclass(frozen=True)
class Kept:
    """Bytes that a forward pass keeps for its backward pass: so many per sample, and some whatever their number."""

    per_sample: float = 0.0
    fixed: float = 0.0

    def at(self, samples: int) -> int:
        """Of a batch."""
        return round(self.fixed + self.per_sample * samples)


@dataclass(frozen=True)
class Sizes:
    """What is known of a model and its optimizer, in bytes."""

    parameters: int
    """Of the model as this worker holds it, buffers included."""
    gradients: int
    """Of the parameters that are trained."""
    state: int | None
    """Of the optimizer; None: not known before its first step."""
    kept: Kept | None = None
    """If all activations are kept; None: not measured."""
    planned: Kept | None = None
    """Under the plan's `recompute`."""
    blocks: int = 1
    """Whose activations are computed again one after the other."""
    gathered: int = 0
    """Parameters and gradients that are whole for a moment, under `shard=`."""


@dataclass(frozen=True)
class Needs:
    """What one worker needs, in bytes: on its device, and `host` beside that in the memory of its host."""

    parameters: int
    gradients: int
    state: int | None
    buckets: int
    """Copies of gradients that are being sent."""
    activations: int | None
    """At the most, between the forward pass and the backward pass; None: not measured."""
    host: int = 0
    """What a GPU keeps there."""
    samples: int = 0
    """That a worker computes at once."""
    gathered: int = 0
    """At the most, of parameters and gradients that lie over workers: what is whole here for a moment."""

    @property
    def certain(self) -> int:
        """The least: parameters, gradients and the state of the optimizer, as far as it is known."""
        return self.parameters + self.gradients + (self.state or 0)

    @property
    def total(self) -> int:
        """All of it, as far as it is known."""
        return self.certain + self.gathered + self.buckets + (self.activations or 0)

    def __str__(self) -> str:
        """Each part in GiB or MiB."""
        parts = {"parameters": self.parameters, "gradients": self.gradients, "optimizer state": self.state}
        parts |= {
            "gathered at a time": self.gathered,
            "communication": self.buckets,
            f"activations of {self.samples} samples": self.activations,
        }
        words = [
            f"{name} {'not known' if size is None else in_words(size)}" for name, size in parts.items() if size != 0
        ]
        host = f"; in host memory {in_words(self.host)}" if self.host else ""
        return f"{', '.join(words)}; together {in_words(self.total)}{host}"


@dataclass(frozen=True)
class Room:
    """What a worker may take, in bytes, the parameters that it holds already included."""

    device: int
    host: int
    on_gpu: bool = False


@dataclass(frozen=True)
class Verdict:
    """What follows from needs and room; both empty: it fits."""

    refusal: str = ""
    """What cannot fit, with numbers, and what to change."""
    warning: str = ""
    """What may not fit."""


def share_of(batch: int, plan: Plan, replicas: int) -> int:
    """The most samples that a worker computes at once."""
    largest = max(plan.proportions) / sum(plan.proportions) if plan.proportions else 1 / max(1, replicas)
    return max(1, math.ceil(math.ceil(batch * largest) / plan.micros))


def estimate(sizes: Sizes, plan: Plan, *, batch: int, replicas: int) -> Needs:
    """What a worker needs under a plan, for global batches of so many samples."""
    samples = share_of(batch, plan, replicas)
    activations = peak_of(sizes, samples)
    buckets = bucket_bytes(plan, sizes.gradients) if replicas > 1 else 0
    state = 0 if plan.sync == "server" and not plan.merges else sizes.state  # then servers have it
    needs = Needs(
        sizes.parameters, sizes.gradients, state, buckets, activations, samples=samples, gathered=sizes.gathered
    )
    host = 0
    if plan.offload in ("optimizer", "all") and needs.state is not None:
        host, needs = needs.state, replace(needs, state=min(needs.state, UNDER_WAY))
    if plan.offload in ("activations", "all") and sizes.planned is not None and activations is not None:
        moved = sizes.planned.at(samples)
        host, needs = host + moved, replace(needs, activations=activations - moved + min(moved, UNDER_WAY))
    return replace(needs, host=host)


UNDER_WAY = 2 * GIB
"""What is on the GPU at once of what it keeps in host memory, about."""


def peak_of(sizes: Sizes, samples: int) -> int | None:
    """Activations at the most: what is kept, and those of one block while they are computed again."""
    if sizes.kept is None or sizes.planned is None:
        return None
    kept, planned = sizes.kept.at(samples), sizes.planned.at(samples)
    return planned + max(0, kept - planned) // max(1, sizes.blocks)


def bucket_bytes(plan: Plan, gradients: int) -> int:
    """Of the buckets that gradients travel in, beyond the gradients, which lie in them while they are added up."""
    small = 4 * 2**20
    return gradients if gradients <= small else min(gradients, round((plan.bucket_mb or 25.0) * 2**20))


def judge(needs: Needs, room: Room, plan: Plan) -> Verdict:
    """Whether it fits. Refused is what certainly does not; what depends on an estimate of activations is a warning."""
    where = "GPU" if room.on_gpu else "host"
    what = f"a worker needs {{}} of {where} memory, where {in_words(room.device)} are free for it: {needs}"
    if needs.certain > room.device:
        least = what.format(f"at least {in_words(needs.certain)}")
        return Verdict(refusal=f"plan {plan} does not fit: {least}. {_remedies(needs, room, plan, certain=True)}")
    if room.on_gpu and needs.host > room.host:
        return Verdict(
            refusal=f"plan {plan} does not fit: offload={plan.offload} keeps {in_words(needs.host)} in host memory for "
            f"each worker, where {in_words(room.host)} are free for it. Start fewer workers per host, or use tensor=N"
        )
    if needs.total > room.device:
        about = what.format(f"about {in_words(needs.total)}")
        return Verdict(warning=f"this may not fit: {about}. {_remedies(needs, room, plan, certain=False)}")
    return Verdict()


def _remedies(needs: Needs, room: Room, plan: Plan, *, certain: bool) -> str:
    """What to change, what helps most first."""
    found = []
    one_worker = (plan.tensor, plan.pipeline, plan.shard) == (1, 1, "none")
    if room.on_gpu and plan.offload in ("none", "activations") and needs.state and one_worker:
        moved = "optimizer" if plan.offload == "none" else "all"
        found.append(f"offload={moved} (moves {in_words(needs.state)} of optimizer state to host memory)")
    if not certain and plan.recompute == "none" and plan.schedule != "zero-bubble":
        found.append("recompute=block (computes activations again instead of keeping them)")
    if not certain and room.on_gpu and plan.offload in ("none", "optimizer") and one_worker and not plan.compile:
        found.append(f"offload={'activations' if plan.offload == 'none' else 'all'}")
    if not certain and needs.samples > 1 and plan.pipeline == 1:
        found.append(f"accumulate={2 * plan.accumulate} (half as many samples at once), or a smaller batch")
    if one_worker and plan.sync == "allreduce":
        found.append("shard=params (spreads parameters, gradients and optimizer state over the workers)")
    found.append(f"tensor={2 * plan.tensor} (cuts the linear layers over {2 * plan.tensor} workers)")
    if not room.on_gpu:
        found.append("fewer workers per host")
    return f"What needs less: {'; '.join(found)}"


def in_words(size: float) -> str:
    """A number of bytes."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.1f} MiB"
