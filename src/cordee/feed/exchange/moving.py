"""`cordee.data.send` and `cordee.data.all_gather`: what `cordee data send` and `cordee data gather` do, from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from cordee.feed.exchange import gather
from cordee.feed.exchange import send as sending
from cordee.feed.exchange.access import Access

Tell = Callable[[str], None]


def _silent(text: str) -> None:
    """Say nothing."""


def send(
    path: str | os.PathLike[str],
    to: Sequence[str],
    *,
    how: str = "auto",
    name: str | None = None,
    token_file: str | Path | None = None,
    tell: Tell | None = None,
) -> sending.Sent:
    """Send a folder, a store or a file to the local disks of other hosts, each of which gets only what it lacks.

    On each host of `to`, such as `192.0.2.11:29500`, `cordee data receive FOLDER --listen HOST:PORT` waits for it;
    there it gets the name of `path`, or `name`.

    `how="broadcast"`: this host sends to each. `"chain"`: each passes on to the next what it gets, while it gets it.
    `"auto"` measures the links first and takes what is expected to be faster. A host that is lost is left out, without
    an error: look at `complete` of the result, and at its `outcomes`.

    `token_file` has the token of these hosts (`cordee token`); on this host alone none is needed. `tell` is given lines
    on how far it is.
    """
    return sending.send(Path(path), to, how=how, access=Access.of(token_file, to), name=name, tell=tell or _silent)


def all_gather(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    hosts: Sequence[str],
    here: str,
    *,
    token_file: str | Path | None = None,
    deadline_s: float = 3600.0,
    tell: Tell | None = None,
) -> gather.Gathered:
    """Give the files of `path` to all `hosts`, and take theirs, to `folder/part-00000` and so on in their order.

    Every host calls this with the same list `hosts`, such as `["192.0.2.11:29500", "192.0.2.12:29500"]`, of which
    `here` is its own. All blocks go around the ring at the same time: each host sends and receives those of every
    other one once. After an error, the same call on all hosts goes on from there. `deadline_s` is for all of it.

    `token_file` has the token of these hosts (`cordee token`); on this host alone none is needed. `tell` is given lines
    on how far it is.
    """
    access = Access.of(token_file, hosts)
    return gather.all_gather(
        Path(path), Path(folder), hosts, here, access=access, deadline_s=deadline_s, tell=tell or _silent
    )
