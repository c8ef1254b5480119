"""Use a saved run's network in another process, although its class was defined in this script.

Expected output:

    this process knows Network: True
    another process, without trust: the model <Network> of run 1 was given as a Python object ...
    another process, with trust: the same outputs: True
"""

import subprocess
import sys

import torch
from torch import nn

import tenfold


class Network(nn.Module):
    def __init__(self, outputs: int, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


run = tenfold.train(model=Network, data="digits", limit=300, epochs=1, threads=1)
print(f"this process knows Network: {isinstance(run.model, Network)}", flush=True)
sample = torch.ones(1, 1, 8, 8)
with torch.no_grad():
    torch.save(run.model(sample), "outputs.pt")

ELSEWHERE = """
import tenfold, torch
try:
    tenfold.open_run().model
except tenfold.TenfoldError as error:
    print(f"another process, without trust: {error}")
network = tenfold.open_run(trust=True).model  # unpickling runs code: only from folders that nobody else writes to
with torch.no_grad():
    same = torch.equal(network(torch.ones(1, 1, 8, 8)), torch.load("outputs.pt"))
print(f"another process, with trust: the same outputs: {same}")
"""
subprocess.run([sys.executable, "-c", ELSEWHERE], check=True)
