"""Who is where: `lay_out` as a value."""

from __future__ import annotations

import itertools

import pytest

from cordee.core.mesh import Mesh, lay_out


def hosts_of(*counts: int) -> dict[int, str]:
    """Members 0, 1, ... over hosts a, b, ..., so many on each."""
    names = [name for name, count in zip("abcdefgh", counts, strict=False) for _ in range(count)]
    return dict(enumerate(names))


def test_whole_replicas_are_the_members_in_their_order() -> None:
    mesh = lay_out((3, 5, 9), {3: "a", 5: "b", 9: "a"})
    assert mesh == Mesh((((3,),), ((5,),), ((9,),)))
    assert mesh.leaders == (3, 5, 9)
    assert mesh.along("replica", 5) == (3, 5, 9) and mesh.along("slice", 5) == (5,)


@pytest.mark.parametrize("replicas, stages, slices", [*itertools.product((1, 2, 3), (1, 2, 4), (1, 2, 3))])
def test_every_product_has_each_member_once(replicas: int, stages: int, slices: int) -> None:
    count = replicas * stages * slices
    mesh = lay_out(range(count), hosts_of(count), stages=stages, slices=slices)
    assert len(mesh.replicas) == replicas and not mesh.spares
    places = {
        worker: (replica, stage, place)
        for replica, of_replica in enumerate(mesh.replicas)
        for stage, of_stage in enumerate(of_replica)
        for place, worker in enumerate(of_stage)
    }
    assert sorted(places) == list(range(count))
    for worker, spot in places.items():
        for axis, (name, length) in enumerate([("replica", replicas), ("stage", stages), ("slice", slices)]):
            line = mesh.along(name, worker)
            assert len(line) == length
            assert [places[one] for one in line] == [(*spot[:axis], at, *spot[axis + 1 :]) for at in range(length)]


def test_shards_of_a_replica_compute_shares_of_their_own() -> None:
    mesh = lay_out(range(8), hosts_of(8), shards=2, slices=2)
    assert mesh.replicas == (((0, 1, 2, 3),), ((4, 5, 6, 7),))
    assert mesh.leaders == (0, 2, 4, 6)
    lines = {axis: mesh.along(axis, 7) for axis in ("replica", "stage", "shard", "slice", "share")}
    assert lines == {"replica": (3, 7), "stage": (7,), "shard": (5, 7), "slice": (6, 7), "share": (1, 3, 5, 7)}
    assert mesh.inside(7) == (4, 5, 6, 7)
    left = mesh.among({0, 1, 2, 3, 5, 6, 7})
    assert left.leaders == (0, 2) and left.spares == (5, 6, 7)


def test_a_share_keeps_its_number_when_others_are_lost() -> None:
    mesh = lay_out(range(6), hosts_of(3, 3), slices=2)
    assert mesh.leaders == (0, 2, 3) and mesh.numbers == (0, 1, 2)
    left = mesh.among({2, 3, 4, 5})
    assert left.leaders == (2, 3) and left.numbers == (1, 2)
    assert left.among({3, 4}).numbers == (2,) and left.among({2}).numbers == ()
    sharded = lay_out(range(8), hosts_of(8), shards=2, slices=2)
    assert sharded.numbers == (0, 1, 2, 3) and sharded.among(range(4, 8)).numbers == (2, 3)
    for alone in (lay_out((3, 5, 9), {3: "a", 5: "b", 9: "a"}), lay_out((3, 5), {3: "a", 5: "a"}, shards=2)):
        assert alone.numbers == alone.leaders, "where a worker computes a share by itself, its own number"


def test_slices_lie_within_a_host_and_what_is_left_over_together() -> None:
    mesh = lay_out(range(6), hosts_of(3, 3), slices=2)
    assert mesh.replicas == (((0, 1),), ((2, 5),), ((3, 4),))


def test_stages_go_over_hosts_before_slices_do() -> None:
    hosts = hosts_of(2, 2, 4)
    mesh = lay_out(range(8), hosts, stages=2, slices=2)
    assert mesh.replicas == (((0, 1), (2, 3)), ((4, 5), (6, 7)))
    assert all(len({hosts[one] for one in mesh.along("slice", worker)}) == 1 for worker in range(8))


def test_members_that_are_not_enough_for_another_replica_are_spares() -> None:
    mesh = lay_out(range(7), hosts_of(4, 3), stages=1, slices=2)
    assert mesh.replicas == (((0, 1),), ((2, 3),), ((4, 5),)) and mesh.spares == (6,)
    assert mesh.along("replica", 6) == (6,)
    assert lay_out((4,), {4: "a"}, slices=2) == Mesh((), (4,))


def test_after_a_loss_the_others_are_laid_out_again() -> None:
    hosts = hosts_of(2, 2)
    assert lay_out(range(4), hosts, slices=2).replicas == (((0, 1),), ((2, 3),))
    assert lay_out((0, 2, 3), hosts, slices=2) == Mesh((((2, 3),),), (0,))
    assert lay_out((0, 3), hosts, slices=2) == Mesh((((0, 3),),))
