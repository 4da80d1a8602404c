"""Which twins are on record, and whose they are."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cordee.core.errors import CordeeError, UsageError
from cordee.twin.cluster import Cluster
from cordee.twin.registry import Owner, Registry
from cordee.twin.twin import Twin, sweep
from harness import DEADLINE_S, stat_of

CLUSTER = Cluster.parse("2 x cpu=0.5 link=10mbit")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    made = Registry(tmp_path / "twins")
    with made.locked():
        return made


def unique() -> str:
    """A name of no twin on this machine: what is swept by it is looked for among the machine's control groups."""
    return f"u{secrets.token_hex(4)}"


def await_(what: object, deadline_s: float = DEADLINE_S) -> None:
    """Until `what()` is true."""
    deadline = time.monotonic() + deadline_s
    while not what():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ------------------------------------------------------------- owners


def test_an_owner_is_told_from_a_later_process_of_its_number() -> None:
    me = Owner.me()
    assert me.pid == os.getpid() and me.alive
    assert not Owner(me.pid, me.started - 1).alive
    assert not Owner(me.pid, me.started + 1, me.space).alive


def test_an_owner_in_another_pid_namespace_cannot_be_judged() -> None:
    """Two containers that share /run: the number means another process here, or none."""
    me = Owner.me()
    assert me.space == os.readlink("/proc/self/ns/pid")
    assert Owner(me.pid, me.started + 1, "pid:[1]").alive


def test_an_owner_that_has_ended_is_not_alive_though_nobody_has_asked_how() -> None:
    process = subprocess.Popen(["sleep", "1000"])
    try:
        found = stat_of(process.pid)
        assert found is not None
        owner = Owner(process.pid, found[2])
        assert owner.alive
        process.kill()
        await_(lambda: (stat_of(process.pid) or "Z")[0] == "Z")
        assert not owner.alive
        process.wait(DEADLINE_S)
        assert not owner.alive
    finally:
        process.kill()
        process.wait(DEADLINE_S)


# ------------------------------------------------------------- what is on record


def test_what_is_written_down_is_read_back(registry: Registry) -> None:
    mine = registry.add("mine", CLUSTER, Owner.me(), namespaces=True)
    stays = registry.add("stays", Cluster.parse("1"), None, namespaces=False)
    nameless = registry.add(None, CLUSTER, Owner.me(), namespaces=False)
    assert sorted(registry.entries(), key=lambda one: one.name) == sorted(
        [mine, stays, nameless], key=lambda one: one.name
    )
    assert registry.find("stays") == stays and stays.owner is None
    assert mine.folder == registry.folder / "mine" and mine.token_file.parent == mine.hosts_file.parent == mine.folder
    assert mine.folder.stat().st_mode & 0o077 == 0
    registry.remove(mine)
    assert not mine.folder.exists() and [one for one in registry.entries() if one.name == "mine"] == []


def test_a_name_is_taken_once(registry: Registry) -> None:
    registry.add("x", CLUSTER, None, namespaces=False)
    with pytest.raises(UsageError, match="there is a twin x already: cordee twin down x, or another --name"):
        registry.add("x", CLUSTER, None, namespaces=False)


@pytest.mark.parametrize("name", ["", "X", "1x", "a-b", "../x", "a" * 13, "lock.", "ü"])
def test_a_name_that_cannot_be_a_namespaces_is_refused(registry: Registry, name: str) -> None:
    with pytest.raises(UsageError, match="expected up to 12 small letters and digits, a letter first"):
        registry.add(name, CLUSTER, None, namespaces=False)
    assert registry.entries() == []


def test_the_only_twin_needs_no_name(registry: Registry) -> None:
    with pytest.raises(UsageError, match="there is no twin here: make one with `cordee twin up --hosts"):
        registry.find(None)
    with pytest.raises(UsageError, match="there is no twin here"):
        registry.find("x")
    first = registry.add("x", CLUSTER, None, namespaces=False)
    assert registry.find(None) == registry.find("x") == first
    with pytest.raises(UsageError, match="there is no twin 'z'; there is x"):
        registry.find("z")
    second = registry.add("y", CLUSTER, None, namespaces=False)
    with pytest.raises(UsageError, match=r"there are several twins: say which with --name\. There are x, y"):
        registry.find(None)
    assert registry.find("y") == second


def test_a_registry_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert Registry(tmp_path / "nowhere").entries() == []


