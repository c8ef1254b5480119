import torch
from looped import looped
from torch import nn

from tenfold.data import Splits, Tensors
from tenfold.experiment import Experiment
from tenfold.prediction.calibration import step_key

IMAGES = Splits(
    name="noise",
    train=Tensors(torch.zeros(4, 1, 28, 28), torch.zeros(4).long()),
    shape=(1, 28, 28),
    classes=10,
    outputs=10,
)


def test_it_reads_as_a_line():
    experiment = Experiment(model="mlp", hidden=[128, 64], dropout=0.1, optimizer="sgd")
    assert step_key(experiment, IMAGES) == "mlp hidden=[128, 64] dropout=0.1, 1x28x28 -> 10, sgd, fp32"


@looped(
    "change",
    [
        {"model": "cnn"},
        {"batchnorm": True},
        {"optimizer": "adam"},
        {"momentum": 0.0},
        {"clip": 1.0},
        {"precision": "bf16"},
        {"loss": "mse"},
    ],
)
def test_what_changes_a_step_changes_the_line(change):
    base = {"optimizer": "sgd"}
    assert step_key(Experiment(**base | change), IMAGES) != step_key(Experiment(**base), IMAGES)


@looped("change", [{"lr": 0.1}, {"epochs": 9}, {"workers": 2, "strategy": "ring"}, {"seed": 3}])
def test_what_does_not_leaves_it(change):
    assert step_key(Experiment(**change), IMAGES) == step_key(Experiment(), IMAGES)


def test_networks_made_on_the_spot_are_told_apart_by_their_size():
    lines = {
        step_key(Experiment(model=lambda width=width: nn.Sequential(nn.Flatten(), nn.Linear(784, width))), IMAGES)
        for width in (3, 4)
    }
    assert len(lines) == 2
