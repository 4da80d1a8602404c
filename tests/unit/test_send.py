"""Files go to several hosts, by a broadcast or along a chain: whole, once, and only what is lacking."""

from __future__ import annotations

from pathlib import Path

import pytest

import cordee
from cordee.core.errors import DataError, RendezvousError, SecurityError, UsageError
from cordee.feed.exchange.access import Access, split_place
from cordee.feed.exchange.forward import must_be_whole
from cordee.feed.exchange.listing import Entry, check_entries, entries_of
from cordee.feed.exchange.probe import Links, choose, forecast
from cordee.feed.exchange.receiver import Receiver
from cordee.feed.exchange.send import send
from exchanging import ACCESS, ANYWHERE, files_below, make_folder, receivers
from harness import DEADLINE_S, free_port

SIZES = {"a.bin": 3_000_000, "sub/deep/b.bin": 1, "sub/c.bin": 1_048_576, "empty": 0}
TOTAL = sum(SIZES.values())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "data", SIZES)


@pytest.mark.parametrize("how", ["broadcast", "chain", "auto"])
def test_every_host_gets_all_of_it_once(how: str, data: Path, tmp_path: Path) -> None:
    with receivers(tmp_path, 3) as hosts:
        places = [one.place for one in hosts]
        sent = send(data, places, how=how, access=ACCESS)
        assert sent.complete, sent.outcomes
        assert [one.host for one in sent.outcomes] == places
        assert [(one.received, one.had) for one in sent.outcomes] == [(TOTAL, 0)] * 3
        relayed = [one.sent for one in sent.outcomes]
        if sent.how == "broadcast":
            assert (sent.sent, relayed) == (3 * TOTAL, [0, 0, 0])
        else:
            assert (sent.sent, relayed) == (TOTAL, [TOTAL, TOTAL, 0])
        assert set(sent.forecasts) == ({"broadcast", "chain"} if how == "auto" else set())
        for number, host in enumerate(hosts):
            (delivery,) = host.wait(1, DEADLINE_S)
            assert delivery.own.complete
            assert files_below(tmp_path / str(number)) == {
                f"data/{name}": one for name, one in files_below(data).items()
            }


