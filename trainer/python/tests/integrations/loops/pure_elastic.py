"""Plain PyTorch, with a progress bar."""

import sys

import torch
from parts import batches, classifier
from tqdm import tqdm

import lull

torch.manual_seed(1)
model = classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loss_of = torch.nn.CrossEntropyLoss()
elastic = lull.attach(model, optimizer)
with tqdm(batches()) as bar:
    for x, y in bar:
        optimizer.zero_grad()
        loss = elastic.backward((x, y), lambda part: loss_of(model(part[0]), part[1]))
        optimizer.step()
        bar.set_postfix(loss=loss.item(), **elastic.shown())
torch.save(model.state_dict(), sys.argv[1])
