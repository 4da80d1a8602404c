"""What parameter servers decide, as values: which holds what, who takes whose place, what is applied once."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from cordee.core.errors import UsageError
from cordee.group.messages import FIRST_SERVER, Holding, Place, name_of
from cordee.runtime.coordinator.holders import Servers, holders_of
from cordee.runtime.coordinator.policy import server_in_place_of
from cordee.sync.server import rules
from cordee.sync.server.layout import pieces, spread
from cordee.sync.server.messages import Apply, Load
from cordee.sync.server.store import Store


def place(number: int) -> Place:
    return Place(FIRST_SERVER + number, f"host{number}", "127.0.0.1", 1000 + number)


# ------------------------------------------------------------- layout


@pytest.mark.parametrize("servers", [1, 2, 3, 7])
def test_parameters_are_spread_by_bytes(servers: int) -> None:
    draw = random.Random(servers)
    sizes = [draw.choice([4, 4000, 400_000, 1_000_000]) for _ in range(60)]
    shards = spread(sizes, servers)
    assert sorted(number for shard in shards for number in shard) == list(range(60))
    loads = [sum(sizes[number] for number in shard) for shard in shards]
    assert max(loads) - min(loads) <= max(sizes)


def test_more_servers_than_parameters() -> None:
    assert spread([5, 9], 4) == [[1], [0], [], []]


def test_pieces_hold_every_parameter_once_the_last_first() -> None:
    assert pieces([6, 5, 5, 50, 1], "aaaaa", most=10) == [[4], [3], [2, 1], [0]]
    assert pieces([1, 1, 1, 1], "aabb", most=10) == [[3, 2], [1, 0]]
    assert pieces([], []) == []


# ------------------------------------------------------------- which server holds what


def all_here(servers: Servers) -> Servers:
    for number in range(servers.expected):
        assert servers.view == 0
        servers = servers.came(place(number))
    return servers


def test_the_first_view_comes_when_all_servers_are_there() -> None:
    servers = all_here(Servers.of(2, backups=True, workers=[1]))
    assert servers.view == 1
    assert servers.shards == (Holding(place(0), place(2)), Holding(place(1), place(3)))


def test_a_backup_is_on_another_host() -> None:
    seats = Servers.of(2, backups=True, workers=[1, 1]).seats
    assert [(shard, seat.world.node) for shard, seat in seats] == [(0, 0), (1, 1), (0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("workers", "firsts", "backups"),
    [
        ([2, 0], [1, 1], [0, 0]),
        ([1, 3, 0], [2, 2], [0, 1]),
        ([0, 1, 0], [0, 2], [2, 0]),
    ],
)
def test_servers_are_rather_on_hosts_that_only_store(workers: list[int], firsts: list[int], backups: list[int]) -> None:
    nodes = [seat.world.node for _, seat in Servers.of(2, backups=True, workers=workers).seats]
    assert (nodes[:2], nodes[2:]) == (firsts, backups)
    alone = Servers.of(2, backups=False, workers=workers).seats
    assert [seat.world.node for _, seat in alone] == firsts


def test_a_lost_server_is_replaced_and_its_backup_is_first() -> None:
    servers = all_here(Servers.of(1, backups=True, workers=[1]))
    servers, shard = servers.lost(FIRST_SERVER)
    assert (shard, servers.shards, servers.view) == (0, (Holding(place(1)),), 2)
    servers, seat = server_in_place_of(servers, FIRST_SERVER, set())
    assert seat is not None and name_of(seat.worker) == "server 2"
    servers = servers.came(place(2))
    assert servers.shards == (Holding(place(1), None, place(2)),)
    assert servers.filled(FIRST_SERVER + 2).shards == (Holding(place(1), place(2)),)
    assert servers.is_last(FIRST_SERVER + 1), "what is being filled does not count"
    assert servers.lost(FIRST_SERVER + 1)[0].shards == (Holding(place(2)),), "it begins with the log"


def test_after_the_loss_of_both_the_next_that_comes_is_first() -> None:
    servers = all_here(Servers.of(1, backups=True, workers=[1]))
    for number in (0, 1):
        servers, _ = servers.lost(FIRST_SERVER + number)
        servers, _ = server_in_place_of(servers, FIRST_SERVER + number, set())
    assert servers.shards == (Holding(),)
    servers = servers.came(place(3)).came(place(2))
    assert servers.shards == (Holding(place(3), None, place(2)),)


def test_a_server_whose_host_is_gone_is_started_on_another_one() -> None:
    servers = all_here(Servers.of(1, backups=True, workers=[1, 1, 1]))
    left, _ = servers.lost(FIRST_SERVER)
    _, seat = server_in_place_of(left, FIRST_SERVER, {0})
    assert seat is not None and seat.world.node == 2, "node 1 has the other holder"
    servers = all_here(Servers.of(1, backups=True, workers=[1, 0, 0, 0]))
    left, _ = servers.lost(FIRST_SERVER)
    _, seat = server_in_place_of(left, FIRST_SERVER, {1})
    assert seat is not None and seat.world.node == 3, "it only stores, and has no other holder"


@pytest.mark.parametrize("seed", range(20))
def test_each_shard_keeps_different_holders_whatever_happens(seed: int) -> None:
    draw, servers, coming = random.Random(seed), all_here(Servers.of(2, backups=True, workers=[1])), []
    for _ in range(60):
        held = [one.number for holding in servers.shards for one in holders_of(holding)]
        view, act = servers.view, draw.choice(["lose", "come", "fill"])
        if act == "lose" and held:
            number = draw.choice(held)
            servers, shard = servers.lost(number)
            servers, seat = server_in_place_of(servers, number, set())
            assert seat is not None and servers.shard_of(seat.worker) == shard
            coming.append(seat.worker)
        elif act == "come" and coming:
            servers = servers.came(place(coming.pop(0) - FIRST_SERVER))
        elif act == "fill":
            filling = [one.filling.number for one in servers.shards if one.filling is not None]
            servers = servers.filled(draw.choice(filling)) if filling else servers
        held = [one.number for holding in servers.shards for one in holders_of(holding)]
        assert len(held) == len(set(held)) and servers.view >= view
        assert all(holding.first is not None for holding in servers.shards if holders_of(holding))


# ------------------------------------------------------------- stores


def store(kind: type[torch.optim.Optimizer] = torch.optim.SGD, **settings: float) -> tuple[Store, list[nn.Parameter]]:
    """A store, and the same parameters beside it."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(4))]
    optimizer = kind(parameters, lr=0.1, **settings)  # type: ignore[call-arg]
    places = {one: number for number, one in enumerate(parameters)}
    forms = [rules.form_of(one) for one in parameters]
    held = Store(0, forms)
    held.load(Load(0, 0, 0, forms, rules.describe(optimizer, places), []), [one.detach().clone() for one in parameters])
    return held, parameters