def test_what_a_killed_maker_left_is_on_record_as_nobodys(registry: Registry) -> None:
    names = sorted(unique() for _ in range(3))
    folders = [registry.folder / name for name in names]
    for folder in folders:
        folder.mkdir()
    (folders[1] / "twin.json.new").write_text('{"hosts": [')
    (folders[2] / "twin.json.123.new").write_text("")
    assert (registry.folder / ".lock").is_file(), "which is no twin"
    found = registry.entries()
    assert [one.name for one in found] == names
    assert all(one.owner is not None and not one.owner.alive and one.cluster.hosts == () for one in found)
    with registry.locked():
        assert sweep(registry) == names
    assert registry.entries() == [] and [one.name for one in registry.folder.iterdir()] == [".lock"]


def test_what_is_not_ours_is_neither_read_nor_removed(registry: Registry, tmp_path: Path) -> None:
    """Whoever sweeps is root: in a folder that happens to lie there it must not remove anything."""
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    (home / "work" / "thesis").write_text("three years")
    (registry.folder / "Documents").mkdir()
    (registry.folder / "twin.old").mkdir()
    (registry.folder / "linked").symlink_to(home / "work")
    (registry.folder / "lock").write_text("")
    strange = registry.folder / unique()
    strange.mkdir()
    (strange / "thesis").write_text("three years")
    before = sorted(registry.folder.rglob("*"))
    with registry.locked():
        assert sweep(registry) == [] and registry.entries() == []
    assert sorted(registry.folder.rglob("*")) == before
    assert [str(one).partition(". ")[0] for one in registry.damaged()] == [
        f"twin {strange.name}: {strange / 'twin.json'} is not there, but thesis is"
    ]
    for name in ("linked", "lock"):
        with pytest.raises(UsageError, match=f"{name} is no twin and in the way of one: remove it, or another --name"):
            registry.add(name, CLUSTER, None, namespaces=False)
    assert (home / "work" / "thesis").read_text() == "three years"


def test_a_twin_may_be_called_lock(registry: Registry) -> None:
    assert registry.add("lock", CLUSTER, None, namespaces=False) == registry.find("lock")


def test_a_record_goes_with_what_a_run_left_in_it(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("")
    entry = registry.add("x", CLUSTER, None, namespaces=False)
    (entry.folder / "out-b" / "checkpoints").mkdir(parents=True)
    (entry.folder / "b.log").write_text("")
    (entry.folder / "elsewhere").symlink_to(tmp_path)
    registry.remove(entry)
    registry.remove(entry)
    assert not entry.folder.exists() and (tmp_path / "kept").exists()


# ------------------------------------------------------------- what cannot be read


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("\xff", "can't decode"),
        ("[]", "expected hosts, owner and namespaces"),
        ("null", "expected hosts, owner and namespaces"),
        ('{"hosts": [], "namespaces": true}', "expected hosts, owner and namespaces"),
        ('{"hosts": [], "owner": null, "namespaces": true, "latency": 3}', "expected hosts, owner and namespaces"),
        ('{"hosts": [], "owner": null, "namespaces": "yes"}', "namespaces is neither true nor false"),
        ('{"hosts": [], "owner": [1], "namespaces": true}', "owner is no process"),
        ('{"hosts": [], "owner": ["1", "2"], "namespaces": true}', "owner is no process"),
        ('{"hosts": [{"name": "a", "gpu": 1}], "owner": null, "namespaces": true}', "gpu"),
        ('{"hosts": ' + "[" * 200_000, "recursion"),
    ],
)
def test_a_record_that_cannot_be_read_is_kept_and_named(registry: Registry, text: str, why: str) -> None:
    """It may be a newer version's, and the twin that it tells of may be up."""
    good = registry.add("good", CLUSTER, None, namespaces=False)
    file = registry.folder / "bad" / "twin.json"
    file.parent.mkdir()
    file.write_bytes(text.encode("latin-1"))
    with registry.locked():
        assert sweep(registry) == []
    assert registry.entries() == [good] == [registry.find("good")]
    assert [one.name for one in registry.damaged()] == ["bad"]
    with pytest.raises(CordeeError) as refused:
        registry.find("bad")
    assert str(refused.value).startswith(f"twin bad: {file} ") and why in str(refused.value)
    assert f"remove the folder {file.parent}" in str(refused.value)
    with pytest.raises(UsageError, match="there are several twins: say which with --name"):
        registry.find(None)
    with pytest.raises(UsageError, match="there is a twin bad already"):
        registry.add("bad", CLUSTER, None, namespaces=False)
    assert file.read_bytes() == text.encode("latin-1")


def test_a_record_without_the_owners_space_is_read(registry: Registry) -> None:
    me = Owner.me()
    entry = registry.add("x", CLUSTER, Owner(me.pid, me.started), namespaces=False)
    content = json.loads((entry.folder / "twin.json").read_text())
    (entry.folder / "twin.json").write_text(json.dumps({**content, "owner": content["owner"][:2]}))
    found = registry.find("x").owner
    assert found == Owner(me.pid, me.started) and found.alive


