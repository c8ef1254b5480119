"""Divide your own training loop among ranks with two lines, which are marked.

Start the program in one process or in several:

    python own_loop.py
    torchrun --nproc-per-node 2 own_loop.py
    mpirun -n 2 python own_loop.py

Expected output (the last digits depend on the processor and on the number of ranks), from rank 0:

    1 rank, 540 steps each: test accuracy 0.92
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tenfold

torch.set_num_threads(1)  # ranks of one machine share its cores
torch.manual_seed(0)

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
loader = DataLoader(TensorDataset(x[:1440], y[:1440]), batch_size=32, shuffle=True)

model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

with tenfold.average(model, optimizer, strategy="butterfly", sync_every=4) as ranks:  # the first line
    batches = tenfold.shard(loader)  # and the second
    for _ in range(12):
        for inputs, targets in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()

if ranks.rank == 0:
    model.eval()
    with torch.no_grad():
        accuracy = (model(x[1440:]).argmax(1) == y[1440:]).float().mean()
    count = f"{ranks.size} rank{'s' if ranks.size > 1 else ''}"
    print(f"{count}, {ranks.steps} steps each: test accuracy {accuracy:.2f}")