def test_a_step_is_the_sum_of_all_pushes_each_counted_once() -> None:
    held, parameters = store(torch.optim.AdamW)
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    for step in range(3):
        attempt = (1, 0)
        assert held.is_open(step, attempt)
        gradients = [[torch.randn_like(one) for one in parameters] for _ in range(2)]
        for worker, own in enumerate(gradients):
            held.add(worker, [0, 1], own)
            held.add(worker, [0, 1], own)  # sent again
            assert held.close(worker, 1)
        assert held.has([0, 1]) and not held.has([0, 1, 2])
        held.sealed = True
        update = Apply(0, step, attempt, 0.5, rules.settings_of(optimizer))
        held.apply(update)
        held.apply(update)  # asked for again
        for number, parameter in enumerate(parameters):
            parameter.grad = 0.5 * (gradients[0][number] + gradients[1][number])
        optimizer.step()
        assert held.version == step + 1
        assert not held.is_open(step, attempt), "a step that was applied is over"
    for ours, theirs in zip(held.parameters, parameters, strict=True):
        torch.testing.assert_close(ours.data, theirs.data, rtol=0, atol=0)


def test_pieces_that_did_not_come_are_asked_for_again() -> None:
    held, parameters = store()
    assert held.is_open(0, (1, 0))
    held.add(0, [1], [parameters[1].detach()])
    assert not held.close(0, 2) and not held.has([0])
    assert held.is_open(0, (1, 0)), "the same attempt goes on"
    held.add(0, [0], [parameters[0].detach()])
    assert held.close(0, 2) and held.has([0])


def test_an_attempt_that_is_over_counts_no_more() -> None:
    held, parameters = store()
    assert held.is_open(0, (1, 0))
    held.add(0, [0], [parameters[0].detach()])
    assert held.is_open(0, (2, 0)) and held.sums() == ([], [])
    assert not held.is_open(0, (1, 0))


def test_a_push_that_is_applied_by_itself_is_applied_once() -> None:
    (held, _), item = store(), (0, 7, 3, 1)
    assert held.items.staged(item, 0, 1) is None and not held.items.is_over(item, 0)
    held.items.stage(item, 0, [0], [torch.ones(3, 2)])
    found = held.items.staged(item, 0, 1)
    assert found is not None and list(found) == [0] and held.items.staged(item, 0, 2) is None
    held.seal(0, (0, 0), [0], list(found.values()))
    held.apply(Apply(0, 0, (0, 0), 1.0, [{"lr": 0.1}], item))
    copy = Store(0, held.forms)
    copy.load(*held.whole(0))
    for one in (held, copy):
        assert one.version == 1
        assert one.items.is_over(item, 1) and not one.items.is_over((0, 7, 3, 0), 1)
        assert one.items.is_over((0, 6, 2, 0), 1), "a push of a former window comes too late"
        assert not one.items.is_over((0, 8, 3, 1), 1) and one.items.base == 1


def test_a_copy_goes_on_as_the_original() -> None:
    held, parameters = store(torch.optim.SGD, momentum=0.9)
    copy = Store(0, held.forms)
    settings = [{"lr": 0.1, "momentum": 0.9}]
    for step in range(4):
        if step == 2:
            copy.load(*held.whole(0))
        gradients = [torch.full_like(one, step + 1.0) for one in parameters]
        for one in (held, copy) if step >= 2 else (held,):
            one.seal(step, (1, 0), [0, 1], [gradient.clone() for gradient in gradients])
            one.apply(Apply(0, step, (1, 0), 1.0, settings))
    for ours, theirs in zip(held.parameters, copy.parameters, strict=True):
        torch.testing.assert_close(ours.data, theirs.data, rtol=0, atol=0)


def test_a_setting_that_cannot_travel_is_named() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([{"params": [parameter], "lr": 0.1, "rule": lambda: 0}])
    with pytest.raises(UsageError, match="setting rule="):
        rules.describe(optimizer, {parameter: 0})


def test_a_class_that_a_server_cannot_import_is_named() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    rule = rules.describe(torch.optim.SGD([parameter], lr=0.1), {parameter: 0})
    with pytest.raises(ValueError, match=r"cannot import the optimizer Mine from not\.there"):
        rules.build(type(rule)("not.there:Mine", rule.defaults, rule.groups), [parameter])
    with pytest.raises(ValueError, match="is no optimizer"):
        rules.build(type(rule)("subprocess:Popen", rule.defaults, rule.groups), [parameter])
