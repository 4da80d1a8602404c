"""A cluster as a value: what its text means, and what is refused."""

from __future__ import annotations

import random

import pytest

from cordee.core.errors import UsageError
from cordee.twin.cluster import EXAMPLE, MOST_HOSTS, Cluster, Host, letters, read_setting, written_rate


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        (
            EXAMPLE,
            [Host("a", cpu=0.75, link=100e6), Host("b", cpu=0.75, link=100e6), Host("c", cpu=0.25, link=10e6)],
        ),
        ("3", [Host("a"), Host("b"), Host("c")]),
        ("3 x", [Host("a"), Host("b"), Host("c")]),
        ("3x", [Host("a"), Host("b"), Host("c")]),
        (" 2 × link=1.5gbit , cpu=2 ", [Host("a", link=1.5e9), Host("b", link=1.5e9), Host("c", cpu=2.0)]),
        ("2 * workers=3", [Host("a", workers=3), Host("b", workers=3)]),
        ("name=head, 2 x cpu=max link=max", [Host("head"), Host("b"), Host("c")]),
        ("1, link=500KBIT/s name=far9", [Host("a"), Host("far9", link=5e5)]),
        ("name=b, 2, name=a", [Host("b"), Host("c"), Host("d"), Host("a")]),
        ("2, name=b", [Host("a"), Host("c"), Host("b")]),
    ],
)
def test_what_is_said_is_meant(text: str, hosts: list[Host]) -> None:
    assert Cluster.parse(text) == Cluster(tuple(hosts))


def some_cluster(draw: random.Random) -> Cluster:
    hosts = (
        Host(
            name=draw.choice([letters(number), f"n{number}"]),
            cpu=draw.choice([None, 1.0, 0.25, round(draw.uniform(0.01, 64), draw.randint(2, 17))]),
            link=draw.choice([None, 1e5, 10e6, 100e9, float(draw.randint(100_000, 10 ** draw.randint(6, 11)))]),
            workers=draw.choice([1, 2, 17]),
        )
        for number in range(draw.randint(1, 5))
    )
    return Cluster(tuple(hosts))


def test_what_is_printed_is_read_back() -> None:
    draw = random.Random(0)
    for _ in range(500):
        cluster = some_cluster(draw)
        assert Cluster.parse(str(cluster)) == cluster, str(cluster)
    assert str(Cluster.parse("cpu=0.50 link=1000mbit, workers=1")) == "name=a cpu=0.5 link=1gbit, name=b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "hosts '': a host is missing; expected such as '2 x cpu=0.75"),
        ("2 x cpu=1,,2", "a host is missing; expected such as '2 x cpu=0.75"),
        ("2,", "a host is missing"),
        ("0", "expected how many, a whole number from 1"),
        ("0 x cpu=1", "expected how many, a whole number from 1"),
        ("two x cpu=1", "'two' is not key=value"),
        ("-1 x cpu=1", "'-1' is not key=value"),
        ("1.5 x cpu=1", "'1.5' is not key=value"),
        ("² x cpu=1", "'²' is not key=value"),
        ("²", "'²' is not key=value"),
        (f"{'9' * 5000} x cpu=1", "is not key=value"),
        ("2 cpu=1", "'2' is not key=value; expected such as '2 x cpu"),
        ("cpu", "'cpu' is not key=value"),
        ("cpu=", "'cpu=' is not key=value"),
        ("cpu=1 cpu=2", "cpu is given twice"),
        ("cpus=1", "cpus=1: a host has cpu, link, workers, name, not cpus. Did you mean cpu?"),
        ("=1", "=1: a host has cpu, link, workers, name, not ."),
        ("2 x name=b", "2 hosts cannot have one name; leave name= out"),
        ("name=b, 1, name=b", "b is the name of two hosts"),
        ("251", "at most 250 hosts can be emulated"),
        ("999999 x cpu=1", "at most 250 hosts can be emulated"),
    ],
)
def test_what_is_no_cluster_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        Cluster.parse(text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("cpu", "0.01", 0.01),
        ("cpu", "1024", 1024.0),
        ("cpu", "max", None),
        ("cpu", ".5", 0.5),
        ("link", "100kbit", 1e5),
        ("link", "100gbit", 100e9),
        ("link", "10Mbit/s", 10e6),
        ("link", "33.3333333mbit", 33333333.0),
        ("link", "max", None),
        ("workers", "12", 12),
        ("workers", "0", 0),
        ("workers", "4096", 4096),
        ("name", "a1234567890", "a1234567890"),
    ],
)
def test_a_setting_is_read(key: str, text: str, value: object) -> None:
    assert read_setting(key, text) == value


