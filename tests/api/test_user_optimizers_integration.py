"""Training with the user's own optimizer and schedule: with workers, in folds, simulated and resumed."""

import pytest
import torch
from torch import nn

import tenfold

pytestmark = pytest.mark.usefixtures("_workers_with_imports", "_in_a_folder_of_its_own")
X = torch.randn(128, 5, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()


def optimizer(parameters):
    return torch.optim.NAdam(parameters, lr=0.02)


def schedule(optimizer, steps):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)


BASE = {"model": lambda: nn.Linear(5, 2), "data": (X, Y), "epochs": 4, "batch_size": 16}
OWN = {"optimizer": optimizer, "schedule": schedule}


@pytest.mark.parametrize("workers", [1, 2])
def test_it_trains(workers):
    run = tenfold.train(**BASE, **OWN, workers=workers)
    assert run.accuracy > 0.8
    assert (
        run.experiment.flat()["optimizer"].endswith("optimizer>") or ":optimizer" in run.experiment.flat()["optimizer"]
    )


def test_folds_and_simulation():
    assert tenfold.cross_validate(**BASE, **OWN, folds=2).best.accuracy > 0.7
    assert (
        tenfold.simulate(**BASE, **OWN, workers=4, cluster={"groups": [{"count": 4, "step_seconds": 0.01}]}).accuracy
        > 0.6
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_a_resumed_run_ends_with_the_same_weights(workers):
    whole = tenfold.train(**BASE, **OWN, workers=workers)

    def interrupt(event):
        if getattr(event, "epoch", 0) >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tenfold.train(**BASE, **OWN, workers=workers, listen=interrupt)
    resumed = tenfold.resume(model=BASE["model"], data=(X, Y), optimizer=optimizer, schedule=schedule)
    assert all(torch.equal(item, resumed.weights[name]) for name, item in whole.weights.items())


def test_a_resumed_run_keeps_the_fisher_matrices_of_every_worker():
    fields = BASE | {"optimizer": "ng-sgd", "workers": 4}
    whole = tenfold.train(**fields)

    def interrupt(event):
        if getattr(event, "epoch", 0) >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tenfold.train(**fields, listen=interrupt)
    resumed = tenfold.resume(model=BASE["model"], data=(X, Y))
    assert whole.accuracy > 0.7
    assert all(torch.equal(item, resumed.weights[name]) for name, item in whole.weights.items())
