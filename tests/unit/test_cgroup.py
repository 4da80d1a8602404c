"""Limits of control groups, read from trees of files such as the kernel shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordee.core.cgroup import MemoryLimit, cpu_quota, find, memory_limit

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "31 23 0:27 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 23 0:28 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "33 23 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
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
            "proc/self/mountinfo": V2_MOUNT,
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


@pytest.mark.parametrize(("root", "path"), [("/", "/pod"), ("/pod", "/pod"), ("/elsewhere", "/pod")])
def test_version_1_inside_and_outside_of_a_container(tmp_path: Path, root: str, path: str) -> None:
    folder = "pod/" if root == "/" else ""
    tree(
        tmp_path,
        {
            "proc/self/cgroup": f"9:memory:{path}\n4:cpu,cpuacct:{path}\n0::/",
            "proc/self/mountinfo": V1_MOUNTS.format(root=root),
            f"sys/fs/cgroup/cpu,cpuacct/{folder}cpu.cfs_quota_us": 50000,
            f"sys/fs/cgroup/cpu,cpuacct/{folder}cpu.cfs_period_us": 100000,
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
            "proc/self/mountinfo": V1_MOUNTS.format(root="/"),
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": -1,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": 100000,
            "sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT_V1,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": 1 << 20,
        },
    )
    assert cpu_quota(tmp_path) is None
    assert memory_limit(tmp_path) is None


@pytest.mark.parametrize("cgroups", ["", "nonsense", "0::/", "7:cpu:/x"])
@pytest.mark.parametrize("mounts", ["", "too few fields\n", "1 2 3:4 / /proc rw - proc proc rw\n"])
def test_a_machine_without_control_groups_has_no_limit(tmp_path: Path, cgroups: str, mounts: str) -> None:
    assert cpu_quota(tmp_path) is None, "without even /proc"
    assert find("cpu", cgroups, mounts) is None


def test_a_mixed_machine_uses_version_1_where_the_controller_is() -> None:
    mounts = V1_MOUNTS.format(root="/")
    first = find("cpu", "4:cpu,cpuacct:/a/b\n0::/c", mounts)
    second = find("pids", "4:cpu,cpuacct:/a/b\n0::/c", mounts)
    assert first is not None and second is not None
    assert (first.version, str(first.folder)) == (1, "/sys/fs/cgroup/cpu,cpuacct/a/b")
    assert (second.version, str(second.folder)) == (2, "/sys/fs/cgroup/unified/c")
    assert [str(one.relative_to(first.mount)) for one in first.upwards()] == ["a/b", "a", "."]
