"""Plain PyTorch, with a progress bar."""

import sys

import torch
from parts import batches, classifier
from tqdm import tqdm

torch.manual_seed(1)
model = classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loss_of = torch.nn.CrossEntropyLoss()
with tqdm(batches()) as bar:
    for x, y in bar:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        bar.set_postfix(loss=loss.item())
torch.save(model.state_dict(), sys.argv[1])
