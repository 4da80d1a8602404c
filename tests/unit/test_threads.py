"""Work in threads: parts come in their order, and an error where its part stands."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from cordee.feed import threads
from cordee.feed.threads import ahead, in_threads


def counted(stop: int, made: list[int]) -> Iterator[int]:
    for number in range(stop):
        made.append(threading.get_ident())
        yield number
    raise ValueError("no more")


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("way", [ahead, lambda parts: in_threads(lambda part: part, parts)])
def test_all_parts_come_before_the_error(
    monkeypatch: pytest.MonkeyPatch, way: Callable[[Iterator[int]], Iterator[int]], cores: int
) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: range(cores))
    found = []
    with pytest.raises(ValueError, match="no more"):
        for part in way(counted(20, [])):
            found.append(part)
    assert found == list(range(20))


def test_the_next_part_is_made_by_another_thread_and_no_more_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: range(2))
    made: list[int] = []
    parts = ahead(counted(20, made))
    assert [next(parts), next(parts)] == [0, 1]
    parts.close()  # type: ignore[attr-defined]
    assert len(made) == 3 and {*made} != {threading.get_ident()} and len({*made}) == 1
