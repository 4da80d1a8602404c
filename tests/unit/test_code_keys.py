"""Keys of the user's functions: they change when what decides a row does, and only then."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import importlib
import logging
import math
import operator
import random
import re
import subprocess
import sys
import threading
import uuid
import zoneinfo
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cordee.feed.steps.code import code_of


@dataclasses.dataclass(frozen=True)
class Slotted:
    """Has no `__dict__`."""

    __slots__ = ("low", "words")
    low: float
    words: list[str]


class Half:
    """Has a slot, and attributes."""

    __slots__ = ("__dict__", "low")

    def __init__(self, low: int) -> None:
        self.low, self.other = low, 1


class Level(enum.Enum):
    LOW, HIGH = 1, 2


class Rule(ABC):
    @abstractmethod
    def __call__(self, given: Any) -> Any: ...


class Above(Rule):
    def __init__(self, least: int) -> None:
        self.least, self.lock = least, threading.Lock()

    def __call__(self, given: Any) -> Any:
        return given > self.least


class Node:
    """In a circle with others."""

    def __init__(self, value: int) -> None:
        self.value, self.next, self.seen = value, self, {Fixed(value), Fixed(7)}


@dataclasses.dataclass(frozen=True)
class Fixed:
    value: int


def deep(value: Any) -> Any:
    for _ in range(40):
        value = [value]
    return value


def uses(value: Any) -> Any:
    return lambda given: (given, value)


PAIRS: list[tuple[Any, Any]] = [
    (re.compile("a"), re.compile("b")),
    (re.compile("a"), re.compile("a", re.I)),
    (datetime.datetime(2024, 1, 1), datetime.datetime(2025, 1, 1)),
    (datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)),
    (datetime.timedelta(1), datetime.timedelta(2)),
    (zoneinfo.ZoneInfo("Europe/Paris"), zoneinfo.ZoneInfo("Europe/Rome")),
    (decimal.Decimal("1.5"), decimal.Decimal("2.5")),
    (fractions.Fraction(1, 2), fractions.Fraction(1, 3)),
    (uuid.UUID(int=1), uuid.UUID(int=2)),
    (collections.deque([1]), collections.deque([2])),
    (collections.Counter("a"), collections.Counter("b")),
    (operator.itemgetter("a"), operator.itemgetter("b")),
    (functools.partial(int, base=2), functools.partial(int, base=8)),
    (functools.partial(max, re.compile("a")), functools.partial(max, re.compile("b"))),
    (math.floor, math.ceil),
    (np.log, np.exp),
    ("ab".startswith, "ac".startswith),
    (slice(1), slice(2)),
    (bytearray(b"a"), bytearray(b"b")),
    (Slotted(1.0, ["a"]), Slotted(1.0, ["b"])),
    (Half(1), Half(2)),
    (Level.LOW, Level.HIGH),
    (Above(1), Above(2)),
    (Node(1), Node(2)),
    ({re.compile("a"), re.compile("c")}, {re.compile("b"), re.compile("c")}),
    (np.array([re.compile("a")]), np.array([re.compile("b")])),
    (np.dtype("f4"), np.dtype("f8")),
    (torch.float32, torch.float64),
    (deep(re.compile("a")), deep(re.compile("b"))),
    ({"a": 1}.get, {"a": 2}.get),
    (Above(1).__call__, Above(2).__call__),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: type(pair[0]).__name__)
def test_values_without_attributes_count(pair: tuple[Any, Any], capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (code_of(uses(one)) for one in pair)
    assert first != second
    assert first == code_of(uses(pair[0]))
    assert not capsys.readouterr().err


SCRIPT = """
import sys; sys.path[:0] = sys.argv[1:]
from test_code_keys import PAIRS, uses
from cordee.feed.steps.code import code_of
print(*[code_of(uses(one)) for pair in PAIRS for one in pair], sep="\\n")
"""


def test_another_process_has_the_same_keys() -> None:
    ways = [str(Path(__file__).parent), *[one for one in sys.path if one]]
    ran = subprocess.run([sys.executable, "-c", SCRIPT, *ways], capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout.split() == [code_of(uses(one)) for pair in PAIRS for one in pair]


def test_a_module_of_the_users_counts_by_what_is_used_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_helpers.py").write_text("def clean(one): return one + 1\ndef other(one): return one\n")
    module = importlib.import_module("own_helpers")
    space = {"own_helpers": module}
    exec("def f(one): return own_helpers.clean(one)", space)
    before = code_of(space["f"])
    monkeypatch.setattr(module, "other", lambda one: one * 2)
    assert code_of(space["f"]) == before
    monkeypatch.setattr(module, "clean", lambda one: one * 2)
    assert code_of(space["f"]) != before


def test_what_moves_when_it_is_used_counts_by_its_type_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    own, numpys, torchs, moving = random.Random(1), np.random.default_rng(1), torch.Generator(), iter([1, 2])
    uses = {own: own.random, numpys: numpys.random, torchs: torchs.seed, moving: moving.__next__}
    for thing, use in uses.items():

        def drawing(given: Any, thing: Any = thing) -> Any:
            return given, thing

        drawing.__name__ = f"drawing_{type(thing).__module__}_{type(thing).__name__}"
        before = code_of(drawing)
        use()
        assert code_of(drawing) == before
        said = capsys.readouterr().err
        assert said.count("it cannot be seen whether") == 1 and f"uses a {type(thing).__name__}" in said


def test_what_shows_nothing_is_named_and_loggers_and_locks_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    memory = memoryview(b"abc")

    def reads(given: Any) -> Any:
        return given, memory

    code_of(reads)
    assert "reads: it uses a memoryview" in capsys.readouterr().err
    log, lock = logging.getLogger("here"), threading.RLock()
    code_of(lambda given: (given, log, lock))
    assert not capsys.readouterr().err


def test_a_cached_function_counts_by_its_code() -> None:
    assert code_of(functools.lru_cache(lambda one: one + 1)) != code_of(functools.lru_cache(lambda one: one + 2))


def test_many_ways_to_one_thing_take_no_longer() -> None:
    """Each level names the one below twice: 2 ** 60 ways."""
    value: Any = Slotted(1.0, [])
    for _ in range(60):
        value = [Half(1), value, {"a": value}]
    assert code_of(uses(value)) == code_of(uses(value))
