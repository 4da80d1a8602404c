"""Which server holds which parameters, and in which pieces gradients travel: pure functions of sizes."""

from __future__ import annotations

from collections.abc import Sequence

PIECE = 1 << 20
"""Bytes of gradients that travel together, about."""


def spread(sizes: Sequence[int], servers: int) -> list[list[int]]:
    """For each server the numbers of its parameters, in their order, by the bytes of each parameter.

    The largest go first, each to the server that has least so far. A parameter stays whole: some optimizers need it so.
    """
    shards: list[list[int]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for number in sorted(range(len(sizes)), key=lambda one: (-sizes[one], one)):
        least = min(range(servers), key=lambda one: (loads[one], one))
        shards[least].append(number)
        loads[least] += sizes[number]
    return [sorted(shard) for shard in shards]


def pieces(sizes: Sequence[int], kinds: Sequence[object], most: int = PIECE) -> list[list[int]]:
    """Runs of parameters of one kind that travel together, the last ones first, as their gradients come first."""
    found: list[list[int]] = []
    room = 0
    for number in reversed(range(len(sizes))):
        if not found or sizes[number] > room or kinds[number] != kinds[found[-1][-1]]:
            found.append([])
            room = most
        found[-1].append(number)
        room -= sizes[number]
    return found
