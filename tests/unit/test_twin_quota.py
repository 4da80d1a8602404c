"""CPU shares of a twin's hosts, in trees of files such as the kernel shows them, and in the kernel's own."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cordee.core.cgroup import control_group
from cordee.core.errors import CordeeError
from cordee.twin.processes import end_all, marked
from cordee.twin.quota import Quotas, quota_of
from harness import DEADLINE_S

V1 = {
    "proc/self/cgroup": "4:cpu,cpuacct:/somewhere\n0::/\n",
}
V2 = {
    "proc/self/cgroup": "0::/somewhere\n",
}


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    mount = tmp_path / "sys/fs/cgroup/cpu"
    mount.mkdir(parents=True)
    return tree(tmp_path, V1)


@pytest.fixture
def version_2(tmp_path: Path) -> Path:
    controls = {"cgroup.controllers": "cpuset cpu memory\n", "cgroup.subtree_control": "cpuset memory\n"}
    return tree(tmp_path, {**V2, **{f"sys/fs/cgroup/{name}": content for name, content in controls.items()}})


@pytest.mark.parametrize(
    ("cpu", "period", "quota"),
    [
        (None, 20_000, None),
        (0.01, 100_000, 1_000),
        (0.03, 33_333, 1_000),
        (0.05, 20_000, 1_000),
        (0.25, 20_000, 5_000),
        (0.75, 20_000, 15_000),
        (1.0, 20_000, 20_000),
        (2.5, 20_000, 50_000),
    ],
)
def test_period_and_quota(cpu: float | None, period: int, quota: int | None) -> None:
    assert quota_of(cpu) == (period, quota)
    if cpu is not None and quota is not None:
        assert quota / period == pytest.approx(cpu, rel=1e-3)
        assert quota >= 1_000 and 1_000 <= period <= 1_000_000, "what the kernel accepts"


def test_version_1_has_a_file_for_each_number(version_1: Path) -> None:
    quotas = Quotas("t", version_1)
    folder = version_1 / "sys/fs/cgroup/cpu/cordee-t-b"
    assert quotas.missing == ""

    def written() -> tuple[str, str]:
        return (folder / "cpu.cfs_period_us").read_text(), (folder / "cpu.cfs_quota_us").read_text()

    quotas.make("b", 0.25)
    assert written() == ("20000", "5000")
    quotas.limit("b", 0.02)
    assert written() == ("50000", "1000")
    quotas.limit("b", None)
    assert written() == ("20000", "-1")


def test_version_2_has_one_file_and_passes_the_controller_on(version_2: Path) -> None:
    quotas = Quotas("t", version_2)
    assert quotas.missing == ""
    folder = version_2 / "sys/fs/cgroup/cordee-t-b"
    control = version_2 / "sys/fs/cgroup/cgroup.subtree_control"
    quotas.make("b", 0.25)
    assert (folder / "cpu.max").read_text() == "5000 20000"
    assert control.read_text() == "+cpu", "cpuset alone does not give the group a cpu.max"
    quotas.limit("b", None)
    assert (folder / "cpu.max").read_text() == "max 20000"
    control.write_text("memory cpu\n")
    quotas.make("c", 2.0)
    assert control.read_text() == "memory cpu\n"
    assert (version_2 / "sys/fs/cgroup/cordee-t-c/cpu.max").read_text() == "40000 20000"


def test_processes_of_a_host(version_2: Path) -> None:
    quotas = Quotas("t", version_2)
    assert quotas.processes("b") == []
    quotas.make("b", None)
    assert quotas.processes("b") == []
    tree(version_2, {"sys/fs/cgroup/cordee-t-b/cgroup.procs": "12\n0\n345\n"})
    assert quotas.processes("b") == [12, 345], "0 is one of another PID namespace; to `kill` it would mean ourselves"
    assert quotas.processes("c") == []


def test_a_group_is_removed_and_one_that_is_not_there_does_not_matter(version_1: Path) -> None:
    quotas = Quotas("t", version_1)
    folder = version_1 / "sys/fs/cgroup/cpu/cordee-t-b"
    folder.mkdir()  # without the files, which the kernel takes away with it
    (folder.parent / "cordee-tt-b").mkdir()  # another twin's
    assert quotas.left() == [folder]
    quotas.remove("b")
    assert not folder.exists() and quotas.left() == []
    quotas.remove("b")


def test_a_group_that_stays_is_said(version_1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cordee.twin.quota._ENDING_S", 0.05)
    folder = version_1 / "sys/fs/cgroup/cpu/cordee-t-b"
    (folder / "below").mkdir(parents=True)
    with pytest.raises(CordeeError, match=r"cordee-t-b cannot be removed: .*not empty.*; processes: none"):
        Quotas("t", version_1).remove("b")
    assert folder.exists()


def test_a_share_of_a_group_that_is_not_there_cannot_be_changed(version_1: Path) -> None:
    with pytest.raises(CordeeError, match="host b has no CPU share: it has no control group"):
        Quotas("t", version_1).limit("b", 0.5)


def test_a_tree_without_the_controller_is_named(version_2: Path) -> None:
    mount = version_2 / "sys/fs/cgroup"
    (mount / "cgroup.controllers").write_text("cpuset memory\n")
    assert Quotas("t", version_2).missing == f"the cpu controller is not available below {mount}"
    (mount / "cgroup.controllers").unlink()
    assert Quotas("t", version_2).missing == f"the cpu controller is not available below {mount}"


def test_groups_of_another_user_are_not_ours(version_1: Path) -> None:
    """He may have a twin of the same name."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    folder = version_1 / "sys/fs/cgroup/cpu/cordee-t-b"
    tree(folder, {"cgroup.procs": f"{os.getpid()}\n"})
    quotas = Quotas("t", version_1)
    assert (quotas.group("b"), quotas.processes("b"), quotas.left()) == (folder, [os.getpid()], [folder])
    os.chown(folder, 65534, 65534)
    assert (quotas.group("b"), quotas.processes("b"), quotas.left()) == (None, [], [])
    quotas.remove("b")
    assert folder.exists()


