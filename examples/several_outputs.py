"""Train networks that return several tensors, or compute their loss themselves.

Your own loss and metrics receive all outputs; built-in ones use the output called "logits". Expected output (the last
digits depend on the processor):

    autoencoder with a classifier, 2 workers: accuracy 0.9, blank 0.0
    a network that computes its loss, 2 workers: accuracy 0.9
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import tenfold

images, digits = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.decode, self.classify = nn.Linear(32, 64), nn.Linear(32, 10)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        code = self.encode(images)
        return {
            "logits": self.classify(code),
            "images": self.decode(code),
            "error": functional.mse_loss(self.decode(code), images),
        }


def both(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs["logits"], targets) + outputs["error"]


def blank(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    return ((outputs["images"] > 0.5).sum(1) == 0)[targets == 1].float().mean()


class OwnLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, pixels: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(pixels)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


options = {"optimizer": "adam", "lr": 0.01, "epochs": 3, "workers": 2}
run = tenfold.train(model=Autoencoder, data=(images, digits), loss=both, metrics=["accuracy", blank], **options)
print(f"autoencoder with a classifier, 2 workers: accuracy {run.accuracy:.1f}, blank {run.metrics['blank']:.1f}")
run = tenfold.train(
    model=OwnLoss,
    data={"pixels": images, "labels": digits},
    input_columns=["pixels", "labels"],
    loss="network",
    metrics="accuracy",
    **options,
)
print(f"a network that computes its loss, 2 workers: accuracy {run.accuracy:.1f}")