@pytest.mark.parametrize(
    ("key", "texts", "message"),
    [
        ("cpu", ["0", "2000"], "processor time from 0.01 to 1024, such as 0.5"),
        ("cpu", ["0", "0.009", "-1", "1025", "nan", "inf", "half", ""], "expected cores' worth of processor time"),
        ("cpu", ["1_0", "\uff11", "\u0663", "1e1", "+1", "1."], "expected cores' worth of processor time"),
        ("link", ["0", "10", "99.999kbit", "101gbit", "10mb", "-1mbit", "1e9", "mbit", "٣mbit"], "expected a speed"),
        ("link", ["9" * 5000 + "gbit", ".5mbit", "1.mbit"], "expected a speed from 100kbit to 100gbit"),
        ("link", ["8kbit", "99kbit"], "heartbeats come too late"),
        ("workers", ["-1", "1.5", "max", "²", "4097", "9" * 5000], "expected a whole number from 0 to 4096"),
        (
            "name",
            ["B", "1a", "a-b", "a" * 12, "and", "localhost", "loopback", ""],
            "expected up to 11 small letters and digits",
        ),
        ("speed", ["1"], "speed=1: a host has cpu, link, workers, name, not speed."),
    ],
)
def test_a_setting_that_no_host_has_is_refused(key: str, texts: list[str], message: str) -> None:
    for text in texts:
        with pytest.raises(UsageError) as refused:
            read_setting(key, text)
        assert message in str(refused.value), text


def test_names_by_letters() -> None:
    names = [letters(number) for number in range(MOST_HOSTS)]
    assert names[:3] == ["a", "b", "c"] and names[24:29] == ["y", "z", "aa", "ab", "ac"]
    assert len(set(names)) == MOST_HOSTS
    assert Cluster.parse(str(MOST_HOSTS)).names == tuple(names)
    assert [read_setting("name", name) for name in names] == names


def test_a_host_by_its_name() -> None:
    cluster = Cluster.parse("2 x cpu=1, name=alpha workers=3")
    assert cluster.host("alpha") == Host("alpha", workers=3) and cluster.workers == 5
    with pytest.raises(UsageError, match=r"there is no host 'alhpa'; the hosts are a, b, alpha\. Did you mean alpha\?"):
        cluster.host("alhpa")
    with pytest.raises(UsageError, match=r"no host 'q'; the hosts are a, b, alpha\.$"):
        cluster.changed("q", {"cpu": 1.0})


def test_a_changed_cluster_is_another_value() -> None:
    cluster = Cluster.parse("2 x cpu=1 link=10mbit")
    changed = cluster.changed("b", {"cpu": None, "link": 2e6})
    assert changed == Cluster((Host("a", 1.0, 10e6), Host("b", None, 2e6)))
    assert cluster.host("b") == Host("b", 1.0, 10e6)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(None, "max"), (1e5, "100kbit"), (999_999.0, "999.999kbit"), (1e6, "1mbit"), (2.5e9, "2.5gbit")],
)
def test_a_rate_is_written_as_people_say_it(rate: float | None, text: str) -> None:
    assert written_rate(rate) == text and read_setting("link", text) == rate
