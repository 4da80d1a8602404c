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
from pathlib import Path

import pytest

from cordee.core.errors import CordeeError, UsageError
from cordee.twin.cluster import Cluster
from cordee.twin.registry import Registry
from cordee.twin.twin import Twin, sweep
from harness import DEADLINE_S, stat_of, until

CLUSTER = Cluster.parse("2 x cpu=0.5 link=10mbit")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    made = Registry(tmp_path / "twins")
    with made.locked():
        return made


def unique() -> str:
    """A name of no twin on this machine: what is swept by it is looked for among the machine's control groups."""
    return f"u{secrets.token_hex(4)}"


# ------------------------------------------------------------- owners


def test_a_twin_is_abandoned_when_its_owner_has_ended(registry: Registry) -> None:
    """Also when the exit code of the owner was not asked for, and in whatever PID namespace it was."""
    name = unique()
    script = f"""
import time
from pathlib import Path
from cordee.twin.cluster import Cluster
from cordee.twin.registry import Registry
Registry(Path({str(registry.folder)!r})).add({name!r}, Cluster.parse("1"), namespaces=False)
print("added", flush=True)
time.sleep(1000)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "added\n"
        entry = registry.find(name)
        assert not entry.stays and not entry.abandoned
        process.kill()
        until(lambda: (stat_of(process.pid) or "Z")[0] == "Z")
        until(lambda: entry.abandoned)
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)
    assert entry.abandoned


def test_a_twin_belongs_to_the_process_that_made_it(registry: Registry) -> None:
    entry = registry.add("x", CLUSTER, namespaces=False)
    assert not entry.abandoned and not Registry(registry.folder).find("x").abandoned
    registry.disown(entry)
    registry.disown(entry)
    assert entry.abandoned


# ------------------------------------------------------------- what is on record


def test_what_is_written_down_is_read_back(registry: Registry) -> None:
    mine = registry.add("mine", CLUSTER, namespaces=True)
    stays = registry.add("stays", Cluster.parse("1"), stays=True, namespaces=False)
    nameless = registry.add(None, CLUSTER, namespaces=False)
    assert sorted(registry.entries(), key=lambda one: one.name) == sorted(
        [mine, stays, nameless], key=lambda one: one.name
    )
    assert registry.find("stays") == stays and stays.stays
    assert mine.folder == registry.folder / "mine" and mine.token_file.parent == mine.hosts_file.parent == mine.folder
    assert mine.folder.stat().st_mode & 0o077 == 0
    registry.remove(mine)
    assert not mine.folder.exists() and [one for one in registry.entries() if one.name == "mine"] == []


def test_a_name_is_taken_once(registry: Registry) -> None:
    registry.add("x", CLUSTER, stays=True, namespaces=False)
    with pytest.raises(UsageError, match=r"there is a twin x already .*: cordee twin down x, or another --name"):
        registry.add("x", CLUSTER, stays=True, namespaces=False)


@pytest.mark.parametrize("name", ["", "X", "1x", "a-b", "../x", "a" * 13, "lock.", "ü"])
def test_a_name_that_cannot_be_a_namespaces_is_refused(registry: Registry, name: str) -> None:
    with pytest.raises(UsageError, match="expected up to 12 small letters and digits, a letter first"):
        registry.add(name, CLUSTER, stays=True, namespaces=False)
    assert registry.entries() == []


def test_the_only_twin_needs_no_name(registry: Registry) -> None:
    with pytest.raises(UsageError, match="there is no twin here: make one with `cordee twin up --hosts"):
        registry.find(None)
    with pytest.raises(UsageError, match="there is no twin here"):
        registry.find("x")
    first = registry.add("x", CLUSTER, stays=True, namespaces=False)
    assert registry.find(None) == registry.find("x") == first
    with pytest.raises(UsageError, match="there is no twin 'z'; there is x"):
        registry.find("z")
    second = registry.add("y", CLUSTER, stays=True, namespaces=False)
    with pytest.raises(UsageError, match=r"there are several twins: choose one with --name\. There are x, y"):
        registry.find(None)
    assert registry.find("y") == second


def test_a_registry_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert Registry(tmp_path / "nowhere").entries() == []


def test_what_a_killed_maker_left_is_rubbish(registry: Registry) -> None:
    unfinished = registry.folder / f"{unique()}~"
    unfinished.mkdir()
    (unfinished / ".twin.json.123").write_text('{"hosts": [')
    assert registry.entries() == []
    with registry.locked():
        assert [one.name for one in registry.folder.iterdir()] == [".lock"]


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
    for name in ("linked", "lock"):
        with pytest.raises(UsageError, match=rf"there is a twin {name} already \(.*{name}\)"):
            registry.add(name, CLUSTER, stays=True, namespaces=False)
    assert (home / "work" / "thesis").read_text() == "three years"


def test_a_twin_may_be_called_lock(registry: Registry) -> None:
    assert registry.add("lock", CLUSTER, stays=True, namespaces=False) == registry.find("lock")


def test_a_record_goes_with_what_a_run_left_in_it(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("")
    entry = registry.add("x", CLUSTER, stays=True, namespaces=False)
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
        ("[]", "list indices"),
        ("null", "not subscriptable"),
        ('{"hosts": "1", "namespaces": true}', "stays"),
        ('{"hosts": [{"name": "a"}], "owner": null, "namespaces": true}', "'list' object"),
        ('{"hosts": "name=a gpu=1", "stays": true, "namespaces": true}', "gpu"),
    ],
)
def test_a_record_that_cannot_be_read_is_kept_and_named(registry: Registry, text: str, why: str) -> None:
    """It may be a newer version's, and the twin that it tells of may be up."""
    file = registry.folder / "bad" / "twin.json"
    file.parent.mkdir()
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(CordeeError) as refused:
        registry.find("bad")
    assert str(refused.value).startswith(f"twin bad: {file} ") and why in str(refused.value)
    assert f"remove the folder {file.parent}" in str(refused.value)
    with pytest.raises(CordeeError), registry.locked():
        sweep(registry)
    with pytest.raises(UsageError, match="there is a twin bad already"):
        registry.add("bad", CLUSTER, stays=True, namespaces=False)
    assert file.read_bytes() == text.encode("latin-1")


