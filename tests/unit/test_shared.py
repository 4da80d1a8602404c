"""Memory that members share: two of them in one process, which take turns."""

from __future__ import annotations

import mmap

import pytest
import torch
from torch import Tensor

from cordee.group.transport import memory, shared
from cordee.group.transport.shared import Shared

ARENA = 2**16


class Pair:
    """Two members and the memory between them."""

    def __init__(self) -> None:
        self.broken = False
        mapped = memoryview(mmap.mmap(-1, 2 * (shared._HEAD + ARENA)))
        self.members = [Shared(mapped, rank, 2, lambda: self.broken, 60.0) for rank in range(2)]

    def gather(self, nbytes: int, seed: int) -> list[tuple[shared.Work, list[Tensor]]]:
        """Begun by both."""
        begun = []
        for rank, member in enumerate(self.members):
            parts = [torch.zeros(nbytes, dtype=torch.uint8) for _ in range(2)]
            begun.append((member.post(content(nbytes, seed, rank), parts), parts))
        return begun


def never() -> bool:
    """No peer was lost, as far as the caller knows."""
    return False


def content(nbytes: int, seed: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(2 * seed + rank)
    return torch.randint(256, (nbytes,), dtype=torch.uint8, generator=generator)


def assert_gathered(begun: list[tuple[shared.Work, list[Tensor]]], nbytes: int, seed: int) -> None:
    for _, parts in begun:
        assert all(torch.equal(parts[rank], content(nbytes, seed, rank)) for rank in range(2))


def test_one_that_is_left_open_ends_with_a_later_one() -> None:
    pair = Pair()
    first = pair.gather(24, 0)
    for seed in range(1, 200):  # many times around the arena
        later = pair.gather(1000 + seed, seed)
        for work, _ in later:
            work.wait(never)
        assert_gathered(later, 1000 + seed, seed)
        assert_gathered(first, 24, 0)
    pair.broken = True
    for work, _ in first:
        work.wait(never)  # it came to its end before the team broke


@pytest.mark.parametrize("nbytes", [9, ARENA // 2])
def test_those_that_nobody_waits_for_do_not_pile_up(nbytes: int) -> None:
    pair = Pair()
    begun = [pair.gather(nbytes, seed) for seed in range(3 * shared._RECORDS)]
    for work, _ in begun[-1]:
        work.wait(never)
    for seed in (0, 1, shared._RECORDS, 3 * shared._RECORDS - 1):
        assert_gathered(begun[seed], nbytes, seed)


def test_sums_and_gathers_in_one_order() -> None:
    pair = Pair()
    numbers = [torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])]
    works = [member.post(tensor) for member, tensor in zip(pair.members, numbers, strict=True)]
    later = pair.gather(8, 1)
    for work, _ in later:
        work.wait(never)
    for work in works:
        work.wait(never)  # has ended, and is not done twice
    assert numbers[0].tolist() == numbers[1].tolist() == [11.0, 22.0]
    assert_gathered(later, 8, 1)


def test_a_lost_member_ends_the_wait() -> None:
    pair = Pair()
    work = pair.members[0].post(torch.ones(3), [torch.zeros(3), torch.zeros(3)])
    pair.broken = True
    with pytest.raises(RuntimeError, match="lost"):
        work.wait(never)


@pytest.mark.parametrize(
    ("tensor", "fits"),
    [
        (torch.zeros(ARENA // 2, dtype=torch.uint8), True),
        (torch.zeros(ARENA // 2 + 1, dtype=torch.uint8), False),
        (torch.zeros(0), False),
        (torch.zeros(4, 4).t()[:2], False),
    ],
    ids=["half the arena", "more", "nothing", "not contiguous"],
)
def test_what_fits_does_not_depend_on_what_is_under_way(tensor: Tensor, fits: bool) -> None:
    pair = Pair()
    assert pair.members[0].fits(tensor) == fits
    pair.members[0].post(torch.zeros(ARENA // 4, dtype=torch.uint8))
    assert pair.members[0].fits(tensor) == pair.members[1].fits(tensor) == fits


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (torch.ones(3), torch.ones(4)),
        (torch.ones(4), torch.ones(4, dtype=torch.int32)),
        (torch.ones(4), torch.ones(2, dtype=torch.float64)),
    ],
)
def test_two_different_collectives_are_not_taken_for_one(here: Tensor, there: Tensor) -> None:
    pair = Pair()
    works = [member.post(tensor) for member, tensor in zip(pair.members, (here, there), strict=True)]
    with pytest.raises(
        RuntimeError, match=f"rank 1 began another collective than rank 0 did: {there.nbytes} bytes there"
    ):
        works[0].wait(never)
    assert torch.equal(here, torch.ones_like(here)), "nothing was added"


def test_memory_that_a_limit_forbids_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    class Store(dict[str, bytes]):
        def set(self, key: str, value: str) -> None:
            self[key] = value.encode()

        def get(self, key: str) -> bytes:  # type: ignore[override]
            return self[key]

    monkeypatch.setattr(memory.mmap, "mmap", refuse)
    store = Store({"reached-1": b"yes"})
    assert shared.open_shared(store, 0, 2, never, 1.0) == () and store["reached-0"] == b"no"


def test_processors_that_reorder_writes_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.platform, "machine", lambda: "aarch64")
    assert memory._create(4096) == -1
