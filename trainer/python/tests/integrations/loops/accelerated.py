"""A loop under accelerate."""

import sys

import torch
from accelerate import Accelerator
from parts import batches, classifier

torch.manual_seed(1)
accelerator = Accelerator(cpu=True)
model = classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loss_of = torch.nn.CrossEntropyLoss()
model, optimizer = accelerator.prepare(model, optimizer)
for x, y in batches():
    optimizer.zero_grad()
    loss = loss_of(model(x), y)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
accelerator.save(accelerator.unwrap_model(model).state_dict(), sys.argv[1])