def test_without_control_groups_it_says_so(tmp_path: Path) -> None:
    quotas = Quotas("t", tmp_path)
    assert quotas.missing == "no control group for processor time is mounted"
    assert quotas.group("b") is None and quotas.processes("b") == []
    quotas.remove("b")
    assert quotas.left() == []
    for change in (quotas.make, quotas.limit):
        with pytest.raises(CordeeError, match=r"host b (cannot have a|has no) CPU share: .*no control group"):
            change("b", 0.5)


def test_a_tree_that_cannot_be_written_is_named(version_1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quotas = Quotas("t", version_1)
    mount = version_1 / "sys/fs/cgroup/cpu"
    (mount / "cordee-t-b").write_text("in its place")
    with pytest.raises(CordeeError, match="cordee-t-b cannot be made: File exists"):
        quotas.make("b", 0.5)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert quotas.missing == f"{mount} cannot be written"


def test_the_kernels_own() -> None:
    here = control_group("cpu")
    quotas = Quotas(f"q{secrets.token_hex(4)}")
    if here is None or quotas.missing or os.geteuid() != 0:
        pytest.skip(f"control groups cannot be made: {quotas.missing or 'this user is not root'}")
    sleeper = subprocess.Popen(["sleep", "1000"])
    try:
        quotas.make("b", 0.02)
        folder = quotas.group("b")
        assert folder is not None
        (folder / "cgroup.procs").write_text(str(sleeper.pid))
        assert quotas.processes("b") == [sleeper.pid]
        for cpu in (2.0, 0.01, None, 0.25):
            quotas.limit("b", cpu)
            names = ["cpu.max"] if here.version == 2 else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
            period, quota = quota_of(cpu)
            none = "max" if here.version == 2 else "-1"
            said = " ".join((folder / name).read_text().strip() for name in names)
            assert said == f"{none if quota is None else quota} {period}"
        quotas.remove("b")
        assert sleeper.wait(DEADLINE_S) == -signal.SIGKILL, "what is still there is ended"
        end_all([sleeper.pid])  # it has gone already
        assert not folder.exists()
    finally:
        sleeper.kill()
        sleeper.wait(DEADLINE_S)
        quotas.remove("b")


def test_a_share_that_the_group_above_does_not_have_is_refused(tmp_path: Path) -> None:
    outer = Quotas(f"q{secrets.token_hex(4)}")
    here = control_group("cpu")
    if here is None or here.version != 1 or outer.missing or os.geteuid() != 0:
        pytest.skip("control groups of version 1 cannot be made")
    outer.make("top", 0.5)
    mount = tree(tmp_path, V1) / "sys/fs/cgroup/cpu"
    mount.parent.mkdir(parents=True)
    mount.symlink_to(outer.group("top") or "")
    inner = Quotas("t", tmp_path)
    try:
        inner.make("b", 0.25)
        with pytest.raises(
            CordeeError,
            match=r"host b cannot have cpu=2: Invalid argument\. The group .*cpu, or one above .*: give",
        ):
            inner.limit("b", 2.0)
    finally:
        inner.remove("b")
        outer.remove("top")


def test_processes_are_found_by_a_mark_that_their_children_inherit() -> None:
    mark = f"CORDEE_TEST_MARK={secrets.token_hex(8)}"
    name, _, value = mark.partition("=")
    script = "import os, sys; pid = os.fork(); pid and print(pid, flush=True); sys.stdin.read(); pid and os.wait()"
    environment = {**os.environ, name: value}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        child = int(process.stdout.readline())
        assert marked(mark) == {process.pid, child}
        assert marked(mark[:-1]) == set(), "another host's mark may begin like this one"
        process.stdin.close()
    assert marked(mark) == set()
