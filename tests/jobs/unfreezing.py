"""A loop of its own in which parameters come later: a frozen layer, and a group that is added to the optimizer."""

import sys

import torch
from safetensors.torch import save_file
from torch import nn

import cordee

data = cordee.data.digits()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 10)).double()
model[0].requires_grad_(False)
with cordee.session() as s:
    model = s.prepare(model)
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[4].parameters()], lr=0.1, momentum=0.9, nesterov=True)
    for number, batch in enumerate(s.batches(data.train, batch=101, epochs=1)):
        if number == 4:
            model[0].requires_grad_(True)
        if number == 8:
            optimizer.add_param_group({"params": list(model[2].parameters())})
        s.backward(nn.functional.cross_entropy(model(batch.x.double()), batch.y))
        s.step(optimizer)
    if s.rank == s.size - 1:
        save_file(model.state_dict(), sys.argv[1])