def test_a_change_is_written_in_one_piece(registry: Registry) -> None:
    """Readers do not take the lock: they find the old record or the new one."""
    entry = registry.add("x", CLUSTER, namespaces=False)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            entry.write()

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
    registry.disown(registry.add(lost, CLUSTER, namespaces=False))
    registry.add(alive, CLUSTER, namespaces=False)
    registry.add(stays, CLUSTER, stays=True, namespaces=False)
    with registry.locked():
        assert sweep(registry) == [lost]
    assert {one.name for one in registry.entries()} == {alive, stays}


def test_a_twin_that_stays_belongs_to_its_maker_until_it_is_whole(registry: Registry) -> None:
    made = Twin.up(Cluster.parse("1"), registry, name=unique(), stays=True, processes=True)
    try:
        assert made.entry.stays and registry.find(made.name).stays
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
        until(note.exists)
        starter.kill()
        starter.wait(DEADLINE_S)
        assert not _is_free(registry)
    finally:
        starter.kill()
        if note.exists():
            os.kill(int(note.read_text()), signal.SIGKILL)
    until(lambda: _is_free(registry))


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


def test_what_is_on_record_is_json(registry: Registry) -> None:
    entry = registry.add("x", CLUSTER, namespaces=True)
    assert json.loads((entry.folder / "twin.json").read_text()) == {
        "hosts": "name=a cpu=0.5 link=10mbit, name=b cpu=0.5 link=10mbit",
        "stays": False,
        "namespaces": True,
    }
