"""BatchNorm over the global batch: all formats, layouts and shares against one process that has the whole batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cordee.core.errors import ModelError
from cordee.group.team import Team
from cordee.sync.batchnorm import StepState, bind, set_aside, together
from cordee.sync.meeting_points import backward_from, meeting_points
from members import Outcome, Seat, Table, lost, members, shared_out, whole

CHANNELS = 6
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PLACES: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "channels last in space": lambda x: x.to(memory_format=torch.channels_last_3d),
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
}


def layer_for(x: Tensor, **settings: Any) -> nn.Module:
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[x.dim()]
    layer: nn.Module = kind(CHANNELS, **settings)
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.data = torch.rand(CHANNELS, generator=generator) + 0.5
    return layer


def drawn(shape: Sequence[int], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def worst(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).detach().abs().max())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shares", [(3, 5), (6, 0, 1, 1)], ids=["two", "four, one of them empty"])
@pytest.mark.parametrize(
    ("inner", "place"),
    [
        ((), "as it is"),
        ((7,), "as it is"),
        ((7,), "transposed"),
        ((4, 3), "as it is"),
        ((4, 3), "channels last"),
        ((2, 3, 2), "as it is"),
        ((2, 3, 2), "channels last in space"),
    ],
)
@pytest.mark.parametrize(
    "settings",
    [{}, {"affine": False, "momentum": None}, {"track_running_stats": False}],
    ids=["usual", "no affine, cumulative", "no running statistics"],
)
def test_shares_together_are_the_whole_batch(
    settings: dict[str, Any], inner: tuple[int, ...], place: str, shares: Sequence[int], device: str
) -> None:
    shape = (sum(shares), CHANNELS, *inner)
    x, upstream = (PLACES[place](drawn(shape, seed).to(device)) for seed in (0, 1))
    layer = layer_for(x, **settings).double().to(device)
    parts = shared_out(layer, x, upstream, shares)
    plain = Outcome(layer, x, upstream)
    out, d_x, gradients = whole(parts, shares)
    torch.testing.assert_close(out, plain.out, rtol=0, atol=1e-12)
    torch.testing.assert_close(d_x, plain.d_x, rtol=0, atol=1e-12)
    for mine, wanted in zip(gradients, plain.gradients(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-12)
    for part in parts:  # the empty share's too
        for name, buffer in layer.named_buffers():
            torch.testing.assert_close(part.layer.get_buffer(name), buffer, rtol=0, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "parameters", [torch.float32, None], ids=["float32 parameters", "parameters of the same format"]
)
@pytest.mark.parametrize("place", ["as it is", "channels last"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_formats_are_rounded_once(
    dtype: torch.dtype, place: str, parameters: torch.dtype | None, device: str
) -> None:
    shares = (5, 0, 11)
    x, upstream = (PLACES[place](drawn((16, CHANNELS, 5, 5), seed).to(device, dtype)) for seed in (0, 1))
    layer = layer_for(x).to(device, parameters or dtype)
    exact = Outcome(copy.deepcopy(layer).double(), x.double(), upstream.double())
    out, d_x, gradients = whole(shared_out(layer, x, upstream, shares), shares)
    half_a_step = torch.finfo(dtype).eps / 2 * 1.01
    torch.testing.assert_close(out.double(), exact.out, rtol=half_a_step, atol=1e-5)
    torch.testing.assert_close(d_x.double(), exact.d_x, rtol=half_a_step, atol=1e-5)
    rtol = 1e-5 if parameters else 4 * half_a_step
    for mine, wanted in zip(gradients, exact.gradients(), strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=rtol, atol=1e-4 if parameters else 4 * half_a_step)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("shape", "place"),
    [
        ((8192, CHANNELS), "as it is"),
        ((128, CHANNELS, 40, 40), "as it is"),
        ((128, CHANNELS, 40, 40), "channels last"),
    ],
)
@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_a_mean_that_is_large_against_its_deviation(mean: float, shape: Sequence[int], place: str, device: str) -> None:
    """In float32: nothing is further from the truth than rounding such inputs makes it."""
    shares = (shape[0] // 3, shape[0] - shape[0] // 3)
    x = PLACES[place]((drawn(shape) + mean).float().to(device))
    upstream = PLACES[place]((drawn(shape, 1) + 1).float().to(device))
    layer = layer_for(x, momentum=1.0).to(device)
    exact = Outcome(copy.deepcopy(layer).double(), x.double(), upstream.double())
    parts = shared_out(layer, x, upstream, shares)
    out, d_x, gradients = whole(parts, shares)
    # Half the distance of two float32 numbers of that size, of deviation 1; a GPU adds up in float32.
    step = 2.0**-24 * (mean + 8.0) * (1 if device == "cpu" else 4)
    assert worst(out, exact.out) <= 5 * step
    assert worst(d_x, exact.d_x) <= 10 * step
    terms = x.numel() / CHANNELS
    for mine, wanted in zip(gradients, exact.gradients(), strict=True):
        assert worst(mine, wanted) <= 2 * step * terms
    buffers, wanted = dict(parts[1].layer.named_buffers()), dict(exact.layer.named_buffers())
    assert worst(buffers["running_mean"], wanted["running_mean"]) <= 2 * step
    assert worst(buffers["running_var"], wanted["running_var"]) <= (1e-6 if device == "cpu" else 1e-4)


def test_a_channel_that_never_varies_has_its_own_mean_and_no_variance() -> None:
    x = torch.full((64, CHANNELS, 3, 3), 1234.567)
    part = shared_out(layer_for(x, momentum=1.0), x, torch.ones_like(x), (20, 44))[0]
    assert torch.equal(part.layer.get_buffer("running_var"), torch.zeros(CHANNELS))
    assert worst(part.layer.get_buffer("running_mean"), x[0, :, 0, 0]) == 0.0


@pytest.mark.parametrize("device", DEVICES)
def test_a_share_without_any_number_in_it(device: str) -> None:
    x, upstream = drawn((4, CHANNELS, 3, 3)).to(device), drawn((4, CHANNELS, 3, 3), 1).to(device)
    layer = layer_for(x).double().to(device)
    full, empty = members(layer, [(x, upstream, False), (x[:0], upstream[:0], False)])
    plain = Outcome(layer, x, upstream)
    torch.testing.assert_close(full.d_x, plain.d_x, rtol=0, atol=1e-12)
    assert empty.d_x.shape == (0, CHANNELS, 3, 3)
    assert all(not gradient.any() for gradient in empty.gradients())


@pytest.mark.parametrize("silent", [False, True])
def test_a_gather_that_fails_makes_the_step_void_and_everything_stays_finite(silent: bool) -> None:
    x = drawn((3, CHANNELS, 2)).float()
    layer, state = layer_for(x), StepState(silent=silent)
    bind(layer, "exact", lost(), state)
    outcome = Outcome(layer, x, torch.ones_like(x))
    assert state.void
    assert outcome.out.isfinite().all() and outcome.d_x.isfinite().all()


# ------------------------------------------------------------- torch's SyncBatchNorm


def test_sync_batchnorm_is_a_batchnorm_like_others() -> None:
    x, upstream = drawn((8, CHANNELS, 3)), drawn((8, CHANNELS, 3), 1)
    layer = nn.SyncBatchNorm.convert_sync_batchnorm(layer_for(x).double())
    parts = shared_out(layer, x, upstream, (3, 5))
    plain = Outcome(layer, x, upstream)
    out, d_x, _ = whole(parts, (3, 5))
    torch.testing.assert_close(out, plain.out, rtol=0, atol=1e-12)
    torch.testing.assert_close(d_x, plain.d_x, rtol=0, atol=1e-12)
    torch.testing.assert_close(parts[1].layer.running_var, layer.running_var, rtol=0, atol=1e-12)


def test_sync_batchnorm_of_each_replica_has_the_statistics_of_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    x, layer = drawn((5, CHANNELS)), nn.SyncBatchNorm(CHANNELS).double()
    wanted = nn.BatchNorm1d(CHANNELS).double()(x)
    bind(layer, "replica", lost(), StepState())
    assert type(layer).__name__ == "ReplicaSyncBatchNorm"
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)  # as a script for DDP leaves it
    torch.testing.assert_close(layer(x), wanted, rtol=0, atol=1e-12)


def test_a_sync_batchnorm_with_a_forward_of_its_own_is_refused() -> None:
    class Own(nn.SyncBatchNorm):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).relu()

    with pytest.raises(ModelError, match="Own"):
        bind(Own(CHANNELS), "exact", lost(), StepState())


# ------------------------------------------------------------- a share whose loss weighs nothing


def test_a_loss_that_weighs_nothing_is_left_out_though_its_gradient_is_not_a_number() -> None:
    """There is a way past the second layer: what is NaN there must not meet what others say of the first."""
    first, second, unused = (layer_for(drawn((2, CHANNELS))).double() for _ in range(3))
    table = Table(2)
    for _ in range(Table.ROUNDS):
        seat, state = Seat(table, 0), StepState()
        for layer in (first, second, unused):
            layer.zero_grad()
            bind(layer, "exact", seat, state)
        for turn in (3, 4):  # what another share gathers of its gradients, which come after three layers' statistics
            table.parts[turn, 1] = torch.ones(2, CHANNELS, dtype=torch.float64)
        x = drawn((4, CHANNELS)).requires_grad_()
        hidden = first(x)
        unused(hidden)
        points = meeting_points(((second(hidden) + hidden) * 0).sum() / 0)
        assert len(points) == 2
        backward_from(points)
    assert x.grad is not None and x.grad.isfinite().all() and x.grad.any()
    assert not any(parameter.grad.any() for parameter in second.parameters() if parameter.grad is not None)
    assert not table.parts[3, 0].any() and table.parts[4, 0].any()


def test_where_no_layer_is_over_the_global_batch_no_gradients_meet() -> None:
    model = nn.Sequential(nn.Linear(CHANNELS, CHANNELS), nn.BatchNorm1d(CHANNELS))
    assert meeting_points(model(torch.randn(4, CHANNELS)).sum()) == []


# ------------------------------------------------------------- without running statistics


def test_evaluated_together_a_layer_without_running_statistics_has_those_of_the_whole_batch() -> None:
    x = drawn((8, CHANNELS, 2))
    layer = layer_for(x, track_running_stats=False).double().eval()
    table, outs = Table(3), []
    for _ in range(Table.ROUNDS):
        outs.clear()
        for number, rows in enumerate((slice(0, 3), slice(3, 8), slice(0, 1))):
            mine, seat, state = copy.deepcopy(layer), Seat(table, number), StepState(silent=True, void=True)
            bind(mine, "exact", seat, state)
            with together(mine, seat) as now:
                assert now is state and now.together and not now.void
                now.silent = number == 2
                outs.append(mine(x[rows]))
            assert state == StepState(silent=True, void=True)
    torch.testing.assert_close(torch.cat(outs[:2]), layer(x), rtol=0, atol=1e-12)
    outside = mine(x[:3])  # by itself: nobody can be asked
    torch.testing.assert_close(outside, layer(x[:3]), rtol=0, atol=1e-12)


def test_layers_with_running_statistics_ask_nobody_in_evaluation() -> None:
    layer, comm = nn.BatchNorm1d(CHANNELS), lost()
    bind(layer, "exact", comm, StepState())
    with together(layer.eval(), comm) as state:
        assert not state.together
        layer(torch.randn(4, CHANNELS))
    assert not state.void


@pytest.mark.parametrize("affine", [True, False])
def test_set_aside_no_layer_mixes_samples_and_nothing_stays(affine: bool) -> None:
    layer = nn.BatchNorm1d(CHANNELS, affine=affine, track_running_stats=False).double().eval()
    x = drawn((4, CHANNELS))
    with set_aside(layer):
        torch.testing.assert_close(layer(input=x)[:1], layer(x[:1]))
    assert not list(layer.buffers()) and type(layer) is nn.BatchNorm1d
    assert worst(layer(x)[:2], layer(x[:2])) > 0.1
    bind(layer, "exact", lost(), StepState())  # by a former session
    with set_aside(layer):
        torch.testing.assert_close(layer(x)[:1], layer(x[:1]))
    assert type(layer).__name__ == "ExactBatchNorm1d" and type(copy.deepcopy(layer)) is type(layer)
    bind(layer, "replica", lost(), StepState())
    assert type(layer).__name__ == "ReplicaBatchNorm1d"


# ------------------------------------------------------------- one value per channel

ONE_VALUE = f"BatchNorm over {CHANNELS} channels got one value per channel.*drop_last=True"


def test_a_global_batch_of_one_value_is_refused_by_everybody() -> None:
    table = Table(2)
    for number, silent in ((0, False), (1, True)):
        table.parts[0, number] = torch.tensor([0.0] * 2 * CHANNELS + [float(not silent)], dtype=torch.float64)
        table.parts[0, 1 - number] = torch.tensor([0.0] * 2 * CHANNELS + [float(silent)], dtype=torch.float64)
        layer = nn.BatchNorm1d(CHANNELS)
        bind(layer, "exact", Seat(table, number), StepState(silent=silent))
        with pytest.raises(ModelError, match=ONE_VALUE):
            layer(torch.randn(1, CHANNELS))


def test_one_worker_refuses_it_in_the_same_words() -> None:
    layer = nn.BatchNorm1d(CHANNELS)
    for _ in range(2):
        bind(layer, "exact", Team().layers, StepState())
    assert len(layer._forward_pre_hooks) == 1 and type(layer) is nn.BatchNorm1d
    with pytest.raises(ModelError, match=ONE_VALUE):
        layer(torch.randn(1, CHANNELS))
    layer(torch.randn(1, CHANNELS, 2))
    layer.eval()(torch.randn(1, CHANNELS))


def test_a_share_of_one_value_is_refused_where_every_share_counts_by_itself() -> None:
    layer = nn.BatchNorm1d(CHANNELS)
    bind(layer, "replica", lost(), StepState())
    with pytest.raises(ModelError, match=ONE_VALUE):
        layer(torch.randn(1, CHANNELS))
