"""A cluster as a value: hosts, each with a link to one switch and a share of the processor.

    Cluster.parse("2 x cpu=0.75 link=100mbit, 1 x cpu=0.25 link=10mbit")

gives hosts a, b and c. What is not said is not limited.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count, islice, product
from string import ascii_lowercase
from typing import Any

from cordee.core.errors import UsageError
from cordee.core.words import did_you_mean

EXAMPLE = "2 x cpu=0.75 link=100mbit, 1 x cpu=0.25 link=10mbit"
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
MOST_HOSTS = 250
"""They share one network of 8 bits."""
SLOWEST_BIT_S, FASTEST_BIT_S = 100e3, 100e9
"""A full queue at a slower link delays heartbeats beyond the 3 s that others wait. Measured: 2 s at 100 kbit, 3 s at
64 kbit, 6 s at 32 kbit."""
_GROUP = re.compile(r"(?:(\d{1,6})\s*(?:[x×*]|$))?(.*)", re.ASCII)
_RATE = re.compile(r"(\d{1,12}(?:\.\d+)?)(kbit|mbit|gbit)(?:/s)?", re.ASCII | re.IGNORECASE)
_CPU = re.compile(r"\d{1,12}(?:\.\d+)?|\.\d+", re.ASCII)
_COUNT = re.compile(r"[0-9]{1,6}")
_NAME = re.compile(r"(?!(?:and|localhost|localdomain|loopback)$)[a-z][a-z0-9]{0,10}")
"""No word between two actions of a schedule, and no name by which every machine calls itself."""


@dataclass(frozen=True)
class Host:
    """An emulated machine."""

    name: str
    cpu: float | None = None
    """Cores' worth of processor time; None: no limit."""
    link: float | None = None
    """Bits per second to the switch and, at the same time, from it; None: as fast as the machine copies."""
    workers: int = 1
    """Processes that train there; 0: it only holds parameters."""

    def __str__(self) -> str:
        """As `Cluster.parse` reads it."""
        words = {
            "name": self.name,
            "cpu": f"{self.cpu!r}".removesuffix(".0") if self.cpu is not None else None,
            "link": written_rate(self.link) if self.link is not None else None,
            "workers": self.workers if self.workers != 1 else None,
        }
        return " ".join(f"{key}={text}" for key, text in words.items() if text is not None)


@dataclass(frozen=True)
class Cluster:
    """Hosts at one switch; the first one coordinates a run."""

    hosts: tuple[Host, ...]

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """Groups of equal hosts, separated by commas: `COUNT x KEY=VALUE ...`; `1 x` may be left out."""
        hosts: list[Host] = []
        for group in text.split(","):
            number, settings = _read_group(group, text)
            if "name" in settings and number > 1:
                raise UsageError(f"hosts {group.strip()!r}: {number} hosts cannot have one name; leave name= out")
            if len(hosts) + number > MOST_HOSTS:
                raise UsageError(f"hosts {text!r}: at most {MOST_HOSTS} hosts can be emulated")
            hosts += [Host(**{"name": "", **settings})] * number
        names = [host.name for host in hosts if host.name]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(f"hosts {text!r}: {', '.join(twice)} is the name of two hosts")
        if not any(host.workers for host in hosts):
            raise UsageError(f"hosts {text!r}: no host has workers, so none would train; leave out a workers=0")
        return cls(tuple(_named(hosts)))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the hosts, in order."""
        return tuple(host.name for host in self.hosts)

    @property
    def workers(self) -> int:
        """Of all hosts together."""
        return sum(host.workers for host in self.hosts)

    def host(self, name: str) -> Host:
        """The host of this name."""
        for host in self.hosts:
            if host.name == name:
                return host
        hint = did_you_mean(name, self.names)
        raise UsageError(f"there is no host {name!r}; the hosts are {', '.join(self.names)}.{hint}")

    def changed(self, name: str, settings: Mapping[str, Any]) -> Cluster:
        """The same cluster with other settings of one host."""
        new = replace(self.host(name), **settings)
        return Cluster(tuple(new if host.name == name else host for host in self.hosts))

    def __str__(self) -> str:
        """As `parse` reads it."""
        return ", ".join(map(str, self.hosts))


def letters(number: int) -> str:
    """The name of the host of this number: a, b, ..., z, aa, ab, ..."""
    names = ("".join(word) for length in count(1) for word in product(ascii_lowercase, repeat=length))
    return next(islice(names, number, None))


def read_setting(key: str, text: str) -> Any:
    """The value meant by `key=text`; `max` removes a limit. Raises `UsageError` for what a host does not have."""
    if key not in _KEYS:
        raise UsageError(f"{key}={text}: a host has {', '.join(_KEYS)}, not {key}.{did_you_mean(key, _KEYS)}")
    if text == "max" and key in ("cpu", "link"):
        return None
    pattern, convert, bounds, expected = _KEYS[key]
    value = convert(text) if pattern.fullmatch(text) else None
    if value is None or (bounds and not bounds[0] <= value <= bounds[1]):
        raise UsageError(f"{key}={text}: expected {expected}")
    return value


def _to_rate(text: str) -> float:
    number, unit = _RATE.fullmatch(text.lower()).groups()  # type: ignore[union-attr]
    return float(round(float(number) * UNITS[unit]))


_KEYS: dict[str, tuple[re.Pattern[str], Callable[[str], Any], tuple[float, float] | None, str]] = {
    "cpu": (_CPU, float, (0.01, 1024), "cores' worth of processor time from 0.01 to 1024, such as 0.5, or max"),
    "link": (
        _RATE,
        _to_rate,
        (SLOWEST_BIT_S, FASTEST_BIT_S),
        "a speed from 100kbit to 100gbit, such as 100mbit, or max; on slower links heartbeats come too late",
    ),
    "workers": (_COUNT, int, (0, 4096), "a whole number from 0 to 4096"),
    "name": (_NAME, str, None, "up to 11 small letters and digits, a letter first, not `and` or a name of loopback"),
}
"""How the value of each key is written, what it is, its bounds, and all that in words."""


def written_rate(rate: float | None) -> str:
    """A speed as `read_setting` reads it."""
    if rate is None:
        return "max"
    unit = next((unit for unit in ("gbit", "mbit", "kbit") if rate >= UNITS[unit]), "kbit")
    return f"{rate / UNITS[unit]:.12g}{unit}"


def _named(hosts: list[Host]) -> Iterator[Host]:
    """Those without a name get the letter of their place, or the next one that is free."""
    taken = {host.name for host in hosts}
    for place, host in enumerate(hosts):
        name = host.name or next(free for number in count(place) if (free := letters(number)) not in taken)
        taken.add(name)
        yield replace(host, name=name)


def _read_group(group: str, text: str) -> tuple[int, dict[str, Any]]:
    """How many hosts, and their settings."""
    number, words = _GROUP.fullmatch(group.strip()).groups()  # type: ignore[union-attr]
    if number is None and not words:
        raise UsageError(f"hosts {text!r}: a host is missing; expected such as {EXAMPLE!r}")
    if number is not None and int(number) < 1:
        raise UsageError(f"hosts {group.strip()!r}: expected how many, a whole number from 1")
    settings: dict[str, Any] = {}
    for word in words.split():
        key, _, value = word.partition("=")
        if not value or key in settings:
            why = f"{key} is given twice" if value else f"{word!r} is not key=value; expected such as {EXAMPLE!r}"
            raise UsageError(f"hosts {group.strip()!r}: {why}")
        settings[key] = read_setting(key, value)
    return int(number or 1), settings
