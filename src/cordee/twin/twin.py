"""A twin that is up: its network, its quotas, its processes, and what can be done to them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cordee.core.errors import CordeeError, UsageError
from cordee.group.token import write_token
from cordee.twin import network
from cordee.twin.cluster import Cluster
from cordee.twin.enter import TIED, mark_of
from cordee.twin.quota import Quotas, end_all, marked
from cordee.twin.registry import Entry, Owner, Registry

_ENDING_S = 15.0


def missing() -> list[str]:
    """What hosts with links of their own would need and this machine does not have."""
    found = []
    if os.geteuid() != 0:
        found.append("this user is not root, who alone may make network namespaces (sudo cordee twin ...)")
    absent = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if absent:
        found.append(f"the program{'s' * (len(absent) > 1)} {' and '.join(absent)} (install iproute2)")
    return found


class Twin:
    """A cluster on this machine."""

    def __init__(self, entry: Entry, registry: Registry) -> None:
        """Of something that is on record."""
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
            lacking = [] if processes else missing()
            if lacking:
                raise UsageError(f"hosts with links cannot be made here: {'; '.join(lacking)}. {_instead(cluster)}")
            twin = cls(registry.add(name, cluster, Owner.me(), namespaces=not processes), registry)
            try:
                twin._make()
                if stays:  # not before it is whole: what a killed one leaves is swept
                    twin._keep(replace(twin.entry, owner=None))
            except BaseException as error:
                twin._remove()
                if isinstance(error, network.NetworkError):
                    raise UsageError(f"hosts with links cannot be made here: {error}. {_instead(cluster)}") from error
                raise
        return twin

    @property
    def name(self) -> str:
        """What it is called."""
        return self.entry.name

    @property
    def cluster(self) -> Cluster:
        """As it is now."""
        return self.entry.cluster

    def down(self) -> None:
        """End everything that runs there, and remove it."""
        with self._registry.locked():
            self._remove()

    # ------------------------------------------------------------- what runs there

    def command(self, host: str, command: Sequence[str], *, tied: bool = True) -> list[str]:
        """What to start so that `command` runs on `host`; `tied`: it ends with this process."""
        name = self.cluster.host(host).name
        group = self._quotas.folder(name)
        space = str(network.NAMESPACES / network.namespace_of(self.name, name)) if self.entry.namespaces else ""
        entering = [space, name, str(self.entry.hosts_file), str(group) if group and group.exists() else ""]
        flags = [f"{TIED}{os.getpid()}"] if tied else []
        return [sys.executable, "-m", "cordee.twin.enter", *entering, *flags, "--", *command]

    def processes(self, host: str) -> list[int]:
        """What runs on a host."""
        found = set(self._quotas.processes(host))
        if self.entry.namespaces and shutil.which("ip"):
            said = subprocess.run(
                ["ip", "netns", "pids", network.namespace_of(self.name, host)],
                capture_output=True,
                text=True,
                timeout=network.COMMAND_S,
                check=False,
            )
            found |= {int(word) for word in said.stdout.split()}
        elif not self.entry.namespaces:
            found |= marked(mark_of(self.entry.hosts_file, host))
        return sorted(found)

    def end_processes(self, host: str) -> None:
        """End everything on a host at once, as if it had lost its power."""
        deadline = time.monotonic() + _ENDING_S
        while pids := self.processes(host):
            end_all(pids)
            if time.monotonic() > deadline:
                raise CordeeError(f"processes {pids} of host {host} do not end")
            time.sleep(0.01)

    # ------------------------------------------------------------- what can be done to it

    def set(self, host: str, settings: Mapping[str, Any]) -> None:
        """Change a host's link or CPU share, while it works."""
        if odd := sorted(set(settings) - {"link", "cpu"}):
            raise UsageError(f"{', '.join(odd)} of a host cannot be changed while it is up; link and cpu can")
        changed = self.cluster.changed(host, settings)
        for key in settings:
            self._needs(key)
        if "cpu" in settings:
            self._quotas.limit(host, settings["cpu"])
        if "link" in settings:
            network.execute(network.limiting(self.name, changed.host(host)))
        self._keep(replace(self.entry, cluster=changed))

    def cut(self, host: str) -> None:
        """Nothing goes to or from this host any more; its connections do not know it."""
        self._needs("link")
        network.execute(network.cutting(self.name, self.cluster.host(host).name))

    def mend(self, host: str) -> None:
        """Put the cable back."""
        self._needs("link")
        network.execute(network.mending(self.name, self.cluster.host(host).name))

    def lacking(self, what: str) -> str:
        """Why its hosts have no `link`, or no `cpu`, that could be changed; empty if they have."""
        if what == "cpu":
            return self._quotas.missing
        return "" if self.entry.namespaces else f"the hosts of twin {self.name} are mere processes, without links"

    def _needs(self, what: str) -> None:
        if why := self.lacking(what):
            raise UsageError(f"{'no CPU share' if what == 'cpu' else 'no link'} can be changed: {why}")

    def _keep(self, entry: Entry) -> None:
        self.entry = entry
        self._registry.keep(entry)

    # ------------------------------------------------------------- making and removing

    def _make(self) -> None:
        write_token(self.entry.token_file)
        self.entry.hosts_file.write_text(network.hosts_file(self.cluster))
        if self.entry.namespaces:
            network.execute(network.making(self.name, self.cluster))
        for host in self.cluster.hosts:
            if not self._quotas.missing:
                self._quotas.make(host.name, host.cpu)
            elif host.cpu is not None:
                raise UsageError(f"host {host.name} cannot have cpu={host.cpu:g}: {self._quotas.missing}. Leave it out")
            if host.link is not None and not self.entry.namespaces:
                raise UsageError(f"host {host.name} cannot have a link: it is a mere process. Leave link= out")

    def _remove(self) -> None:
        for host in self.cluster.names:
            self.end_processes(host)
        if self.entry.namespaces:
            network.execute(network.removing(self.name, self.cluster.names), check=False)
        for host in self.cluster.names:
            self._quotas.remove(host)
        self._registry.remove(self.entry)


def sweep(registry: Registry) -> list[str]:
    """Remove what twins have left whose owners are gone; the registry is locked. Returns their names."""
    swept = []
    for entry in registry.entries():
        if entry.owner is not None and not entry.owner.alive:
            with contextlib.suppress(CordeeError):  # what cannot be removed now stays on record
                Twin(entry, registry)._remove()
                swept.append(entry.name)
    return swept


def _instead(cluster: Cluster) -> str:
    """What is possible without links."""
    quotas = not Quotas("x").missing
    what = "processes with a CPU share each" if quotas else "mere processes, without CPU shares"
    beyond = ["link="] if any(host.link is not None for host in cluster.hosts) else []
    beyond += ["cpu="] if not quotas and any(host.cpu is not None for host in cluster.hosts) else []
    once = f", once {' and '.join(beyond)} {'are' if len(beyond) > 1 else 'is'} left out" if beyond else ""
    return f"What is possible{once}: hosts that are {what}, and no limits on links: --processes"
