"""The plan of a run that continues on fewer workers than it was started with."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cordee.core.plan import Plan

CUT = ("tensor", "sequence", "pipeline", "schedule", "micro_batches", "shard", "shards", "proportions", "share")
"""The keys that say how a replica lies over workers, and which of them computes what."""


def fewer(plan: Plan, workers: int) -> Plan:
    """This plan where it runs on so many workers; else one that runs on any number, state in shares."""
    if not plan.refusals(workers):
        return plan
    defaults: dict[str, Any] = {one.name: one.default for one in fields(plan)}
    whole: dict[str, Any] = {name: defaults[name] for name in CUT}
    found = replace(plan, **whole | {"shard": "params" if workers > 1 else "none"})
    for name in (one for one in defaults if one not in CUT):  # what does not go with shards, such as channels_last
        without = replace(found, **{name: defaults[name]})
        found = min(found, without, key=lambda one: len(one.refusals(workers)))
    return found
