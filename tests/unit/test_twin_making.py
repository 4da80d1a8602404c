"""What a twin needs in order to be made, and what it can do without."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from cordee.cli.twin import down
from cordee.core.errors import CordeeError, Interrupted, UsageError
from cordee.twin.cluster import Cluster
from cordee.twin.quota import Quotas
from cordee.twin.registry import Registry
from cordee.twin.twin import Twin

TREE = {
    "proc/self/cgroup": "0::/\n",
}


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "twins")


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where twins of this test find control groups of version 2: in a tree of plain files."""
    for name, content in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    mount = tmp_path / "sys/fs/cgroup"
    mount.mkdir(parents=True)
    monkeypatch.setattr("cordee.twin.twin.Quotas", lambda name: Quotas(name, tmp_path))
    return mount


@pytest.mark.parametrize(
    ("controllers", "why"),
    [
        ("memory", "host a cannot have cpu=0.5: the cpu controller is not available below .*cgroup. Leave it out"),
        ("memory cpu", "cordee-.*-a cannot be made: No such file"),  # it is not to be passed on to groups below
    ],
)
def test_control_groups_matter_only_to_hosts_with_a_share(
    registry: Registry, mount: Path, controllers: str, why: str
) -> None:
    (mount / "cgroup.controllers").write_text(controllers)
    made = Twin.up(Cluster.parse("2"), registry, processes=True)
    try:
        assert [one.name for one in registry.entries()] == [made.name]
        with pytest.raises(
            CordeeError, match=r"host a has no CPU share|no CPU share can be changed: the cpu controller"
        ):
            made.set("a", {"cpu": 0.5})
        with pytest.raises(CordeeError, match=why):
            Twin.up(Cluster.parse("cpu=0.5"), registry, processes=True)
        assert [one.name for one in registry.entries()] == [made.name], "nothing is left of the one that was refused"
    finally:
        made.down()
    assert registry.entries() == []


def test_all_twins_are_those_that_are_left_after_sweeping(registry: Registry) -> None:
    lost, stays = f"u{secrets.token_hex(4)}", f"u{secrets.token_hex(4)}"
    with registry.locked():
        registry.disown(registry.add(lost, Cluster.parse("1"), namespaces=False))
        registry.add(stays, Cluster.parse("1"), stays=True, namespaces=False)
    assert [one.name for one in Twin.all(registry)] == [stays]
    assert sorted(one.name for one in registry.folder.iterdir()) == sorted([".lock", stays])


def test_a_change_finds_the_record_as_it_is_now(registry: Registry, mount: Path) -> None:
    (mount / "cgroup.controllers").write_text("cpu")
    (mount / "cgroup.subtree_control").write_text("cpu")
    made = Twin.up(Cluster.parse("2"), registry, name="x", processes=True)
    other = Twin(registry.find("x"), registry)
    made.set("a", {"cpu": 0.5})
    other.set("b", {"cpu": 0.25})
    assert str(registry.find("x").cluster) == "name=a cpu=0.5, name=b cpu=0.25"
    registry.remove(made.entry)
    with pytest.raises(UsageError, match="there is no twin here"):
        made.set("a", {"cpu": 1.0})
    assert registry.entries() == []


def test_whoever_asks_to_end_while_a_twin_is_made_is_heard(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though a group that cannot be made does no harm to a host without a share."""

    def stopped(*words: object) -> None:
        raise Interrupted("stopped by SIGTERM")

    monkeypatch.setattr(Quotas, "make", stopped)
    with pytest.raises(Interrupted):
        Twin.up(Cluster.parse("2"), registry, processes=True)
    assert registry.entries() == []


def test_a_twin_whose_removal_was_killed_is_swept(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not whole any more: the next command removes the rest."""
    name = f"u{secrets.token_hex(4)}"
    made = Twin.up(Cluster.parse("1"), registry, name=name, stays=True, processes=True)

    def ends(error: BaseException) -> None:
        def raises(twin: Twin, host: str) -> None:
            raise error

        monkeypatch.setattr(Twin, "end_processes", raises)

    ends(CordeeError("processes do not end"))
    with pytest.raises(CordeeError, match="processes do not end"):
        made.down()
    assert not registry.find(name).stays and registry.find(name).abandoned is False
    ends(KeyboardInterrupt())  # as near to SIGKILL as a test may come: nothing is done on the way out
    with pytest.raises(KeyboardInterrupt):
        made.down()
    monkeypatch.undo()
    assert not registry.find(name).stays and not registry.find(name).abandoned
    registry.disown(made.entry)
    assert Twin.all(registry) == [] and registry.entries() == []
    made.down()  # what is gone may be taken down again


def test_what_cannot_be_removed_does_not_keep_the_others(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second", "third"):
        Twin.up(Cluster.parse("1"), registry, name=name, stays=True, processes=True)
    really = Twin.down

    def stuck(twin: Twin) -> None:
        if twin.name != "second":
            raise CordeeError(f"twin {twin.name} is not gone")
        really(twin)

    monkeypatch.setattr("cordee.twin.registry.Registry", lambda: registry)
    monkeypatch.setattr(Twin, "down", stuck)
    with pytest.raises(CordeeError, match="twin first is not gone; twin third is not gone"):
        down(everything=True)
    assert capsys.readouterr().out == "twin second is gone\n"
    monkeypatch.setattr(Twin, "down", really)
    down(everything=True)
    assert registry.entries() == []
