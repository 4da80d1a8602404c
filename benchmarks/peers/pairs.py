"""Two systems that take turns, one after the other and then the other way round."""

from __future__ import annotations

from peers.figures import SIDES, Turns
from peers.pace import Conductor, processor_s, spent_s


def take_pairs(conductor: Conductor, pids: dict[str, int], chunk: int, pairs: int) -> Turns:
    """So many pairs of turns of `chunk` steps; `pids` has the process that all others of a side come from."""
    turns = Turns()
    for number in range(-2, pairs):  # two pairs to warm up
        order = SIDES if number % 2 == 0 else SIDES[::-1]
        for side, waiting in zip(order, reversed(order), strict=True):
            before = {one: processor_s(pids[one]) for one in SIDES}
            seconds = conductor.turn(side, chunk)
            used = {one: spent_s(before[one], processor_s(pids[one])) for one in SIDES}
            if number >= 0:
                turns.seconds[side].append(seconds)
                turns.used_s[side] += used[side]
                turns.used_while_waiting_s[waiting] += used[waiting]
    return turns
