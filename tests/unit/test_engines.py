"""Which processes a run has, as values."""

from __future__ import annotations

from cordee.core.world import World
from cordee.runtime.engines.seam import seats


def test_processes_are_numbered_host_by_host() -> None:
    found = seats([2, 1, 3])
    assert [seat.worker for seat in found] == [0, 1, 2, 3, 4, 5]
    places = [(seat.world.node, seat.world.local_rank, seat.world.local_size) for seat in found]
    assert places == [(0, 0, 2), (0, 1, 2), (1, 0, 1), (2, 0, 3), (2, 1, 3), (2, 2, 3)]
    assert {(seat.world.size, seat.world.nodes) for seat in found} == {(6, 3)}


def test_a_process_reads_its_place_from_its_environment() -> None:
    for seat in seats([1, 2]):
        assert World.from_env(seat.world.to_env()) == seat.world
