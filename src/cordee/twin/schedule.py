"""The schedule of a twin: which faults and changes happen when, as text and as values.

    at step 30: cut b
    at step 60: mend b
    at 12.5 s: set b link=10mbit cpu=0.1; every 15 s: kill random worker    # two statements on one line
    at step 50: kill host b and cut c

A schedule is a list of statements `WHEN: ACTION`, separated by `;` or a new line; it may be empty. `#` begins a comment
that ends with the line. Case does not matter. Actions are joined by `and`. `every N steps` is at N, 2 N, 3 N, ...;
times count from when training began.

Nothing here acts: an executor looks at the run from time to time, and does what became `due` since its last look.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cordee.core.errors import UsageError
from cordee.twin.cluster import Cluster, read_setting

Verb = Literal["cut", "mend", "set", "kill", "pause", "resume"]
SETTINGS = ("link", "cpu")
"""What `set` changes."""
_UNITS = {"s": (1, 1), "ms": (1, 1000), "min": (60, 1)}
_TIME = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[0-9]{1,15}")
_WHENS = "`at step 30`, `at 12.5 s`, `every 20 steps` or `every 15 s` (or ms, or min)"
_ACTIONS = (
    "`cut HOST`, `mend HOST`, `set HOST link=RATE cpu=SHARE`, `kill host HOST`, `kill worker N`, `pause worker N`, "
    "`resume worker N`, `kill random worker` or `pause random worker`"
)


@dataclass(frozen=True)
class When:
    """A moment, or with `every` each multiple of it: in steps, or if `timed` in seconds since training began."""

    number: float
    timed: bool = False
    every: bool = False

    @classmethod
    def parse(cls, text: str) -> When:
        """The moments that a text means, which is in small letters."""
        match re.sub(r"(\d)(s|ms|min)\b", r"\1 \2", text).split():
            case ["at", "step", number] if _WHOLE.fullmatch(number) and int(number):
                return cls(int(number))
            case ["every", number, "step" | "steps"] if _WHOLE.fullmatch(number) and int(number):
                return cls(int(number), every=True)
            case ["at" | "every" as word, number, ("s" | "ms" | "min") as unit] if _TIME.fullmatch(number):
                times, parts = _UNITS[unit]
                seconds = float(number) * times / parts
                if seconds < math.inf and (seconds or word == "at"):
                    return cls(seconds, True, word == "every")
        raise UsageError(f"{text.strip()!r} is no moment: expected {_WHENS}, steps and periods above 0")

    def after(self, now: float) -> float | None:
        """The first moment after `now`; None when there is none."""
        if not self.every:
            # The least positive number stands for 0 s, which would not lie after the beginning.
            moment = max(self.number, math.ulp(0.0))
            return moment if moment > now else None
        # Quotient and product round: the multiple itself is compared, so that nothing is due twice or left out. (A
        # period that is too short for a float of this size to tell apart is due at the next one.)
        since = max(0, now)
        count = since // self.number
        near = ((count + more) * self.number for more in (1, 2))
        return next((moment for moment in near if since < moment < math.inf), math.nextafter(since, math.inf))

    def __str__(self) -> str:
        # The shortest text that is read as the same number.
        number = f"{self.number!r}".removesuffix(".0")
        if self.timed:
            return f"{'every' if self.every else 'at'} {number} s"
        return f"every {number} step{'s' if self.number > 1 else ''}" if self.every else f"at step {number}"


@dataclass(frozen=True)
class Action:
    """What is done to a host (its link, its CPU share, all its processes) or to the process of a worker."""

    verb: Verb
    host: str = ""
    """The host of `cut`, `mend`, `set` and `kill host`; empty: a worker is meant."""
    worker: int | None = None
    """The rank to kill, pause or resume; None without a host: a random worker."""
    settings: tuple[tuple[str, str], ...] = ()
    """What `set` changes: pairs of key and text, as written."""

    @classmethod
    def parse(cls, text: str) -> Action:
        """The action that a text means, which is in small letters."""
        match text.split():
            case ["cut" | "mend" as verb, host]:
                return cls(verb, host)
            case ["set", host, *words] if words and all("=" in word for word in words):
                settings = {key: value for key, _, value in (word.partition("=") for word in words)}
                if odd := settings.keys() - set(SETTINGS):
                    raise UsageError(f"{', '.join(sorted(odd))} cannot be set while a host is up; link and cpu can")
                for key, value in settings.items():
                    read_setting(key, value)
                return cls("set", host, settings=tuple(settings.items()))
            case ["kill", "host", host]:
                return cls("kill", host)
            case ["kill" | "pause" as verb, "random", "worker"]:
                return cls(verb)
            case ["kill" | "pause" | "resume" as verb, "worker", number] if _WHOLE.fullmatch(number):
                return cls(verb, worker=int(number))
        raise UsageError(f"{text.strip()!r} is no action: expected {_ACTIONS}")

    def __str__(self) -> str:
        if not self.host:
            return f"{self.verb} random worker" if self.worker is None else f"{self.verb} worker {self.worker}"
        host = f"host {self.host}" if self.verb == "kill" else self.host
        return " ".join([self.verb, host, *(f"{key}={text}" for key, text in self.settings)])

    def check(self, cluster: Cluster) -> None:
        """Refuse a host or a worker that is not there."""
        if self.host:
            cluster.host(self.host)
        elif self.worker is not None and self.worker >= cluster.workers:
            raise UsageError(f"there is no worker {self.worker}: expected one from 0 to {cluster.workers - 1}")


@dataclass(frozen=True)
class Rule:
    """One statement: what happens when."""

    when: When
    actions: tuple[Action, ...]

    def __str__(self) -> str:
        return f"{self.when}: {' and '.join(map(str, self.actions))}"


@dataclass(frozen=True)
class Progress:
    """How far a run is: the last step on record, and the seconds since training began."""

    step: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """Rules in the order of the text."""

    rules: tuple[Rule, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """The schedule that `text` means; `UsageError` with the line and the statement when it means none."""
        rules = []
        for line, written in enumerate(text.splitlines(), start=1):
            for statement in filter(str.strip, written.partition("#")[0].split(";")):
                when, colon, what = statement.lower().partition(":")
                try:
                    if not colon:
                        raise UsageError("expected `WHEN: ACTION`, such as `at step 30: cut b`")
                    actions = tuple(map(Action.parse, re.split(r"\sand\s", what)))
                    rules.append(Rule(When.parse(when), actions))
                except UsageError as error:
                    raise UsageError(f"schedule, line {line}, {statement.strip()!r}: {error}") from None
        return cls(tuple(rules))

    def __str__(self) -> str:
        """One statement a line; `parse` reads it as the same schedule."""
        return "\n".join(map(str, self.rules))

    @classmethod
    def read(cls, text: str) -> Schedule:
        """As `parse`, from a file if `text` is the name of one."""
        if os.path.isfile(text):  # unlike a Path's, it takes a text that is too long to be a name
            try:  # with or without the mark that some editors begin with
                return cls.parse(Path(text).read_text(encoding="utf-8-sig"))
            except (OSError, ValueError) as error:
                raise UsageError(f"--schedule {text}: it cannot be read as text ({error})") from error
        if text.strip() and ":" not in text:
            such = "a statement such as `at step 30: cut b`"
            raise UsageError(f"--schedule {text}: there is no such file, and it is not {such}")
        return cls.parse(text)

    def check(self, cluster: Cluster) -> None:
        """Raise `UsageError` for the first host or worker that this cluster does not have."""
        for rule in self.rules:
            try:
                for action in rule.actions:
                    action.check(cluster)
            except UsageError as error:
                raise UsageError(f"schedule, '{rule}': {error}") from None

    def due(self, before: Progress, now: Progress) -> list[Action]:
        """The actions that became due after `before`, up to and with `now`, in the order in which they did.

        Steps are taken as evenly spread over the time between the two, which is all that is known of it; at an equal
        moment the order of the text counts. `every N steps` is due for each multiple that was passed. `every T s` is
        due once, at the first one: after a minute without a look, four workers must not be killed at once.

        An executor begins with the first step of the run (not 0 when it is resumed), and 0 seconds.
        """
        passed = [(moment, rule) for rule in self.rules for moment in _passed(rule.when, before, now)]
        return [action for _, rule in sorted(passed, key=lambda one: one[0]) for action in rule.actions]

    def missed(self, first: int, end: Progress) -> list[str]:
        """A sentence for each statement that never became due, in a start that went from step `first` to `end`."""
        sentences = []
        for rule in self.rules:
            if not any(True for _ in _passed(rule.when, Progress(first), end)):
                is_past = not rule.when.timed and rule.when.after(first) is None
                why = f"this start began after step {first}" if is_past else "the run ended before"
                sentences.append(f"did not happen, {why}: {rule}")
        return sentences


def choose(seed: int, count: int, candidates: Sequence[int]) -> int:
    """The candidate for the random choice of number `count`, the same on every machine and in any order of them."""
    drawn = int.from_bytes(hashlib.sha256(f"{seed} {count}".encode()).digest(), "big")
    return sorted(candidates)[drawn % len(candidates)]


def _passed(when: When, before: Progress, now: Progress) -> Iterator[float]:
    """When it became due, each as a part of the way from `before` (0) to `now` (1)."""
    start, end = (before.seconds, now.seconds) if when.timed else (before.step, now.step)
    moment = when.after(start)
    while moment is not None and moment <= end:
        yield (moment - start) / (end - start)
        moment = None if when.timed else when.after(moment)
