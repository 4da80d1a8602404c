"""A cluster as a value: hosts, each with a link to one switch and a share of the processor.

    Cluster.parse("2 x cpu=0.75 link=100mbit, 1 x cpu=0.25 link=10mbit")

gives hosts a, b and c. What is not said is not limited.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from cordee.core.errors import UsageError

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
MOST_HOSTS = 250
"""They share one network of 8 bits."""
SLOWEST_BIT_S, FASTEST_BIT_S = 8e3, 100e9
LEAST_CPU = 0.01
_RATE = re.compile(r"(\d{1,12}(?:\.\d+)?)(kbit|mbit|gbit)(?:/s)?", re.ASCII)
_COUNT = re.compile(r"[0-9]{1,6}")
_NAME = re.compile(r"[a-z][a-z0-9]{0,10}")
_KEYWORDS = {"at", "every", "step", "steps", "worker", "random", "host", "and", "net"}
"""Words of the schedule language, which a host's name would be mistaken for."""


@dataclass(frozen=True)
class Host:
    """An emulated machine."""

    name: str
    cpu: float | None = None
    """Cores' worth of processor time; None: whatever there is."""
    link: float | None = None
    """Bits per second to the switch and, at the same time, from it; None: as fast as the machine copies."""
    workers: int = 1
    """Processes that train there."""

    def __str__(self) -> str:
        """As `Cluster.parse` reads it."""
        said = [f"name={self.name}"]
        said += [f"cpu={self.cpu!r}".removesuffix(".0")] if self.cpu is not None else []
        said += [f"link={written_rate(self.link)}"] if self.link is not None else []
        said += [f"workers={self.workers}"] if self.workers != 1 else []
        return " ".join(said)


@dataclass(frozen=True)
class Cluster:
    """Hosts at one switch; the first one coordinates a run."""

    hosts: tuple[Host, ...]

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """Groups of equal hosts, separated by commas: `COUNT x KEY=VALUE ...`; `1 x` may be left out."""
        hosts: list[Host] = []
        for group in text.split(","):
            count, settings = _read_group(group, text)
            named = settings.pop("name", None)
            if named is not None and count > 1:
                raise UsageError(f"hosts {group.strip()!r}: {count} hosts cannot have one name; leave name= out")
            for _ in range(count):
                hosts.append(Host(name=str(named) if named else letters(len(hosts)), **settings))
                if len(hosts) > MOST_HOSTS:
                    raise UsageError(f"hosts {text!r}: at most {MOST_HOSTS} hosts can be emulated")
        names = [host.name for host in hosts]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(f"hosts {text!r}: {', '.join(twice)} is the name of two hosts")
        return cls(tuple(hosts))

    @classmethod
    def from_dicts(cls, hosts: list[dict[str, Any]]) -> Cluster:
        """From what `to_dicts` gave."""
        return cls(tuple(Host(**host) for host in hosts))

    def to_dicts(self) -> list[dict[str, Any]]:
        """Ready for JSON."""
        return [asdict(host) for host in self.hosts]

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
        near = difflib.get_close_matches(name, self.names, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
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
    name = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        name = chr(ord("a") + rest) + name
    return f"{name}1" if name in _KEYWORDS else name


def read_setting(key: str, text: str) -> Any:
    """The value meant by `key=text`; `max` takes a limit away. Raises `UsageError` for what a host does not have."""
    if key not in _READERS:
        near = difflib.get_close_matches(key, _READERS, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(f"{key}={text}: a host has {', '.join(_READERS)}, not {key}.{hint}")
    return _READERS[key](text)


def written_rate(rate: float | None) -> str:
    """A speed as `read_setting` reads it."""
    if rate is None:
        return "max"
    unit = next((unit for unit in ("gbit", "mbit", "kbit") if rate >= UNITS[unit]), "kbit")
    return f"{rate / UNITS[unit]:.12g}{unit}"


def _read_group(group: str, text: str) -> tuple[int, dict[str, Any]]:
    words = group.split()
    if not words:
        raise UsageError(f"hosts {text!r}: nothing between two commas; expected such as {EXAMPLE!r}")
    count = 1
    if len(words) > 1 and words[1] in ("x", "×", "*"):
        if not _COUNT.fullmatch(words[0]) or int(words[0]) < 1:
            raise UsageError(f"hosts {group.strip()!r}: {words[0]!r} x: expected how many, a whole number from 1")
        count, words = int(words[0]), words[2:]
    elif _COUNT.fullmatch(words[0]):
        if len(words) > 1:
            raise UsageError(f"hosts {group.strip()!r}: expected `{words[0]} x {words[1]} ...`")
        count, words = int(words[0]), []
    settings: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise UsageError(f"hosts {group.strip()!r}: {word!r} is not key=value; expected such as {EXAMPLE!r}")
        if key in settings:
            raise UsageError(f"hosts {group.strip()!r}: {key} is given twice")
        settings[key] = read_setting(key, value)
    if count < 1:
        raise UsageError(f"hosts {group.strip()!r}: at least 1 host is needed")
    return count, settings


def _read_cpu(text: str) -> float | None:
    if text == "max":
        return None
    try:
        cpu = float(text)
    except ValueError:
        cpu = 0.0
    if not LEAST_CPU <= cpu <= 1024:
        raise UsageError(f"cpu={text}: expected cores' worth of processor time from {LEAST_CPU}, such as 0.25, or max")
    return cpu


def _read_link(text: str) -> float | None:
    if text == "max":
        return None
    found = _RATE.fullmatch(text.lower())
    rate = float(round(float(found[1]) * UNITS[found[2]])) if found else 0.0
    if not SLOWEST_BIT_S <= rate <= FASTEST_BIT_S:
        raise UsageError(f"link={text}: expected a speed from 8kbit to 100gbit, such as 100mbit, or max")
    return rate


def _read_workers(text: str) -> int:
    if not _COUNT.fullmatch(text) or int(text) < 1:
        raise UsageError(f"workers={text}: expected a whole number from 1")
    return int(text)


def _read_name(text: str) -> str:
    if not _NAME.fullmatch(text) or text in _KEYWORDS:
        raise UsageError(
            f"name={text}: expected up to 11 small letters and digits, a letter first, no word of a schedule"
        )
    return text


EXAMPLE = "2 x cpu=0.75 link=100mbit, 1 x cpu=0.25 link=10mbit"
_READERS: dict[str, Callable[[str], Any]] = {
    "cpu": _read_cpu,
    "link": _read_link,
    "workers": _read_workers,
    "name": _read_name,
}
assert set(_READERS) == {one.name for one in fields(Host)}
