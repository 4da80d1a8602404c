"""Endless streams as sources: which samples are read, kept, read again; and what is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

import cordee
from cordee.core.errors import DataError, JobError
from cordee.feed.stream import StreamSource


class Counted:
    """A stream of its own numbers that counts how often it was begun, where, and what it made."""

    def __init__(self, ends: int | None = None) -> None:
        self.begun: list[int] = []
        self.made = 0
        self.ends = ends

    def __call__(self) -> Iterator[Any]:
        return self.samples(0)

    def samples(self, start: int) -> Iterator[Any]:
        self.begun.append(start)
        number = start
        while self.ends is None or number < self.ends:
            self.made += 1
            yield torch.tensor([float(number)]), number
            number += 1


class Started(Counted):
    def __call__(self, start: int = 0) -> Iterator[Any]:
        return self.samples(start)


def gathered(source: StreamSource, *ids: int) -> list[int]:
    x, y = source.gather(np.array(ids))
    assert x[:, 0].tolist() == y.tolist()
    found: list[int] = y.tolist()
    return found


def test_ids_are_the_numbers_of_samples_and_each_is_made_once() -> None:
    stream = Counted()
    source = StreamSource(stream)
    source.begin(0, keep=40)
    for step in range(10):
        ids = [step * 10 + place for place in (7, 3, 4)]
        assert gathered(source, *ids) == ids
    assert stream.begun == [0] and stream.made == 98


def test_a_step_is_done_again_from_what_was_kept() -> None:
    stream = Counted()
    source = StreamSource(stream)
    source.begin(0, keep=40)
    for step in range(10):
        gathered(source, *range(step * 10, step * 10 + 10))
        again = range(max(0, step - 3) * 10, step * 10 + 10)
        assert gathered(source, *again) == list(again)
    assert stream.begun == [0] and stream.made == 100


@pytest.mark.parametrize(("kind", "begun", "made"), [(Counted, [0, 0], 1050), (Started, [0, 900, 960, 0], 260)])
def test_samples_that_are_gone_are_read_again(kind: type[Counted], begun: list[int], made: int) -> None:
    """From the beginning, or from where they are if the stream can begin there."""
    stream = kind()
    source = StreamSource(stream)
    source.begin(940, keep=40)
    assert gathered(source, 1000, 1049) == [1000, 1049]
    assert gathered(source, *range(20, 0, -1)) == list(range(20, 0, -1))
    assert stream.begun[: len(begun)] == begun
    assert stream.made <= made + 60


def test_what_samples_draw_belongs_to_their_number() -> None:
    def drawing() -> Iterator[Any]:
        while True:
            yield torch.rand(2), random.random(), np.random.rand()

    first, second = StreamSource(drawing), StreamSource(drawing)
    assert first.fingerprint == second.fingerprint and first.traits.draws
    one = first.gather(np.arange(5, 200))
    random.seed(0)
    second.begin(150, keep=20)
    random.random(), torch.rand(3)
    two = second.gather(np.arange(190, 200))
    for whole, part in zip(one, two, strict=True):
        assert torch.equal(whole[-10:], part)
    assert len(set(one[1].tolist())) == 195


def test_different_streams_have_different_fingerprints() -> None:
    def wild() -> Iterator[Any]:
        own = np.random.default_rng()
        while True:
            yield own.normal(size=3)

    assert StreamSource(wild).fingerprint != StreamSource(wild).fingerprint
    assert StreamSource(Counted()).fingerprint == StreamSource(Counted()).fingerprint


def test_a_stream_that_ends_says_where() -> None:
    source = StreamSource(Counted(ends=30))
    assert gathered(source, 29) == [29]
    with pytest.raises(DataError, match=r"ended after 30 samples, but sample 36 is needed.*cordee.data.rows"):
        gathered(source, 35)
    assert gathered(StreamSource(Counted(ends=3)), 2) == [2]
    with pytest.raises(DataError, match="gave no sample"):
        gathered(StreamSource(Counted(ends=0)), 0)


def test_an_error_in_the_stream_names_the_sample() -> None:
    def failing() -> Iterator[Any]:
        yield from range(20)
        raise KeyError("lost")

    with pytest.raises(KeyError) as caught:
        StreamSource(failing).gather(np.arange(30))
    assert vars(caught.value)["__notes__"] == ["in sample 20 of the stream " + failing.__qualname__]


class Iterable(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter((torch.zeros(2), number) for number in range(10**9))


def make(data: Any, **fields: Any) -> cordee.Job:
    return cordee.Job(
        model=lambda: nn.Linear(2, 10),
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        data=data,
        **fields,
    )


def test_a_job_on_a_stream_needs_the_length_of_an_epoch_and_no_shuffle() -> None:
    stream = cordee.data.stream(Iterable())
    with pytest.raises(JobError, match=r"Add steps_per_epoch=1000, shuffle='none' to the job.*cordee.data.rows"):
        make(stream)
    with pytest.raises(JobError, match="Add shuffle='none' to the job"):
        make(stream, steps_per_epoch=5)
    made = make(stream, steps_per_epoch=5, shuffle="none", batch=7)
    assert made.order(made.resolve(1)).ids(2, 3).tolist() == list(range(91, 98))
    with pytest.raises(JobError, match="validation: an endless stream has no end"):
        make({"train": stream.train, "validation": stream.train}, steps_per_epoch=5, shuffle="none")


def test_a_dataset_that_can_only_be_iterated_is_told_both_ways() -> None:
    with pytest.raises(DataError) as caught:
        make(Iterable())
    assert "    data=cordee.data.rows(dataset)\n" in str(caught.value)
    assert "    data=cordee.data.stream(dataset), steps_per_epoch=1000, shuffle='none'" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((number for number in range(3)), "can be read once.*stream\\(function\\)"),
        (3, "a function that begins the stream was expected"),
        (lambda: 3, "gave a int; samples one after the other"),
    ],
)
def test_what_is_no_stream_is_refused(given: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        cordee.data.stream(given).train.gather(np.arange(1))


def test_samples_of_different_shapes_are_named() -> None:
    def growing() -> Iterator[Any]:
        number = 0
        while True:
            number += 1
            yield torch.zeros(number)

    with pytest.raises(DataError, match=r"sample 1 is shape \(2,\).*cordee.data.stream\(..., collate=...\)"):
        StreamSource(growing).gather(np.arange(2))
    padded = cordee.data.stream(growing, collate=lambda samples: nn.utils.rnn.pad_sequence(samples, batch_first=True))
    assert padded.train.gather(np.arange(3)).shape == (3, 3)


def test_a_loop_of_ones_own_reads_a_stream_until_it_is_left() -> None:
    seen = []
    with cordee.session() as session:
        for batch in session.batches(cordee.data.stream(Counted()).train, batch=4):
            seen += batch.y.tolist()
            if len(seen) == 12:
                break
    assert seen == list(range(12))
