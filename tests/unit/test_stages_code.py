"""Models in stages whose own code does more between the layers: draws, looks at numbers, writes, catches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cordee.core.errors import ModelError
from staging import close, compare, loss_of, make_stages, mlp, names, rows, run_stages

F = nn.functional
pytestmark = pytest.mark.usefixtures("calm")


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.drop, self.head = nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 3)
        self.block = nn.TransformerEncoderLayer(64, 2, 16, 0.5)  # draws within

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.block(self.drop(self.stem(x))), 0.5, self.training))


def test_what_is_drawn_outside_of_layers_is_the_same_on_all_stages() -> None:
    def objective(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        noise = torch.randn_like(batch[0])
        noises.append(noise)
        return F.cross_entropy(model(batch[0] + noise), batch[1]) + noise.mean()

    noises: list[Tensor] = []
    batch = rows(4)[0]
    staged = make_stages(Dropping().double(), objective, batch, 3)
    assert staged[0].stages.draws
    found = []
    for draw in (1, 2, 1):
        noises.clear()
        before = torch.get_rng_state()
        run_stages(staged, objective, batch, draw=draw)
        drawn = [noise for noise in noises if torch.equal(noise, noises[0])]
        assert len(drawn) >= 3  # once on each stage; the others found out shapes
        found.append(drawn[0])
        assert torch.equal(before, torch.get_rng_state())  # what the process draws elsewhere does not depend on it
    assert torch.equal(found[0], found[2]) and not torch.equal(found[0], found[1])
    for one in staged:
        assert all(parameter.grad is not None for parameter in one.owned().values())


class Writes(nn.Module):
    """Writes into what a layer gave, by another view of it, and uses it again two layers later."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.a(x)
        hidden.view(-1).add_(self.b(hidden + 1).view(-1))
        return self.d(hidden + self.c(hidden + 1))


@pytest.mark.parametrize("first", [["a", "b"], ["a", "c"], ["a", "d"], ["a", "b", "c", "d"]])
def test_code_between_layers_that_writes_into_their_results(first: list[str]) -> None:
    assert compare(Writes().double(), loss_of, rows(4, 3), first).writes


class Looks(nn.Module):
    """Looks at numbers between two layers, which decide how the next is called."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.c(self.b(x * 3 if x.mean() != 0 else x))


def test_control_flow_by_numbers_between_layers_goes_with_the_next_stage() -> None:
    assert names(compare(Looks().double(), loss_of, rows(4, 3), 2)) == ["a", "b"]


def test_code_that_catches_exceptions_does_not_catch_ours() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp()

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.layers(x)
            except Exception:
                return x.new_zeros(len(x), 3)

    compare(Careful().double(), loss_of, rows(4, 2), 3)


def test_what_lies_on_other_stages_takes_no_memory() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    first, last = make_stages(model, loss_of, rows(3)[0], ["0", "2"])
    assert set(first.model.state_dict()) | set(last.model.state_dict()) == set(model.state_dict())
    assert set(last.model.state_dict()) == {"2.weight", "2.bias"} == set(last.owned()) == set(last.owned(1))
    assert last.owned(0) == {}
    dropped = last.model[0].weight
    assert not isinstance(dropped, nn.Parameter) and dropped.shape == (8, 6)
    assert dropped.untyped_storage().nbytes() == 8  # one number
    optimizer = torch.optim.SGD(last.model.parameters(), lr=0.1)
    assert len(optimizer.param_groups[0]["params"]) == 2


class Experts(nn.Module):
    """Each sample is computed by one of three layers; those that no sample chooses are not called."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.gate, self.head = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        weights, chosen = self.gate(x).softmax(-1).max(-1)
        for number, expert in enumerate(self.experts):
            places = (chosen == number).nonzero()[:, 0]
            if len(places):
                x = x.index_add(0, places, weights[places, None] * expert(x[places]))
        return self.head(x)


def test_a_layer_that_was_not_called_when_stages_were_planned_is_refused() -> None:
    """On stages that do not hold it, it would compute with zeros."""
    model = Experts().double()
    with torch.no_grad():
        model.gate.bias.copy_(torch.tensor([9.0, 0.0, 0.0]))
    batch = rows(4)[0]
    staged = make_stages(model, loss_of, batch, ["enter", "gate"])
    wanted = loss_of(model, batch)
    wanted.backward()
    close(run_stages(staged, loss_of, batch), wanted.detach(), "loss")
    for one in (one for one in staged if 1 in one.mine):
        with torch.no_grad():
            one.model.gate.bias.copy_(torch.tensor([0.0, 9.0, 0.0]))  # type: ignore[union-attr, operator]
    with pytest.raises(ModelError, match=r"layer 'experts\.1' was called, but not when the stages were planned"):
        run_stages(staged, loss_of, batch)
