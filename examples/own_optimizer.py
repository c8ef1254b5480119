"""Use your own optimizer and schedule: torch classes, or a function of the network. Embeddings may be sparse.

Expected output (the last digits depend on the processor):

    NAdam with StepLR, 1 worker: accuracy 0.9
    two learning rates, 2 workers: accuracy 0.9
"""

import torch
from torch import Tensor, nn

import tenfold

generator = torch.Generator().manual_seed(0)
words = torch.randint(0, 50, (1000, 12), generator=generator)
label = (words.float().mean(1) > 24.5).long()


class Network(nn.Module):
    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(50, 8, mode="sum", sparse=sparse)
        self.last = nn.Linear(8, 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.last(self.embed(words))


def two_rates(network: nn.Module) -> torch.optim.Optimizer:
    groups = [{"params": network.embed.parameters(), "lr": 0.2}, {"params": network.last.parameters()}]
    return torch.optim.Adagrad(groups, lr=0.1)


options = {"model": Network, "data": (words, label), "epochs": 5, "batch_size": 32}
steps = tenfold.train(
    **options,
    optimizer=torch.optim.NAdam,
    optimizer_options={"betas": [0.9, 0.99]},
    lr=0.02,
    schedule=torch.optim.lr_scheduler.StepLR,
    schedule_options={"step_size": 50, "gamma": 0.5},
)
print(f"NAdam with StepLR, 1 worker: accuracy {steps.accuracy:.1f}")
rates = tenfold.train(**options, model_options={"sparse": True}, optimizer=two_rates, workers=2)
print(f"two learning rates, 2 workers: accuracy {rates.accuracy:.1f}")