def test_send_and_all_gather_by_their_public_names(data: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(ACCESS.token)
    token.chmod(0o600)
    with receivers(tmp_path / "hosts", 1) as (host,):
        sent = cordee.data.send(str(data), [host.place], how="broadcast", name="other", token_file=token)
        assert sent.complete and sent.outcomes[0].host == host.place
        host.wait()
    assert files_below(tmp_path / "hosts/0/other") == files_below(data)
    here = f"127.0.0.1:{free_port()}"
    gathered = cordee.data.all_gather(data, tmp_path / "all", [here], here, token_file=token)
    assert [files_below(one) for one in gathered.parts] == [files_below(data)]


def test_a_receiver_forgets_deliveries_that_it_has_given_out(data: Path, tmp_path: Path) -> None:
    with receivers(tmp_path / "hosts", 1) as (host,):
        for name in ("a", "b", "c"):
            assert send(data, [host.place], access=ACCESS, name=name).complete
            (delivery,) = host.wait(1, DEADLINE_S)
            assert delivery.offer.name == name and list(host._deliveries) == [name]
            assert not host._ended and not host._running


def test_only_what_is_lacking_travels(data: Path, tmp_path: Path) -> None:
    with receivers(tmp_path, 2) as hosts:
        places = [one.place for one in hosts]
        assert send(data, places[:1], access=ACCESS).complete
        (data / "sub/c.bin").write_bytes(b"new")
        again = send(data, places, how="chain", access=ACCESS)
        assert again.complete
        new = TOTAL - SIZES["sub/c.bin"] + 3
        assert [(one.received, one.had) for one in again.outcomes] == [(3, new - 3), (new, 0)]
        assert again.sent == 3
        assert files_below(tmp_path / "0/data") == files_below(tmp_path / "1/data") == files_below(data)


def test_a_host_that_is_not_there_is_left_out(data: Path, tmp_path: Path) -> None:
    with receivers(tmp_path, 3) as hosts:
        places = [one.place for one in hosts]
        hosts[1]._listener.close()
        sent = send(data, places, how="chain", access=ACCESS)
        assert [one.complete for one in sent.outcomes] == [True, False, True]
        assert "cannot be reached" in sent.outcomes[1].reason
        assert files_below(tmp_path / "2/data") == files_below(data)
        with pytest.raises(DataError, match="not complete on 1 of 3 hosts"):
            must_be_whole(sent.outcomes, "data")


def test_one_file(tmp_path: Path) -> None:
    make_folder(tmp_path, {"one.bin": 10_000})
    with receivers(tmp_path, 1) as hosts:
        assert send(tmp_path / "one.bin", [hosts[0].place], access=ACCESS).complete
        assert files_below(tmp_path / "0") == {"one.bin": (tmp_path / "one.bin").read_bytes()}


def test_a_part_that_is_there_is_gone_on_with(data: Path, tmp_path: Path) -> None:
    from cordee.feed.exchange.landing import Landing

    (tmp_path / "0").mkdir()
    entries = entries_of(data)
    before = Landing(tmp_path / "0", "data", entries)
    before.survey(lambda: None)
    number = [one.path for one in entries].index("a.bin")
    before.write(number, 0, memoryview((data / "a.bin").read_bytes())[:1_000_000])
    before.close()
    with receivers(tmp_path, 1) as hosts:
        sent = send(data, [hosts[0].place], access=ACCESS)
        assert (sent.complete, sent.outcomes[0].had, sent.sent) == (True, 1_000_000, TOTAL - 1_000_000)
        assert files_below(tmp_path / "0/data") == files_below(data), "and nothing of the part is left"


def test_what_cannot_be_sent_or_received(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        send(data, ["somewhere"], access=ACCESS)
    with pytest.raises(UsageError, match="named twice"):
        send(data, ["a:1", "a:1"], access=ACCESS)
    with pytest.raises(UsageError, match="one of auto, broadcast, chain"):
        send(data, ["a:1"], how="star", access=ACCESS)
    with pytest.raises(DataError, match="no folder or file"):
        send(tmp_path / "nowhere", ["a:1"], access=ACCESS)
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match="holds no file"):
        send(tmp_path / "bare", ["a:1"], access=ACCESS)
    (data / "link").symlink_to(tmp_path)
    with pytest.raises(DataError, match="link to a folder"):
        send(data, ["a:1"], access=ACCESS)
    with receivers(tmp_path, 1) as hosts:
        with pytest.raises(DataError, match="another process receives"):
            Receiver(tmp_path / "0", ANYWHERE, ACCESS)
        with pytest.raises(RendezvousError, match="in use"):
            Receiver(tmp_path / "1", hosts[0].place, ACCESS)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with pytest.raises(SecurityError, match="cordee token"):
        Access.of(None, ["192.0.2.7:1"])
    assert Access.of(None, ["127.0.0.1:1"]).token == Access.of(None, ["localhost:1"]).token
    assert split_place("[::1]:80") == ("::1", 80)


@pytest.mark.parametrize(
    "path",
    ["../x", "/etc/x", "a/../../x", "a//x", "./x", "a/.", "", "a\0b", "a\nb", ".cordee-part-x", "d" * 300, "ä" * 200],
)
def test_paths_that_lead_elsewhere(path: str) -> None:
    with pytest.raises(ValueError, match="stay within"):
        check_entries([Entry(path, 1, "crc32:00000000")])


def test_lists_that_contradict_themselves() -> None:
    crc = "crc32:00000000"
    check_entries([Entry("a/b", 1, crc), Entry("a/c", 1, crc), Entry("b", 1, crc)])
    for paths, message in ((["a", "a"], "twice"), (["a", "a/b"], "file and a folder")):
        with pytest.raises(ValueError, match=message):
            check_entries([Entry(path, 1, crc) for path in paths])
    with pytest.raises(ValueError, match="checksum"):
        check_entries([Entry("a", 1, "md5:0")])


def test_what_is_forecast() -> None:
    same = forecast(80 << 20, Links((10e6, 10e6, 10e6), (30e6, 30e6, 30e6)))
    assert same["broadcast"] == pytest.approx(8.39, abs=0.01)
    assert same["chain"] == pytest.approx(2.8 + 2 * 0.035, abs=0.01)
    assert choose(same) == "chain"
    slow = forecast(80 << 20, Links((10e6, 10e6), (20e6, 1e6)))
    assert choose(slow) == "broadcast"
    assert choose(forecast(80 << 20, Links((10e6, 10e6), (20e6, None)))) == "broadcast"
    assert choose({}) == "chain"
    absent = forecast(80 << 20, Links((20e6, None, 20e6), (40e6, 40e6)))
    assert choose(absent) == "chain", "of those that are there"
