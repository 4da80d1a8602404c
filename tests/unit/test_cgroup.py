"""Limits of control groups, read from trees of files such as the kernel shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordee.core.cgroup import MemoryLimit, control_group, cpu_quota, memory_limit

NO_LIMIT_V1 = 9223372036854771712


def tree(root: Path, files: dict[str, object]) -> Path:
    """A file system with these files below `root`."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def test_version_2_takes_the_tightest_limit_on_the_way_up(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/batch/job",
            "sys/fs/cgroup/batch/job/cpu.max": "max 100000",
            "sys/fs/cgroup/batch/cpu.max": "150000 100000",
            "sys/fs/cgroup/batch/job/memory.max": 8 << 30,
            "sys/fs/cgroup/batch/job/memory.current": 3 << 30,
            "sys/fs/cgroup/batch/job/memory.stat": f"anon 5\ninactive_file {1 << 30}",
            "sys/fs/cgroup/batch/memory.max": "max",
        },
    )
    assert cpu_quota(tmp_path) == 1.5
    assert memory_limit(tmp_path) == MemoryLimit(8 << 30, 2 << 30)


@pytest.mark.parametrize("folder", ["pod/", ""])
def test_version_1_inside_and_outside_of_a_container(tmp_path: Path, folder: str) -> None:
    """Inside, its own group is at the top of the tree, whatever it is called outside."""
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "9:memory:/pod\n4:cpu,cpuacct:/pod\n0::/",
            f"sys/fs/cgroup/cpu/{folder}cpu.cfs_quota_us": 50000,
            f"sys/fs/cgroup/cpu/{folder}cpu.cfs_period_us": 100000,
            f"sys/fs/cgroup/memory/{folder}memory.limit_in_bytes": 1 << 30,
            f"sys/fs/cgroup/memory/{folder}memory.usage_in_bytes": 1 << 20,
        },
    )
    assert cpu_quota(tmp_path) == 0.5
    assert memory_limit(tmp_path) == MemoryLimit(1 << 30, 1 << 20)


def test_what_is_not_limited_is_none(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "9:memory:/\n4:cpu,cpuacct:/\n0::/",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": -1,
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100000,
            "sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT_V1,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": 1 << 20,
        },
    )
    assert cpu_quota(tmp_path) is None
    assert memory_limit(tmp_path) is None


@pytest.mark.parametrize("cgroups", ["0::/", "7:cpu:/x"])
def test_a_machine_without_control_groups_has_no_limit(tmp_path: Path, cgroups: str) -> None:
    assert cpu_quota(tmp_path) is None, "without even /proc"
    tree(tmp_path, {"proc/self/cgroup": cgroups})
    assert cpu_quota(tmp_path) is None and control_group("cpu", tmp_path) is None


def test_a_mixed_machine_uses_version_1_where_the_controller_is(tmp_path: Path) -> None:
    cgroups = "4:cpu,cpuacct:/a/b\n0::/c"
    tree(tmp_path, {"proc/self/cgroup": cgroups, "sys/fs/cgroup/cpu/tasks": "", "sys/fs/cgroup/cgroup.procs": ""})
    first, second = control_group("cpu", tmp_path), control_group("pids", tmp_path)
    assert first is not None and second is not None
    assert (first.version, first.folder) == (1, tmp_path / "sys/fs/cgroup/cpu/a/b")
    assert (second.version, second.folder) == (2, tmp_path / "sys/fs/cgroup/c")
    assert [str(one.relative_to(first.mount)) for one in first.upwards()] == ["a/b", "a", "."]
