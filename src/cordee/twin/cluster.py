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

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
MOST_HOSTS = 250
"""They share one network of 8 bits."""
SLOWEST_BIT_S, FASTEST_BIT_S = 100e3, 100e9
"""A full queue at a slower link delays heartbeats beyond the 3 s that others wait. Measured: 2 s at 100 kbit, 3 s at
64 kbit, 6 s at 32 kbit."""
LEAST_CPU, MOST_CPU = 0.01, 1024
MOST_WORKERS = 4096
"""Of a host: more than that is a typing error, and would fill the machine with processes."""
_RATE = re.compile(r"(\d{1,12}(?:\.\d+)?)(kbit|mbit|gbit)(?:/s)?", re.ASCII)
_CPU = re.compile(r"\d{1,12}(?:\.\d+)?|\.\d+", re.ASCII)
_COUNT = re.compile(r"[0-9]{1,6}")
_NAME = re.compile(r"[a-z][a-z0-9]{0,10}")
_KEYWORDS = {"at", "every", "step", "steps", "worker", "random", "host", "and", "net"}
"""Words of the schedule language, which a host's name would be mistaken for."""
_LOOPBACK = {"localhost", "localdomain", "loopback"}
"""Names by which every machine calls itself: a host of such a name would never be reached by the others."""


@dataclass(frozen=True)
class Host:
    """An emulated machine."""

    name: str
    cpu: float | None = None
    """Cores' worth of processor time; None: no limit."""
    link: float | None = None
    """Bits per second to the switch and, at the same time, from it; None: as fast as the machine copies."""
    workers: int = 1
    """Processes that train there."""

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
    name = next(islice(names, number, None))
    return f"{name}1" if name in _KEYWORDS else name


def read_setting(key: str, text: str) -> Any:
    """The value meant by `key=text`; `max` removes a limit. Raises `UsageError` for what a host does not have."""
    if key not in _READERS:
        hint = did_you_mean(key, _READERS)
        raise UsageError(f"{key}={text}: a host has {', '.join(_READERS)}, not {key}.{hint}")
    try:
        return _READERS[key](text)
    except ValueError as error:
        raise UsageError(f"{key}={text}: {error}") from None


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
    words = group.split()
    where = f"hosts {group.strip()!r}"
    if not words:
        what = "nothing between two commas" if text.strip() else "at least 1 host is needed"
        raise UsageError(f"hosts {text!r}: {what}; expected such as {EXAMPLE!r}")
    if len(words) > 1 and words[1] not in ("x", "×", "*") and _COUNT.fullmatch(words[0]):
        raise UsageError(f"{where}: expected `{words[0]} x {words[1]} ...`")
    number = 1
    if _COUNT.fullmatch(words[0]) or words[1:2] in (["x"], ["×"], ["*"]):
        if not _COUNT.fullmatch(words[0]) or int(words[0]) < 1:
            raise UsageError(f"{where}: {words[0]!r} x: expected how many, a whole number from 1")
        number, words = int(words[0]), words[2:]
    settings: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        if not value:
            raise UsageError(f"{where}: {word!r} is not key=value; expected such as {EXAMPLE!r}")
        if key in settings:
            raise UsageError(f"{where}: {key} is given twice")
        settings[key] = read_setting(key, value)
    return number, settings


def _read_cpu(text: str) -> float | None:
    if text == "max":
        return None
    if not _CPU.fullmatch(text) or not LEAST_CPU <= float(text) <= MOST_CPU:
        raise ValueError(f"expected cores' worth of processor time from {LEAST_CPU} to {MOST_CPU}, such as 0.5, or max")
    return float(text)


def _read_link(text: str) -> float | None:
    if text == "max":
        return None
    match = _RATE.fullmatch(text.lower())
    rate = float(round(float(match[1]) * UNITS[match[2]])) if match else 0.0
    if not SLOWEST_BIT_S <= rate <= FASTEST_BIT_S:
        late = ". Queued behind data on a slower link, heartbeats come too late" if 0 < rate < SLOWEST_BIT_S else ""
        raise ValueError(f"expected a speed from 100kbit to 100gbit, such as 100mbit, or max{late}")
    return rate


def _read_workers(text: str) -> int:
    if not _COUNT.fullmatch(text) or not 1 <= int(text) <= MOST_WORKERS:
        raise ValueError(f"expected a whole number from 1 to {MOST_WORKERS}")
    return int(text)


def _read_name(text: str) -> str:
    if not _NAME.fullmatch(text) or text in _KEYWORDS:
        raise ValueError("expected up to 11 small letters and digits, a letter first, no word of a schedule")
    if text in _LOOPBACK:
        raise ValueError("every host calls itself by this name, so that no other host is reached by it")
    return text


EXAMPLE = "2 x cpu=0.75 link=100mbit, 1 x cpu=0.25 link=10mbit"
_READERS: dict[str, Callable[[str], Any]] = {
    "cpu": _read_cpu,
    "link": _read_link,
    "workers": _read_workers,
    "name": _read_name,
}