def test_a_change_is_written_in_one_piece(registry: Registry) -> None:
    """Readers do not take the lock: they find the old record or the new one."""
    entry = registry.add("x", CLUSTER, Owner.me(), namespaces=False)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            registry.keep(entry)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(500):
            assert registry.entries() == [entry]
    finally:
        stop.set()
        writer.join(DEADLINE_S)


# ------------------------------------------------------------- sweeping


def test_only_what_has_lost_its_owner_is_swept(registry: Registry) -> None:
    lost, alive, stays = (unique() for _ in range(3))
    registry.add(lost, CLUSTER, Owner(os.getpid(), Owner.me().started - 1), namespaces=False)
    registry.add(alive, CLUSTER, Owner.me(), namespaces=False)
    registry.add(stays, CLUSTER, None, namespaces=False)
    with registry.locked():
        assert sweep(registry) == [lost]
    assert {one.name for one in registry.entries()} == {alive, stays}


def test_a_twin_that_stays_belongs_to_its_maker_until_it_is_whole(registry: Registry) -> None:
    made = Twin.up(Cluster.parse("1"), registry, name=unique(), stays=True, processes=True)
    try:
        assert made.entry.owner is None and registry.find(made.name).owner is None
        with registry.locked():
            assert sweep(registry) == []
    finally:
        made.down()
    torn = unique()
    script = f"""
import os, signal
from pathlib import Path
from cordee.twin.cluster import Cluster
from cordee.twin.registry import Registry
from cordee.twin.twin import Twin
Twin._make = lambda self: os.kill(os.getpid(), signal.SIGKILL)
Twin.up(Cluster.parse("1"), Registry(Path({str(registry.folder)!r})), name={torn!r}, stays=True, processes=True)
"""
    killed = subprocess.run([sys.executable, "-c", script], timeout=DEADLINE_S, check=False)
    assert killed.returncode == -signal.SIGKILL
    with registry.locked():
        assert sweep(registry) == [torn]


# ------------------------------------------------------------- the lock


def test_one_command_at_a_time_makes_or_removes(registry: Registry) -> None:
    script = f"""
from pathlib import Path
from cordee.twin.registry import Registry
with Registry(Path({str(registry.folder)!r})).locked():
    print("mine", flush=True)
"""
    with registry.locked():
        other = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1.0)
    said, _ = other.communicate(timeout=DEADLINE_S)
    assert (said, other.returncode) == ("mine\n", 0)


def test_a_command_that_outlives_its_killed_starter_keeps_the_lock(registry: Registry, tmp_path: Path) -> None:
    """Otherwise the next command would sweep while something is still being made."""
    note = tmp_path / "pid"
    script = f"""
from pathlib import Path
from cordee.twin.network import execute
from cordee.twin.registry import Registry
with Registry(Path({str(registry.folder)!r})).locked():
    execute([("sh", "-c", "echo $$ > {note}.new; mv {note}.new {note}; exec sleep 1000")])
"""
    starter = subprocess.Popen([sys.executable, "-c", script])
    try:
        await_(note.exists)
        starter.kill()
        starter.wait(DEADLINE_S)
        assert not _is_free(registry)
    finally:
        starter.kill()
        if note.exists():
            os.kill(int(note.read_text()), signal.SIGKILL)
    await_(lambda: _is_free(registry))


def _is_free(registry: Registry) -> bool:
    with (registry.folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_folder_that_others_may_enter_is_not_used(tmp_path: Path) -> None:
    """Tokens lie there; in a folder for everybody's temporary files somebody else may have made it first."""
    folder = tmp_path / "twins"
    folder.mkdir()
    folder.chmod(0o755)
    (tmp_path / "home" / "work").mkdir(parents=True)
    (tmp_path / "home").chmod(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "home")
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    (tmp_path / "file").write_text("")
    for path in (folder, tmp_path / "link", tmp_path / "nowhere", tmp_path / "file"):
        with (
            pytest.raises(CordeeError, match=rf"{path} is not a folder of this user's own .*: remove it, or move it"),
            Registry(path).locked(),
        ):
            pass
    assert (tmp_path / "home" / "work").exists() and not (tmp_path / "none").exists()
    with (
        pytest.raises(CordeeError, match="cannot be made: Not a directory"),
        Registry(tmp_path / "file" / "x").locked(),
    ):
        pass


def test_what_is_on_record_is_json(registry: Registry) -> None:
    entry = registry.add("x", CLUSTER, Owner(7, 8, "pid:[9]"), namespaces=True)
    assert json.loads((entry.folder / "twin.json").read_text()) == {
        "hosts": CLUSTER.to_dicts(),
        "owner": [7, 8, "pid:[9]"],
        "namespaces": True,
    }
