"""A twin that is up: its network, its quotas, its processes, and what can be done to them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from cordee.core import interrupts
from cordee.core.errors import CordeeError, Interrupted, UsageError
from cordee.group.token import write_token
from cordee.twin import enter, network
from cordee.twin.cluster import Cluster
from cordee.twin.processes import end_until_none, inhabitants, marked
from cordee.twin.quota import Quotas
from cordee.twin.registry import Entry, Registry

_INSTEAD = "hosts with links cannot be made here: {}. What is possible: --processes, and hosts without link="


def missing() -> list[str]:
    """What hosts with links of their own would need and this machine does not have."""
    reasons = []
    if os.geteuid() != 0:
        reasons.append("this user is not root, who alone may make network namespaces (sudo cordee twin ...)")
    if absent := [program for program in ("ip", "tc") if shutil.which(program) is None]:
        reasons.append(f"{' and '.join(absent)} missing (install iproute2)")
    return reasons


class Twin:
    """A cluster on this machine."""

    def __init__(self, entry: Entry, registry: Registry) -> None:
        """Of a record."""
        self.entry, self._registry = entry, registry
        self._quotas = Quotas(entry.name)

    @classmethod
    def up(
        cls,
        cluster: Cluster,
        registry: Registry,
        *,
        name: str | None = None,
        stays: bool = False,
        processes: bool = False,
    ) -> Twin:
        """Make it. It ends with this process unless it `stays`. `processes`: without namespaces and links."""
        with registry.locked():
            sweep(registry)
            if lacking := [] if processes else missing():
                raise UsageError(_INSTEAD.format("; ".join(lacking)))
            twin = None
            try:
                with interrupts.held():  # once it is on record, a command can remove it
                    twin = cls(registry.add(name, cluster, namespaces=not processes), registry)
                twin._make()
                if stays:  # not before it is whole: what a killed maker leaves is swept
                    twin._write(stays=True)
            except BaseException as error:
                with contextlib.suppress(CordeeError):  # what cannot be removed now stays on record
                    if twin is not None:
                        twin._remove()
                if isinstance(error, network.NetworkError):
                    raise UsageError(_INSTEAD.format(error)) from error
                raise
        return twin

    @classmethod
    def all(cls, registry: Registry) -> list[Twin]:
        """All that are up, after abandoned ones were removed."""
        with registry.locked():
            sweep(registry)
            return [cls(entry, registry) for entry in registry.entries()]

    @classmethod
    def find(cls, name: str | None) -> Twin:
        """The twin of this name that is up; without a name, the only one."""
        registry = Registry()
        with registry.locked():
            sweep(registry)
            return cls(registry.find(name), registry)

    @property
    def name(self) -> str:
        """Its name on this machine."""
        return self.entry.name

    @property
    def cluster(self) -> Cluster:
        """As it is now."""
        return self.entry.cluster

    def down(self) -> None:
        """End everything that runs there, and remove it; `CordeeError` if something of it stays, with its record."""
        with self._registry.locked():
            self._remove()

    def command(self, host: str, command: Sequence[str], *, tied: bool = True) -> list[str]:
        """What to start so that `command` runs on `host`; `tied`: it ends with this process."""
        name = self.cluster.host(host).name
        group = self._quotas.group(name)
        space = str(network.NAMESPACES / network.namespace_of(self.name, name)) if self.entry.namespaces else ""
        entering = [space, name, str(self.entry.hosts_file), str(group) if group else ""]
        flags = [f"{enter.TIED}{os.getpid()}"] if tied else []
        # Isolated, and by its path: as root it must not take modules from the current folder.
        return [sys.executable, "-I", enter.__file__, *entering, *flags, "--", *command]

    def processes(self, host: str) -> list[int]:
        """The processes of a host."""
        pids = set(self._quotas.processes(host))
        if self.entry.namespaces:
            space = network.namespace_of(self.name, host)
            return sorted(pids | inhabitants([number for name, number in self._spaces().items() if name == space]))
        return sorted(pids | marked(enter.mark_of(self.entry.hosts_file, host)))

    def end_processes(self, host: str) -> None:
        """End everything on a host at once, as if it had lost its power."""
        end_until_none(lambda: self.processes(host), f"of host {host}")

    def set(self, host: str, settings: Mapping[str, Any]) -> None:
        """Change a host's link or CPU share (keys `link`, `cpu`), while it works."""
        with self._registry.locked():
            # Read again: what another command has changed meanwhile, of another host, stays so.
            self.entry = self._registry.find(self.name)
            self.cluster.host(host)
            for key in settings:
                self._needs(key)
            for key, value in settings.items():
                changed = self.cluster.changed(host, {key: value})
                if key == "cpu":
                    try:
                        self._quotas.limit(host, value)
                    except CordeeError:  # it keeps the share that it had
                        with _tolerated():
                            self._quotas.limit(host, self.cluster.host(host).cpu)
                        raise
                else:
                    network.execute(network.commands_to_limit(self.name, changed.host(host)))
                self._write(cluster=changed)

    def plug(self, host: str, state: Literal["up", "down"]) -> None:
        """Pull a host's cable (down), of which its connections are not told, or put it back (up)."""
        self._needs("link")
        network.execute(network.commands_to_plug(self.name, self.cluster.host(host).name, state))

    def lacking(self, what: str) -> str:
        """Why its hosts have no `link`, or no `cpu`, that could be changed; empty if they have."""
        if what == "cpu":
            return self._quotas.missing
        return "" if self.entry.namespaces else f"the hosts of twin {self.name} are mere processes, without links"

    def _needs(self, what: str) -> None:
        if why := self.lacking(what):
            raise UsageError(f"{'no CPU share' if what == 'cpu' else 'no link'} can be changed: {why}")

    def _write(self, **changes: Any) -> None:
        """Change its record."""
        self.entry = replace(self.entry, **changes)
        self.entry.write()

    def _make(self) -> None:
        write_token(self.entry.token_file)
        self.entry.hosts_file.write_text(network.hosts_file(self.cluster))
        if self.entry.namespaces:
            network.execute(network.commands_to_make(self.name, self.cluster))
        elif linked := [host.name for host in self.cluster.hosts if host.link is not None]:
            raise UsageError(f"host {linked[0]} cannot have a link: it is a mere process. Leave link= out")
        for host in self.cluster.hosts:
            if host.cpu is not None and self._quotas.missing:
                raise UsageError(f"host {host.name} cannot have cpu={host.cpu:g}: {self._quotas.missing}. Leave it out")
            # A group without a quota helps to find processes, but a twin can do without it.
            with contextlib.nullcontext() if host.cpu is not None else _tolerated():
                self._quotas.make(host.name, host.cpu)

    def _spaces(self) -> dict[str, tuple[int, int]]:
        """Its namespaces that exist. Mere processes have none: those of this name are another user's."""
        return network.namespaces(self.name) if self.entry.namespaces else {}

    def _remove(self) -> None:
        numbers = self._spaces()

        def everything() -> set[int]:
            # By number too: a process that comes while it is removed is in a namespace that has no name any more.
            return inhabitants(numbers.values()).union(*map(self.processes, self.cluster.names))

        if os.getpid() in everything():
            raise UsageError(f"this command runs on a host of twin {self.name} and would end itself: give it outside")
        if self.entry.stays and self.entry.folder.exists():
            self._write(stays=False)  # if we are killed on the way, or fail, the next command removes the rest
        for host in self.cluster.names:
            self.end_processes(host)
        removing = network.commands_to_remove(self.name, self.cluster.names) if self.entry.namespaces else []
        failures = network.execute(removing, check=False)
        end_until_none(everything, f"of twin {self.name}")
        for host in self.cluster.names:
            self._quotas.remove(host)
        if left := [*sorted(self._spaces()), *map(str, self._quotas.left())]:
            why = "; ".join(list(dict.fromkeys(failures))[:3]) or "they are not those of its record"
            raise CordeeError(f"twin {self.name} is not gone: {', '.join(left)} could not be removed ({why})")
        self._registry.remove(self.entry)


