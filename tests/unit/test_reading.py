"""A dataset is read by one thread at a time, and what its samples draw at random is theirs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset as TorchSubset

from cordee.core.errors import WaitedTooLong
from cordee.feed.arrays import ArraySource
from cordee.feed.data import as_source
from cordee.feed.dataset import DatasetSource
from cordee.feed.loader import Loader
from cordee.feed.reading import reading
from cordee.feed.source import Traits
from harness import DEADLINE_S

SAMPLES = 1_000


class Noisy:
    """Sample i is i, and numbers that it draws from torch's generator in many ways, from sample `first` on."""

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, place: int) -> tuple[int, torch.Tensor]:
        return place, self.drawn() if place >= self.first else torch.zeros(10)

    @staticmethod
    def drawn() -> torch.Tensor:
        like = torch.zeros(1)
        return torch.cat(
            [
                torch.rand(1),
                torch.randn(1),
                torch.randint(0, 1000, (1,)),
                torch.randperm(100)[:1],
                torch.empty(1).uniform_(0, 1),
                torch.normal(0.0, 1.0, (1,)),
                torch.rand_like(like),
                torch.bernoulli(torch.full((1,), 0.5)),
                like.exponential_(),
                torch.rand(1, generator=torch.Generator().manual_seed(3)),
            ]
        )


class Many(Noisy):
    """Gives several samples at once."""

    def __getitems__(self, places: list[int]) -> list[tuple[int, torch.Tensor]]:
        drawn = torch.rand(len(places), 3)
        return list(zip(places, drawn, strict=True))


class Elsewhere(Noisy):
    """Draws from Python's and NumPy's generators, from sample `first` on."""

    @staticmethod
    def drawn() -> torch.Tensor:
        return torch.tensor([random.random(), random.gauss(0, 1), np.random.rand(), *np.random.randn(2)])

    def __getitem__(self, place: int) -> tuple[int, torch.Tensor]:
        return place, self.drawn() if place >= self.first else torch.zeros(5)


class ManyElsewhere(Elsewhere):
    """Gives several samples at once."""

    def __getitems__(self, places: list[int]) -> list[tuple[int, torch.Tensor]]:
        return [self[place] for place in places]


KINDS: dict[str, Callable[[], Any]] = {
    "one by one": Noisy,
    "subset": lambda: TorchSubset(Noisy(), range(SAMPLES)),  # type: ignore[arg-type]
    "many": Many,
    "own collate": lambda: DatasetSource(Noisy(), lambda some: tuple(map(torch.stack, zip(*wide(some), strict=True)))),
    "now and then": lambda: Noisy(first=900),
    "elsewhere": Elsewhere,
    "many elsewhere": ManyElsewhere,
    "now and then elsewhere": lambda: Elsewhere(first=900),
}


def wide(samples: list[tuple[int, torch.Tensor]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.tensor(place), drawn) for place, drawn in samples]


