"""Sums over hosts with several ranks: which ranks lead, which pieces and slots, and what a loss leaves behind."""

from __future__ import annotations

import itertools
import mmap
import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from cordee.group.transport import hierarchy, slots
from cordee.group.transport.hierarchy import Hierarchy
from cordee.group.transport.seam import Sent
from cordee.group.transport.slots import SLOTS, Leader, Mate, Slots, crews_of, pieces_of
from harness import until


@pytest.mark.parametrize(
    ("homes", "crews"),
    [
        ("aabb", ((0, 1), (2, 3))),
        ("aaab", ((0, 1, 2), (3,))),
        ("abbc", ((0,), (1, 2), (3,))),
        ("baba", ((0, 2), (1, 3))),
        ("aaaa", ()),
        ("abc", ()),
        ("a", ()),
    ],
)
def test_the_first_rank_of_a_host_leads(homes: str, crews: tuple[tuple[int, ...], ...]) -> None:
    assert crews_of(homes) == crews


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("nbytes", [65_536, slots.SLOT_BYTES, slots.SLOT_BYTES + 8, 4 * slots.SLOT_BYTES + 240, 2**25])
def test_pieces_fit_into_slots(nbytes: int, itemsize: int) -> None:
    pieces = pieces_of(nbytes // itemsize, itemsize)
    assert len(pieces) == -(-nbytes // slots.SLOT_BYTES)
    assert pieces[0][0] == 0 and pieces[-1][1] == nbytes // itemsize
    assert all(before[1] == after[0] for before, after in itertools.pairwise(pieces))
    sizes = [itemsize * (stop - start) for start, stop in pieces]
    assert max(sizes) <= slots.SLOT_BYTES and max(sizes) - min(sizes) <= itemsize


class Ring:
    """In the place of gloo among leaders, in one process: a piece is added up when all of them have begun it."""

    def __init__(self, hosts: int) -> None:
        self.begun: list[list[Tensor]] = [[] for _ in range(hosts)]
        self.added = 0
        self.stuck: list[bool] = []
        self.rates: list[dict[str, float]] = []
        self.fails = False

    def add_up(self) -> None:
        """What all leaders have begun."""
        while all(len(one) > self.added for one in self.begun):
            tensors = [one[self.added] for one in self.begun]
            total = sum(one.clone() for one in tensors)
            for tensor in tensors:
                tensor.copy_(total)
            self.added += 1

    def of(self, host: int) -> Any:
        """As one leader sees it."""

        def begin(tensor: Tensor) -> Any:
            self.begun[host].append(tensor)
            number = len(self.begun[host])
            return SimpleNamespace(has_ended=lambda: self.fails or self.added >= number, wait=self.check)

        def close(*, stuck: bool) -> None:
            self.stuck.append(stuck)

        return SimpleNamespace(sum=begin, cut=lambda: None, close=close, pace=self.rates.append)

    def check(self, broken: object) -> None:
        if self.fails:
            raise RuntimeError("Connection closed by peer")


class Cluster:
    """All ranks of some hosts, in one process: each acts when it is told to."""

    def __init__(self, homes: str) -> None:
        self.crews = crews_of(homes)
        self.ring = Ring(len(self.crews))
        self.sides: dict[int, Leader | Mate] = {}
        for host, crew in enumerate(self.crews):
            memory = memoryview(mmap.mmap(-1, Slots.length_for(len(crew))))
            for rank in crew:
                own = Slots(memory, crew, rank)
                leads = rank == crew[0]
                self.sides[rank] = Leader(own, self.ring.of(host), len(self.crews)) if leads else Mate(own)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "SLOT_BYTES", 256)
    monkeypatch.setattr(hierarchy, "LEAST_BYTES", 64)


@pytest.mark.parametrize("homes", ["aabb", "aaab", "abbc", "abab", "aaabbc"])
@pytest.mark.parametrize("seed", range(4))
def test_every_order_of_turns_gives_the_same_sums(homes: str, seed: int, small: None) -> None:
    """Ranks and the ring take turns at random, and some ranks seldom: no slot is used before it is free."""
    cluster, draw = Cluster(homes), random.Random(seed)
    ranks, pieces = range(len(homes)), 40
    given = torch.rand(len(homes), pieces, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    tensors = given.clone()
    begun, ended = dict.fromkeys(ranks, 0), dict.fromkeys(ranks, 0)
    seldom = draw.choice(ranks)
    while min(ended.values()) < pieces:
        turn = draw.choice([*ranks, len(homes)])
        if turn == len(homes):
            cluster.ring.add_up()
        elif turn != seldom or draw.random() < 0.1:
            side = cluster.sides[turn]
            if begun[turn] < pieces and side.begin(begun[turn] + 1, tensors[turn, begun[turn]]):
                begun[turn] += 1
            if ended[turn] < begun[turn] and side.end(ended[turn] + 1, tensors[turn, ended[turn]]):
                ended[turn] += 1
                assert min(begun.values()) >= ended[turn], "a result before all ranks had begun"
        leads = [crew[0] for crew in cluster.crews]
        assert all(begun[rank] - ended[rank] <= SLOTS for rank in leads)
    torch.testing.assert_close(tensors[0], given.sum(dim=0), rtol=1e-15, atol=0)
    assert all(torch.equal(tensors[rank], tensors[0]) for rank in ranks)


def test_what_each_rank_sends() -> None:
    cluster = Cluster("aaab")
    sent = [cluster.sides[rank].sends(9_000_000) for rank in range(4)]
    assert sent == [Sent(9_000_000, 9_000_000), Sent(9_000_000, 0), Sent(9_000_000, 0), Sent(0, 9_000_000)]
    assert Cluster("aabbcc").sides[2].sends(9_000_000).far == 12_000_000


def test_leaders_are_paced() -> None:
    ranks = Ranks("aab")
    for one in ranks.transports:
        one.pace({"b": 1e6})
    assert ranks.cluster.ring.rates == [{"b": 1e6}] * 2
    ranks.end()


def test_two_different_sums_are_not_taken_for_one(small: None) -> None:
    cluster = Cluster("aab")
    assert cluster.sides[1].begin(1, torch.ones(8))
    with pytest.raises(RuntimeError, match="rank 1 began another collective than rank 0 did: 32 bytes there, 64 here"):
        cluster.sides[0].begin(1, torch.ones(16))


def never() -> bool:
    return False


class Ranks:
    """The transports of all ranks, with their threads, and one that plays the network."""

    def __init__(self, homes: str) -> None:
        self.cluster = Cluster(homes)
        self.transports = [Hierarchy(self.cluster.sides[rank], 2, 60.0) for rank in range(len(homes))]
        self.connected = threading.Event()
        self.connected.set()
        self.over = threading.Event()
        threading.Thread(target=self.carry, daemon=True).start()

    @torch.inference_mode()
    def carry(self) -> None:
        while not self.over.wait(0.001):
            if self.connected.is_set():
                self.cluster.ring.add_up()

    def end(self) -> None:
        for one in self.transports:
            one.cut()
            one.close(stuck=False)
        threads = [one._thread for one in self.transports if one._thread is not None]
        until(lambda: not any(thread.is_alive() for thread in threads))
        self.over.set()


def test_a_cut_sum_leaves_its_tensor_alone(small: None) -> None:
    """The wait is released, the thread ends, and what comes late goes nowhere."""
    ranks = Ranks("aab")
    first = [torch.full((64,), float(rank), dtype=torch.float64) for rank in range(3)]
    works = [one.sum(tensor) for one, tensor in zip(ranks.transports, first, strict=True)]
    for work in works:
        assert work is not None
        work.wait(never)
    assert [tensor.tolist() for tensor in first] == [[3.0] * 64] * 3
    ranks.connected.clear()
    second = [torch.full((64,), float(rank), dtype=torch.float64) for rank in range(3)]
    begun = [one.sum(tensor) for one, tensor in zip(ranks.transports, second, strict=True)]
    assert begun[1] is not None and not begun[1].has_ended()
    until(lambda: all(len(one) == 4 for one in ranks.cluster.ring.begun))  # each sum has two pieces
    with pytest.raises(RuntimeError, match="cut off: a member was lost"):
        begun[1].wait(lambda: True)
    assert works[1] is not None
    works[1].wait(lambda: True)  # it had ended before
    second[1].fill_(77.0)
    ranks.connected.set()
    for work in (begun[0], begun[2]):
        assert work is not None
        work.wait(never)  # the others are not cut off, and get the result
    assert second[1].tolist() == [77.0] * 64
    with pytest.raises(RuntimeError, match="before the sum began"):
        ranks.transports[1].sum(second[1])
    ranks.end()
    assert ranks.cluster.ring.stuck == [False, False]


def test_another_thread_releases_a_wait(small: None) -> None:
    ranks = Ranks("aab")
    ranks.connected.clear()
    work = ranks.transports[1].sum(torch.ones(64))
    assert work is not None
    cutter = threading.Timer(0.01, ranks.transports[1].cut)
    cutter.start()
    with pytest.raises(RuntimeError, match="cut off"):
        work.wait(never)
    ranks.end()


def test_an_error_of_the_leaders_reaches_the_one_that_waits(small: None) -> None:
    ranks = Ranks("abb")
    ranks.connected.clear()
    tensors = [torch.ones(64) for _ in range(3)]
    works = [one.sum(tensor) for one, tensor in zip(ranks.transports, tensors, strict=True)]
    until(lambda: all(ranks.cluster.ring.begun))
    ranks.cluster.ring.fails = True
    assert works[0] is not None and works[2] is not None
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        works[0].wait(never)
    assert not works[2].has_ended() and tensors[2].tolist() == [1.0] * 64
    ranks.end()


def test_a_leader_whose_message_never_comes_is_left_behind(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo does not wake it: its group is not closed, which would wait for it."""
    monkeypatch.setattr(slots, "LOOK_S", 0.01)
    ranks = Ranks("aab")
    ranks.connected.clear()
    for one in ranks.transports:
        one.sum(torch.ones(64))
    until(lambda: all(ranks.cluster.ring.begun))
    ranks.end()
    assert ranks.cluster.ring.stuck == [True, True]


@pytest.mark.parametrize(
    ("tensor", "carried"),
    [
        (torch.zeros(16_384), True),
        (torch.zeros(16_383), False),
        (torch.zeros(8_192, dtype=torch.float64), True),
        (torch.zeros(32_768, dtype=torch.bfloat16), True),
        (torch.zeros(16_384, dtype=torch.int32), False),
        (torch.zeros(16_384, dtype=torch.int64), False),
        (torch.zeros(256, 256).t(), False),
    ],
)
def test_what_it_carries_depends_on_the_tensor_alone(tensor: Tensor, carried: bool) -> None:
    ranks = Ranks("aab")
    assert [one.sends(tensor) is not None for one in ranks.transports] == [carried] * 3
    assert [one.sum(tensor) is not None for one in ranks.transports] == [carried] * 3
    ranks.end()