@contextlib.contextmanager
def chosen(hosts: str | None, name: str | None, processes: bool, check: Callable[[Cluster], None]) -> Iterator[Twin]:
    """A twin that is up, or a new one of these hosts for as long as this lasts; `check` refuses what does not fit."""
    if hosts is not None:
        check(Cluster.parse(hosts))
        if name is not None:
            raise UsageError("--hosts makes a new twin, --name takes one that is up: give one of them")
    with interrupts.handled(_stop):
        twin = Twin.find(name) if hosts is None else Twin.up(Cluster.parse(hosts), Registry(), processes=processes)
        try:
            check(twin.cluster)
            yield twin
        finally:
            if hosts is not None:
                with interrupts.handled(lambda number, frame: None):  # it takes a moment, and is what was asked for
                    twin.down()


def _stop(number: int, frame: object) -> None:
    """By an error, so that what was made is removed on the way out."""
    raise Interrupted(f"stopped by {signal.Signals(number).name}")


def sweep(registry: Registry) -> list[str]:
    """Remove twins whose owners have ended; the registry is locked. Returns their names."""
    swept = []
    for entry in registry.entries():
        if entry.abandoned:
            with _tolerated():  # what cannot be removed now stays on record
                Twin(entry, registry)._remove()
                swept.append(entry.name)
    return swept


@contextlib.contextmanager
def _tolerated() -> Iterator[None]:
    """What fails here does no harm, but a signal to end is obeyed."""
    try:
        yield
    except Interrupted:
        raise
    except CordeeError:
        pass
