"""The loader: the right batches, from reused memory, ahead or not, and no wait without an end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from cordee.core.errors import DataError, WaitedTooLong
from cordee.feed.arrays import ArraySource
from cordee.feed.batch import Batch
from cordee.feed.dataset import DatasetSource
from cordee.feed.loader import Loader
from cordee.feed.source import Traits
from harness import DEADLINE_S

SOURCE = ArraySource({"x": np.arange(1_000) * 2.0, "y": np.arange(1_000)})


class Hooked:
    """A source that calls `hook` before each gather, in the thread that gathers."""

    def __init__(self, hook: Callable[[np.ndarray], None]) -> None:
        self.hook = hook
        self.fingerprint = ""
        self.traits = Traits()

    def __len__(self) -> int:
        return len(SOURCE)

    def buffers(self, count: int, *, pin: bool = False) -> Any:
        return SOURCE.buffers(count, pin=pin)

    def gather(self, ids: np.ndarray, out: Any = None) -> Any:
        self.hook(ids)
        return SOURCE.gather(ids, out)


@pytest.fixture(params=[False, True, None], ids=lambda ahead: f"ahead={ahead}")
def ahead(request: pytest.FixtureRequest) -> bool | None:
    return request.param


def ids_of(step: int, count: int = 8) -> np.ndarray:
    return np.arange(step * 10, step * 10 + count)


def feed(loader: Loader, wanted: Iterable[np.ndarray]) -> Iterator[Batch]:
    """Batches as the feeder takes them: where a thread reads, the next one is asked for when one was taken."""
    request = None
    for ids, following in pairwise([*wanted, None]):
        assert ids is not None
        yield loader.take(request) if request is not None else loader.take_now(ids)
        request = loader.request(following) if loader.ahead and following is not None else None


def test_batches_hold_what_was_asked_for(ahead: bool | None) -> None:
    wanted = [ids_of(step, size) for step, size in enumerate([8, 8, 3, 10, 0, 8, 1, 9])]
    with closing(Loader(SOURCE, ahead=ahead)) as loader:
        for ids, batch in zip(wanted, feed(loader, wanted), strict=True):
            assert len(batch) == len(ids)
            assert batch.y.tolist() == batch.ids.tolist() == ids.tolist()
            assert torch.equal(batch.x, torch.from_numpy(batch.ids * 2.0))
            assert batch.x.dtype == torch.float64


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_batch_stays_valid_until_depth_more_were_taken(ahead: bool | None, depth: int) -> None:
    with closing(Loader(SOURCE, ahead=ahead, depth=depth)) as loader:
        taken: list[Batch] = []
        for one in feed(loader, map(ids_of, range(12))):
            taken.append(one)
            for batch in taken[-depth:]:
                assert batch.y.tolist() == batch.ids.tolist()
        memory = {batch.y.data_ptr() for batch in taken}
        assert len(memory) <= depth + 1


def test_fast_gathers_stay_in_the_caller_and_slow_ones_move_to_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.cumsum([0.0] + [0.0001, 0.0] * 50))
    monkeypatch.setattr("cordee.feed.loader.time.perf_counter", lambda: next(clock))
    assert not _after(10).ahead
    clock = iter(np.cumsum([0.0] + [0.003, 0.0] * 10 + [0.0001, 0.0] * 50))  # a busy machine, for a while
    assert not _after(20).ahead
    clock = iter(np.cumsum([0.0] + [0.02, 0.0] * 50))
    loader = _after(10)
    assert loader.ahead
    loader.close()


def _after(batches: int) -> Loader:
    loader = Loader(SOURCE)
    for step, batch in enumerate(feed(loader, map(ids_of, range(batches)))):
        assert batch.y.tolist() == ids_of(step).tolist()
    return loader


def test_the_thread_gathers_before_the_batch_is_taken() -> None:
    begun = threading.Event()
    with closing(Loader(Hooked(lambda ids: begun.set()), ahead=True)) as loader:
        request = loader.request(ids_of(0))
        assert begun.wait(DEADLINE_S)
        assert len(loader.take(request)) == 8


@pytest.mark.parametrize("error", [OSError, TimeoutError])
def test_an_error_of_the_source_comes_out_of_take_and_the_next_batch_works(error: type[Exception]) -> None:
    def fail(ids: np.ndarray) -> None:
        if ids[0] == 0:
            raise error("the disk is gone")

    with closing(Loader(Hooked(fail))) as loader:
        with pytest.raises(error, match="the disk is gone"):
            loader.take_now(ids_of(0))
        with pytest.raises(error, match="the disk is gone"):
            loader.take(loader.request(ids_of(0)))
        assert loader.take(loader.request(ids_of(1))).y.tolist() == ids_of(1).tolist()


def test_a_source_that_hangs_ends_in_an_error_with_a_name() -> None:
    release = threading.Event()
    with closing(Loader(Hooked(lambda ids: void(release.wait(DEADLINE_S))), ahead=True, deadline_s=0.05)) as loader:
        with pytest.raises(WaitedTooLong, match=r"this process waited 0.05 s for samples from a Hooked"):
            loader.take(loader.request(ids_of(0)))
        release.set()


def void(value: object) -> None:
    """Use a call for its effect in a lambda."""


def test_cancel_forgets_what_was_requested_even_in_mid_gather() -> None:
    inside, release = threading.Event(), threading.Event()
    gathered: list[int] = []

    def hold(ids: np.ndarray) -> None:
        gathered.append(int(ids[0]))
        if ids[0] == 0:
            inside.set()
            release.wait(DEADLINE_S)

    with closing(Loader(Hooked(hold), ahead=True, depth=1)) as loader:
        kept = loader.take_now(ids_of(9))
        requests = [loader.request(ids_of(step)) for step in range(2)]
        assert inside.wait(DEADLINE_S)
        for request in requests:
            loader.cancel(request)
        again = loader.request(ids_of(5))
        release.set()
        assert loader.take(again).ids.tolist() == ids_of(5).tolist()
        assert gathered == [90, 0, 50]
        assert kept.y.tolist() == ids_of(9).tolist(), "as long as `depth` batches stay"
        for batch in feed(loader, map(ids_of, range(1, 8))):
            assert batch.y.tolist() == batch.ids.tolist()


def test_close_ends_the_thread() -> None:
    before = set(threading.enumerate())
    loader = Loader(SOURCE, ahead=True)
    loader.request(ids_of(0))
    loader.close()
    loader.close()
    assert set(threading.enumerate()) <= before


def test_sources_that_make_their_own_tensors(ahead: bool | None) -> None:
    squares = [(torch.tensor(float(index)), index**2) for index in range(100)]
    with closing(Loader(DatasetSource(squares), ahead=ahead)) as loader:
        batches = list(feed(loader, map(ids_of, range(6))))
    for batch in batches:
        assert batch.y.tolist() == (batch.ids**2).tolist()
        assert batch.x.tolist() == batch.ids.tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["stays there", "copied", "makes its own tensors"])
def test_batches_arrive_on_the_gpu_while_it_computes(kind: str) -> None:
    pairs = [(float(index) * 2, index) for index in range(1_000)]
    sources = {"stays there": SOURCE, "copied": Hooked(lambda ids: None), "makes its own tensors": DatasetSource(pairs)}
    with closing(Loader(sources[kind], device="cuda")) as loader:
        assert loader.ahead is (kind != "stays there"), "what has a way to go begins it early"
        busy = torch.rand(2_000, 2_000, device="cuda")
        kept = []
        for batch in feed(loader, map(ids_of, range(50))):
            busy = busy @ busy / 1_000
            kept.append(batch)
        for batch in kept:
            assert batch.y.device.type == "cuda"
            assert batch.y.tolist() == batch.ids.tolist()
            assert torch.equal(batch.x.cpu(), torch.from_numpy(batch.ids * 2.0))


def test_x_and_y_of_a_batch() -> None:
    x, y, ids = torch.ones(2), torch.zeros(2), np.arange(2)
    assert Batch(ids, {"y": y, "x": x}).x is x
    assert Batch(ids, (x, y)).y is y
    assert Batch(ids, [x, y]).x is x
    assert Batch(ids, x).x is x
    with pytest.raises(DataError, match="no 'y', it holds the fields x"):
        _ = Batch(ids, {"x": x}).y
    with pytest.raises(DataError, match="no 'y', it holds one tensor, x"):
        _ = Batch(ids, x).y
    assert Batch(ids, x).weight == 2.0


def test_a_read_in_the_callers_own_thread_that_takes_too_long_is_told() -> None:
    told, release = [], threading.Event()

    def late(awaited: str) -> None:
        told.append(awaited)
        release.set()

    hooked = Hooked(lambda ids: void(release.wait(DEADLINE_S)))
    with closing(Loader(hooked, ahead=False, deadline_s=0.05, late=late)) as loader:
        loader.take_now(ids_of(0))
        loader.take_now(ids_of(1))
    assert told == ["samples from a Hooked"]
