"""The text of a schedule read as rules; what cannot be read is refused with its line and word."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, get_args

from cordee.core.errors import UsageError
from cordee.core.words import did_you_mean
from cordee.twin.rules import Action, Rule, Verb, When

_SETTINGS = ("link", "cpu")
"""What `set` changes; how a value is written is the cluster's affair."""
_VERBS: dict[str, Verb] = {verb: verb for verb in get_args(Verb)}
_UNITS = {"s": (1, 1), "ms": (1, 1000), "min": (60, 1)}
_QUANTITY = re.compile(r"(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(?P<unit>[a-z]*)", re.ASCII | re.IGNORECASE)
_HOST = re.compile(r"(?!and$)[a-z0-9][a-z0-9_.-]*", re.IGNORECASE | re.ASCII)
_WHOLE = re.compile(r"[0-9]{1,15}")
_MOST = 10**15 - 1


def read_rules(text: str) -> tuple[Rule, ...]:
    """The rules that `text` means; `UsageError` for the first word that does not belong where it stands."""
    return tuple(_rule(words) for words in statements(text))


def position(line: int, number: int, text: str) -> str:
    """Where a word stands, for messages; line 0 is that of a value which no text was read for."""
    return f"schedule, line {line}, word {number} {text!r}" if line else f"schedule, {text!r}"


def refused(where: str, expected: str, given: str = "", known: Sequence[str] = ()) -> UsageError:
    """The error for what does not belong there, with the nearest of the `known` words if `given` is nearly one."""
    return UsageError(f"{where}: expected {expected}.{did_you_mean(given.lower(), known)}")


class Word(NamedTuple):
    """A word, a colon, or the end of a statement (which is empty)."""

    text: str
    line: int
    number: int
    """Counted along the line, from 1; a colon and an end count as the word before them."""
    where: str

    @property
    def key(self) -> str:
        """The word as one of the language, where case does not matter."""
        return self.text.lower()

    def refused(self, expected: str) -> UsageError:
        """The error that something else was expected here."""
        return refused(self.where, expected)

    def one_of(self, known: Sequence[str]) -> str:
        """The one of the `known` words that this is."""
        if self.key not in known:
            expected = f"one of {', '.join(known)}" if len(known) > 1 else known[0]
            raise refused(self.where, expected, self.text, known)
        return self.key

    def whole(self, least: int, meaning: str) -> int:
        """The whole number of at least `least` that this is."""
        if re.fullmatch(r"[0-9]+", self.text) and not _WHOLE.fullmatch(self.text):
            raise self.refused(f"{meaning}, a whole number from {least} to {_MOST}")
        if not _WHOLE.fullmatch(self.text) or int(self.text) < least:
            raise self.refused(f"{meaning}, a whole number of at least {least}")
        return int(self.text)


Statement = deque[Word]
"""The words that are left of a statement, and its end, which stays."""


def _take(words: Statement) -> Word:
    return words.popleft() if len(words) > 1 else words[0]


def statements(text: str) -> Iterator[Statement]:
    """What stands between `;` and new lines, without comments; empty ones are left out."""
    for line, written in enumerate(text.split("\n"), start=1):
        number, before = 0, f"schedule, line {line}, at its beginning"
        for part in written.partition("#")[0].split(";"):
            words = []
            for word in re.findall(r":|[^\s:]+", part):
                where = before
                if word != ":":
                    number += 1
                    where, before = position(line, number, word), f"schedule, line {line}, after word {number} {word!r}"
                words.append(Word(word, line, number, where))
            if words:
                yield deque([*words, Word("", line, number, before)])


def _rule(words: Statement) -> Rule:
    when = _when(words)
    colon = _take(words)
    if colon.text != ":":
        raise colon.refused("':' between when and what")
    actions = [_action(words)]
    while (word := _take(words)).key == "and":
        actions.append(_action(words))
    if word.text:
        raise word.refused("'and' with another action, or ';' or a new line before the next statement")
    return Rule(when, tuple(actions), colon.line)


def _when(words: Statement) -> When:
    every = _take(words).one_of(("at", "every")) == "every"
    word = _take(words)
    if word.key == "step" and not every:
        return When(_take(words).whole(1, "the number of a step"))
    quantity = _QUANTITY.fullmatch(word.text)
    if quantity is None:
        raise word.refused(
            "steps or a time, such as 20 steps or 15 s" if every else "a step or a time, such as step 30 or 12.5 s"
        )
    number = quantity["number"]
    unit = word._replace(text=quantity["unit"]) if quantity["unit"] else _take(words)
    if unit.text in ("", ":"):
        steps = f"{number} steps" if every else f"step {number}"
        raise UsageError(f"{word.where}: the unit is missing. Say '{number} s' for seconds, or '{steps}'.")
    if every and unit.key in ("step", "steps"):
        return When(word._replace(text=number).whole(1, "a number of steps"), every=True)
    if unit.key not in _UNITS:
        other = f"steps, {', '.join(_UNITS)}" if every else f"{', '.join(_UNITS)}, or 'step {number}' for a step"
        raise unit.refused(f"a unit: {other}")
    times, parts = _UNITS[unit.key]
    seconds = float(number) * times / parts
    if not math.isfinite(seconds) or number.startswith("-") or (every and seconds == 0):
        least = "above 0" if every else "of at least 0, counted from when training began"
        raise word.refused(f"a finite time {least}")
    return When(seconds, True, every)


def _action(words: Statement) -> Action:
    first = _take(words)
    verb = _VERBS[first.one_of(tuple(_VERBS))]
    if verb in ("cut", "mend", "set"):
        return Action(verb, _host(words), settings=_settings(words) if verb == "set" else (), word=first.number)
    word = _take(words)
    if word.key == "host" and verb == "kill":
        return Action(verb, _host(words), word=first.number)
    if word.key == "random" and verb != "resume":
        _take(words).one_of(("worker",))
        return Action(verb, word=first.number)
    if word.key != "worker":
        others = {"kill": ", random worker or host NAME", "pause": " or random worker"}.get(verb, "")
        raise word.refused(f"worker N{others}, such as {verb} worker 2")
    return Action(verb, worker=_take(words).whole(0, "the number of a worker"), word=first.number)


def _host(words: Statement) -> str:
    word = _take(words)
    if not _HOST.fullmatch(word.text):
        raise word.refused("the name of a host")
    return word.text


def _settings(words: Statement) -> tuple[tuple[str, str], ...]:
    settings: dict[str, str] = {}
    while words[0].text and words[0].key != "and":
        word = _take(words)
        key, equals, text = word.text.partition("=")
        if not equals or not text:
            raise word.refused("key=value without spaces, such as link=10mbit")
        key = word._replace(text=key).one_of(_SETTINGS)
        if key in settings:
            raise UsageError(f"{word.where}: {key} is given twice. Keep one of them.")
        settings[key] = text
    if not settings:
        raise words[0].refused("what to set, such as link=10mbit or cpu=0.1")
    return tuple(settings.items())
