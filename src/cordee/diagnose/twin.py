"""The doctor looks at what a cluster emulated on one machine needs: namespaces and links of limited speed."""

from __future__ import annotations

from cordee.diagnose.check import Check, ok, warning
from cordee.diagnose.child import Ended, run_child

TRIAL_S = 15.0
TRIAL = """ip link add cordee0 type veth peer name cordee1
tc qdisc add dev cordee0 root tbf rate 100mbit burst 64kb latency 50ms"""
"""Run inside a new network namespace, which ends with it: the host's network is not touched."""


def check_network() -> Check:
    """Whether `cordee twin` could make hosts and links."""
    return judge_network(run_child(["unshare", "--net", "sh", "-ec", TRIAL], timeout_s=TRIAL_S))


def judge_network(trial: Ended) -> Check:
    """What a trial says."""
    if trial.code == 0:
        return ok("twin", "network namespaces and links of limited speed can be made")
    return warning(
        "twin",
        trial.words,
        "Only `cordee twin` needs it: root, the programs ip and tc (iproute2), the kernel modules veth and sch_tbf; "
        "in a container --cap-add NET_ADMIN --cap-add SYS_ADMIN.",
    )
