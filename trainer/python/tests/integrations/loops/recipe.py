"""A recipe as torchtune writes them: LoRA, accumulation over batches, a loss divided by the tokens of all of them."""

import sys

import torch
from parts import IGNORED, adapted, texts

ACCUMULATE = 2


def counted(batch):
    return (batch["labels"][:, 1:] != IGNORED).sum()


def loss_step(batch):
    logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
    return loss_fn(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())


torch.manual_seed(1)
model = adapted()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
loss_fn = torch.nn.CrossEntropyLoss(ignore_index=IGNORED)
tokens, running_loss = 0, 0.0
for step, batch in enumerate(texts()):
    tokens += counted(batch)
    current_loss = loss_step(batch) * counted(batch)
    current_loss.backward()
    running_loss += current_loss.item()
    if (step + 1) % ACCUMULATE == 0:
        for p in model.parameters():
            if p.grad is not None:
                p.grad /= tokens
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print("loss", running_loss / int(tokens))
        tokens, running_loss = 0, 0.0
torch.save(model.state_dict(), sys.argv[1])