def drawn(source: Any, ids: Any, *, epoch: int = 0, seed: int = 0) -> torch.Tensor:
    with reading(seed, epoch):
        return torch.as_tensor(source.gather(np.asarray(ids))[1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_draws_the_same_whoever_reads_it_with_whatever_others(kind: str) -> None:
    made = KINDS[kind]()
    whole = drawn(as_source(made), range(900, 1000))
    assert len(whole[:, 0].unique()) > 90
    torch.manual_seed(1)
    before = torch.get_rng_state()
    for cut in (1, 50):
        parts = [drawn(as_source(made), ids) for ids in (range(900, 900 + cut), range(900 + cut, 1000))]
        assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(torch.get_rng_state(), before), "the model draws from this one"
    for other in ({"epoch": 1}, {"seed": 1}):
        assert not torch.equal(drawn(as_source(made), range(900, 1000), **other), whole)


def test_one_that_begins_to_draw_late_is_seen() -> None:
    source = as_source(Noisy(first=900))
    for start in range(0, 800, 100):
        drawn(source, range(start, start + 100))
    before = torch.get_rng_state()
    late = drawn(source, range(850, 950))
    assert torch.equal(late[50:], drawn(as_source(Noisy()), range(900, 950)))
    assert torch.equal(torch.get_rng_state(), before)


def test_generators_that_no_sample_draws_from_are_left_alone() -> None:
    random.seed(3)
    np.random.seed(3)
    expected = random.random(), np.random.rand()
    random.seed(3)
    np.random.seed(3)
    source = as_source(Noisy())
    drawn(source, range(100))
    assert (random.random(), np.random.rand()) == expected
    drawn(source, range(100, 200))
    assert random.random() != expected[0]


@pytest.mark.parametrize("kind", [Noisy, Elsewhere])
def test_draws_of_an_epoch_are_the_same_ahead_or_not(kind: type[Noisy]) -> None:
    found = []
    for ahead in (False, True):
        with closing(Loader(as_source(kind()), ahead=ahead, seed=5)) as loader:
            asked = [(np.arange(10 * step, 10 * step + 10), step // 2) for step in range(4)]
            taken = (loader.take(loader.request(*one)) if ahead else loader.take_now(*one) for one in asked)
            found.append(torch.cat([batch.fields[1] for batch in taken]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0][:20], drawn(as_source(kind()), range(20), seed=5))


class OneAtATime:
    """Like a file handle: says so when two threads are in it at once."""

    def __init__(self) -> None:
        self.inside: list[int] = []
        self.met = threading.Event()
        self.collisions = 0

    def __len__(self) -> int:
        return 100

    def __getitem__(self, place: int) -> int:
        self.inside.append(place)
        self.met.wait(0.002)
        self.collisions += len(self.inside) > 1
        self.inside.remove(place)
        return place


@pytest.mark.parametrize("kind", ["dataset", "source"])
def test_two_loaders_read_one_after_the_other(kind: str) -> None:
    """As an evaluation does, while the next batch of the training is read ahead."""
    shared = OneAtATime()

    class Own:
        """A source of the user's own."""

        fingerprint = ""
        traits = Traits()

        def __len__(self) -> int:
            return 100

        def buffers(self, count: int, *, pin: bool = False) -> None:
            """None."""

        def gather(self, ids: np.ndarray, out: Any = None) -> torch.Tensor:
            return torch.tensor([shared[int(place)] for place in ids])

    halves = [TorchSubset(shared, range(50)), TorchSubset(shared, range(50, 100))]  # type: ignore[arg-type]
    sources = [as_source(half) for half in halves] if kind == "dataset" else [Own(), Own()]
    with closing(Loader(sources[0], ahead=True)) as one, closing(Loader(sources[1], ahead=False)) as other:
        for step in range(4):
            request = one.request(np.arange(step * 10, step * 10 + 10))
            assert len(other.take_now(np.arange(10))) == 10
            assert len(one.take(request)) == 10
    assert shared.collisions == 0


def test_arrays_wait_for_nobody_and_a_dataset_that_hangs_is_told() -> None:
    held, release = threading.Event(), threading.Event()

    def hang() -> None:
        with reading():
            held.set()
            release.wait(DEADLINE_S)

    thread = threading.Thread(target=hang)
    thread.start()
    assert held.wait(DEADLINE_S)
    with closing(Loader(ArraySource([np.arange(5)]), ahead=False)) as loader:
        assert len(loader.take_now(np.arange(3))) == 3
    with closing(Loader(as_source(Noisy()), ahead=False, deadline_s=0.05)) as loader:
        with pytest.raises(WaitedTooLong, match=r"0.05 s until another thread had read"):
            loader.take_now(np.arange(3))
        direct = threading.Thread(target=lambda: as_source(Noisy()).gather(np.arange(3)))
        direct.start()
        direct.join(0.05)
        assert direct.is_alive()
        release.set()
        for one in (thread, direct):
            one.join(DEADLINE_S)
        assert len(loader.take_now(np.arange(3))) == 3
