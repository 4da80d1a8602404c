"""The doctor looks at what a cluster emulated on one machine needs: namespaces, links of limited speed, CPU shares."""

from __future__ import annotations

import contextlib
import os
import shutil

from cordee.core.cgroup import ControlGroup, control_group
from cordee.diagnose.check import Check, ok, warning
from cordee.diagnose.child import Ended, run_child

ABOUT = "The lines that begin with twin matter only for `cordee twin`, which emulates a cluster on this machine."
TRIAL_S = 15.0
TRIAL = """echo namespace
ip link add cordee0 type veth peer name cordee1
echo link
tc qdisc add dev cordee0 root tbf rate 100mbit burst 64kb latency 50ms
echo speed"""
"""Run inside a new network namespace, which ends with it: the host's network is not touched. A word per success."""


def check_namespaces() -> list[Check]:
    """Root, the programs ip and tc, and whether they can do it."""
    missing = [one for one in ("ip", "tc") if shutil.which(one) is None]
    trial = run_child(["unshare", "--net", "sh", "-ec", TRIAL], timeout_s=TRIAL_S)
    return judge_namespaces(os.geteuid() == 0, missing, trial)


def judge_namespaces(root: bool, missing: list[str], trial: Ended) -> list[Check]:
    """What was found, and how far the trial came."""
    done = trial.output.split()
    return [
        ok("twin: root", "yes", ABOUT) if root else warning("twin: root", "no", f"sudo cordee twin ... {ABOUT}"),
        warning("twin: programs", f"{' and '.join(missing)} missing", "Install iproute2, which has ip and tc.")
        if missing
        else ok("twin: programs", "ip and tc"),
        _stage("twin: network namespaces", {"namespace", "link"}, done, trial, root and not missing),
        _stage("twin: link speeds", {"speed"}, done, trial, root and not missing),
    ]


def _stage(name: str, needed: set[str], done: list[str], trial: Ended, equipped: bool) -> Check:
    """`equipped`: as root, and with the programs."""
    if needed <= set(done):
        return ok(name, "can be made")
    if not equipped:
        return warning(name, f"cannot be made yet ({trial.words})", "As root and with ip and tc, look again.")
    if "speed" in needed and "link" not in done:
        return warning(name, "not tried: there was no link", "See the line above.")
    module = "sch_tbf" if "speed" in needed else "veth"
    container = "A container needs --cap-add NET_ADMIN --cap-add SYS_ADMIN"
    return warning(name, trial.words, f"{container}; a host needs the kernel module: modprobe {module}")


def check_cpu_shares() -> Check:
    """Whether a control group with a share of the processor time can be made."""
    group = control_group("cpu")
    if group is None:
        return judge_cpu_shares(None, "no control group for processor time is mounted")
    return judge_cpu_shares(group, try_share(group))


def judge_cpu_shares(group: ControlGroup | None, problem: str) -> Check:
    """Version 1 or 2, and why not, if not."""
    if group is not None and not problem:
        return ok("twin: CPU shares", f"control groups of version {group.version} can be made")
    return warning(
        "twin: CPU shares",
        problem,
        "Only the twin's slower hosts need it: run as root on a host, or in a container started with --privileged.",
    )


def try_share(place: ControlGroup) -> str:
    """Make an empty group at the top, give it a share, and remove it; the reason if that is refused."""
    group = place.mount / f"cordee-doctor-{os.getpid()}"
    file, text = ("cpu.max", "100000 100000") if place.version == 2 else ("cpu.cfs_quota_us", "100000")
    try:
        group.mkdir()
        if not (group / file).exists():
            return f"the cpu controller is not enabled below {place.mount} (cgroup.subtree_control lacks it)"
        (group / file).write_text(text, encoding="utf-8")
    except OSError as problem:
        return f"{problem.filename} cannot be written: {problem.strerror}"
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()
    return ""
