"""The network of a twin as commands: their values; that they make what they should is shown by `tests/twin`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cordee.core.errors import CordeeError
from cordee.twin.cluster import MOST_HOSTS, Cluster, Host, letters
from cordee.twin.network import (
    Command,
    address_of,
    commands_to_limit,
    commands_to_make,
    commands_to_plug,
    commands_to_remove,
    execute,
    hosts_file,
    namespace_of,
    switch_of,
)
from cordee.twin.processes import inhabitants

LONGEST = "a" * 11
INTERFACE_NAME = 15
"""So many characters the kernel allows."""


def lines(commands: list[Command]) -> list[str]:
    return [" ".join(command) for command in commands]


def steadied(space: str) -> list[str]:
    """Where TCP's way of finding its speed is chosen."""
    control = "/proc/sys/net/ipv4/tcp_congestion_control"
    chosen = f"{{ echo cubic > {control} || echo reno > {control}; }} 2>/dev/null || true"
    return [f"ip netns exec {space} sh -c {chosen}"]


def test_a_switch_and_a_cable_for_every_host() -> None:
    assert lines(commands_to_make("t", Cluster.parse("name=x, link=10mbit name=y"))) == [
        "ip netns add cordee-t",
        "ip -n cordee-t link add name bridge type bridge",
        "ip -n cordee-t link set dev bridge up",
        "ip netns add cordee-t-x",
        "ip -n cordee-t link add name to-x type veth peer name eth0 netns cordee-t-x",
        "ip -n cordee-t link set dev to-x master bridge up",
        "ip -n cordee-t-x address add 10.213.77.1/24 dev eth0",
        "ip -n cordee-t-x link set dev lo up",
        "ip -n cordee-t-x link set dev eth0 up",
        *steadied("cordee-t-x"),
        "ip netns add cordee-t-y",
        "ip -n cordee-t link add name to-y type veth peer name eth0 netns cordee-t-y",
        "ip -n cordee-t link set dev to-y master bridge up",
        "ip -n cordee-t-y address add 10.213.77.2/24 dev eth0",
        "ip -n cordee-t-y link set dev lo up",
        "ip -n cordee-t-y link set dev eth0 up",
        *steadied("cordee-t-y"),
        "tc -n cordee-t-y qdisc replace dev eth0 root tbf rate 10000000bit burst 6250 limit 506250",
        "tc -n cordee-t qdisc replace dev to-y root tbf rate 10000000bit burst 6250 limit 506250",
    ]


def test_nothing_is_made_in_the_machines_own_network() -> None:
    """Every command names a namespace of this twin, so that twins do not meet and a killed one leaves named things."""
    cluster = Cluster.parse("3 x link=1mbit")
    for command in [
        *commands_to_make("t", cluster),
        *commands_to_plug("t", "b", "down"),
        *commands_to_plug("t", "b", "up"),
        *commands_to_remove("t", cluster.names),
    ]:
        place = command[3] if command[1] == "netns" else command[2]
        assert place == "cordee-t" or place.startswith("cordee-t-"), command
        assert command[1] in ("netns", "-n")


@pytest.mark.parametrize(
    ("rate", "burst", "queue"),
    [
        (1e5, 6_000, 12_500),
        (1e6, 6_000, 125_000),
        (9.6e6, 6_000, 500_000),
        (50e6, 31_250, 500_000),
        (100e6, 62_500, 625_000),
        (1e9, 625_000, 6_250_000),
    ],
)
def test_a_link_is_limited_both_ways_by_a_bucket_of_5_ms(rate: float, burst: int, queue: int) -> None:
    bucket = f"root tbf rate {rate:.0f}bit burst {burst} limit {burst + queue}"
    assert lines(commands_to_limit("t", Host("b", link=rate))) == [
        f"tc -n cordee-t-b qdisc replace dev eth0 {bucket}",
        f"tc -n cordee-t qdisc replace dev to-b {bucket}",
    ]


def test_a_limit_is_taken_away() -> None:
    assert lines(commands_to_limit("t", Host("b"))) == [
        "tc -n cordee-t-b qdisc replace dev eth0 root pfifo",
        "tc -n cordee-t qdisc replace dev to-b root pfifo",
    ]


def test_a_cable_is_pulled_and_put_back_at_the_switch() -> None:
    assert lines(commands_to_plug("t", "b", "down")) == ["ip -n cordee-t link set dev to-b down"]
    assert lines(commands_to_plug("t", "b", "up")) == ["ip -n cordee-t link set dev to-b up"]


def test_everything_that_was_made_is_removed() -> None:
    cluster = Cluster.parse("2, name=far")
    removed = lines(commands_to_remove("t", cluster.names))
    made = commands_to_make("t", cluster)
    for command in made:
        if command[:3] == ("ip", "netns", "add"):
            assert f"ip netns delete {command[3]}" in removed
        if command[3:5] == ("link", "add") and "veth" in command:
            assert f"ip -n cordee-t link delete dev {command[6]}" in removed
    assert len(removed) == 3 + 4
    assert removed[-1] == "ip netns delete cordee-t", "the switch's namespace last: the cables are found through it"


def test_names_fit() -> None:
    for command in commands_to_make("t" * 12, Cluster.parse(f"name={LONGEST}, {MOST_HOSTS - 1} x link=1mbit")):
        if "name" in command:
            assert len(command[command.index("name") + 1]) <= INTERFACE_NAME
        if "dev" in command:
            assert len(command[command.index("dev") + 1]) <= INTERFACE_NAME
    names = {namespace_of("t", letters(number)) for number in range(MOST_HOSTS)} | {switch_of("t")}
    assert len(names) == MOST_HOSTS + 1


def test_hosts_know_each_other_by_name() -> None:
    cluster = Cluster.parse("2, name=far")
    assert hosts_file(cluster) == "127.0.0.1 localhost\n10.213.77.1 a\n10.213.77.2 b\n10.213.77.3 far\n"
    many = Cluster.parse(str(MOST_HOSTS))
    addresses = {address_of(many, name) for name in many.names}
    assert len(addresses) == MOST_HOSTS and max(int(one.split(".")[-1]) for one in addresses) < 255


def test_commands_are_run_in_order_until_one_fails(tmp_path: Path) -> None:
    touch = [("touch", str(tmp_path / name)) for name in "abc"]
    with pytest.raises(CordeeError, match=r"`ls .*nowhere` failed: .*nowhere.*No such file"):
        execute([touch[0], ("ls", str(tmp_path / "nowhere")), touch[1]])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a"]
    failures = execute([("ls", str(tmp_path / "nowhere")), ("no-such-program",), touch[2]], check=False)
    assert "nowhere` failed: " in failures[0]
    assert failures[1:] == ["no-such-program could not be started: No such file or directory"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "c"]


def test_processes_are_found_by_the_namespace_they_are_in() -> None:
    here = Path("/proc/self/ns/net").stat()
    assert os.getpid() in inhabitants([(here.st_dev, here.st_ino)])
    assert inhabitants([(here.st_dev, here.st_ino + 1), (here.st_dev + 1, here.st_ino)]) == set()
    assert inhabitants([]) == set()


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(CordeeError, match="no-such-program could not be started: No such file or directory"):
        execute([("no-such-program", "x")])
