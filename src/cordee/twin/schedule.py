"""The schedule of a twin: which faults and changes happen when, as text and as values.

    at step 30: cut b
    at step 60: mend b
    at 12.5 s: set b link=10mbit cpu=0.1; every 15 s: kill random worker    # two statements on one line
    at step 50: kill host b and cut c

A schedule is a list of statements `WHEN: ACTION`, separated by `;` or a new line; it may be empty. `#` begins a comment
that ends with the line. The case of the words of the language does not matter; names of hosts are taken as written.

WHEN is one of

- `at step N`, N at least 1: as soon as step N is on record;
- `at T s`, `at T ms`, `at T min`, T at least 0: so long after training began (`at 0 s`: at the first look after that);
- `every N steps`, N at least 1: at steps N, 2 N, 3 N, ...;
- `every T s` (or `ms`, or `min`), T above 0: at T, 2 T, 3 T, ... after training began.

The space before a unit may be left out (`5s`), and one step may be called a `step`.

ACTION is one of these, or several of them joined by `and`:

- `cut HOST`: the host's link carries nothing any more; `mend HOST`: it does again;
- `set HOST link=RATE cpu=SHARE`, or only one of the two: the host's link and its part of the CPUs;
- `kill worker N`, `pause worker N`, `resume worker N`: the worker of rank N, counted from 0;
- `kill random worker`, `pause random worker`: a worker that the executor takes by `choose`;
- `kill host HOST`: every process of the host.

`Schedule.parse` reads the text, and `str` writes it again. `Schedule.check` compares it with the hosts and workers that
there are. Both refuse with the line and the word, where
words are counted along the line and a colon is none.

Nothing here acts: an executor looks at the run from time to time, and does what became `due` since its last look.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cordee.core.errors import UsageError
from cordee.twin.cluster import Cluster, read_setting
from cordee.twin.rules import Action, Rule, When
from cordee.twin.statements import position, read_rules, refused


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
        """The schedule that `text` means; `UsageError` with line and word when it means none."""
        return cls(read_rules(text))

    def __str__(self) -> str:
        """One statement a line; `parse` reads it as the same schedule."""
        return "\n".join(map(str, self.rules))

    @classmethod
    def read(cls, text: str) -> Schedule:
        """As `parse`, from a file if `text` is the name of one."""
        such = "a statement such as `at step 30: cut b`"
        if os.path.isdir(text):
            raise UsageError(f"--schedule {text}: it is a folder; expected a file, or {such}")
        if not os.path.isfile(text):  # unlike a Path's, it takes a text that is too long to be a name
            looks_like_one = len(text.split()) == 1 or "/" in text
            if looks_like_one and ":" not in text and not text.lstrip().startswith("#"):
                raise UsageError(f"--schedule {text}: there is no such file, and it is not {such}")
            return cls.parse(text)
        try:  # with or without the mark that some editors begin with
            content = Path(text).read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            raise UsageError(f"--schedule {text}: it cannot be read as text ({error})") from error
        return cls.parse(content)

    def check(self, cluster: Cluster) -> None:
        """Raise `UsageError` for the first host, worker or value that this cluster does not have."""
        for rule in self.rules:
            for action in rule.actions:
                _check(action, rule.line, cluster)

    def due(self, before: Progress, now: Progress) -> list[Action]:
        """The actions that became due after `before`, up to and with `now`, in the order in which they did.

        Steps are taken as evenly spread over the time between the two, which is all that is known of it; at an equal
        moment the order of the text counts. `every N steps` is due for each multiple that was passed. `every T s` is
        due once, at the first one: after a minute without a look, four workers must not be killed at once.

        An executor begins with the first step of the run (not 0 when it is resumed), and 0 seconds.
        """
        passed = [(moment, rule) for rule in self.rules for moment in _passed(rule.when, before, now)]
        return [action for _, rule in sorted(passed, key=lambda one: one[0]) for action in rule.actions]

    def missed(self, begin: Progress, end: Progress) -> list[Rule]:
        """The rules that never became due on the way from `begin` to `end`."""
        return [rule for rule in self.rules if not any(True for _ in _passed(rule.when, begin, end))]


def choose(seed: int, count: int, candidates: Sequence[int]) -> int:
    """The candidate for the random choice of number `count`: the same on every machine, in whatever order they stand.

    An empty list of candidates is the caller's mistake (`ValueError`).
    """
    if not candidates:
        raise ValueError("choose was given no candidates")
    drawn = int.from_bytes(hashlib.sha256(f"{seed} {count}".encode()).digest(), "big")
    return sorted(candidates)[drawn % len(candidates)]


def _passed(when: When, before: Progress, now: Progress) -> Iterator[float]:
    """When it became due, each as a part of the way from `before` (0) to `now` (1)."""
    start, end = (before.seconds, now.seconds) if when.timed else (before.step, now.step)
    moment = when.after(start)
    while moment is not None and moment <= end:
        yield (moment - start) / (end - start)
        moment = None if when.timed else when.after(moment)


def _check(action: Action, line: int, cluster: Cluster) -> None:
    """Where a word of an action stands follows from its first one."""
    if not action.host:
        if action.worker is not None and action.worker >= cluster.workers:
            there = f"a worker from 0 to {cluster.workers - 1}" if cluster.workers > 1 else "worker 0, the only one"
            raise refused(position(line, action.word + 2, str(action.worker)), there)
        return
    at = action.word + (2 if action.verb == "kill" else 1)
    if action.host not in cluster.names:
        expected = f"one of the hosts {', '.join(cluster.names)}"
        raise refused(position(line, at, action.host), expected, action.host, cluster.names)
    for number, (key, text) in enumerate(action.settings, start=at + 1):
        try:
            read_setting(key, text)
        except UsageError as error:
            raise UsageError(f"{position(line, number, f'{key}={text}')}: {error}") from None
