"""Slurm's short form of a list of hosts, such as `n[01-03,7],m1`."""

from __future__ import annotations

import re

from cordee.core.errors import UsageError


def expand_hosts(text: str) -> list[str]:
    """The hosts of `text` one by one: `n[01-03,7],m1` is n01, n02, n03, n7, m1."""
    # A comma inside brackets separates numbers, not hosts.
    items = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if not items or ",".join(items) != text:
        raise _unreadable(text)
    return [host for item in items for host in _expand(item, text)]


def _expand(item: str, text: str) -> list[str]:
    """The hosts of one item; several brackets in it multiply."""
    opened = re.match(r"([^\[]*)\[([^\]]*)\](.*)", item)
    if opened is None:
        return [item]
    before, numbers, after = opened.groups()
    endings = _expand(after, text)
    return [before + number + ending for number in _numbers(numbers, text) for ending in endings]


def _numbers(ranges: str, text: str) -> list[str]:
    """The numbers of `01-03,7`, as wide as they are written."""
    found = []
    for one in ranges.split(","):
        matched = re.fullmatch(r"(\d+)(?:-(\d+))?", one)
        if matched is None:
            raise _unreadable(text)
        first, last = matched.group(1), matched.group(2) or matched.group(1)
        found += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return found


def _unreadable(text: str) -> UsageError:
    """The error for a list that does not follow Slurm's form."""
    return UsageError(f"host list {text!r} is not understood; expected Slurm's form, such as n[01-03,7],m1.")
