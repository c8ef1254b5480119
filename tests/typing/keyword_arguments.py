"""Checked by mypy in `make check`: right arguments pass, and each wrong one is an error, or its ignore is unused."""

import torch

import tenfold

tenfold.train(model="mlp", data="digits", epochs=3, lr=0.1, workers=2, strategy="butterfly", hidden=[64, 32])
tenfold.train(model=torch.nn.Linear, data=(torch.zeros(4, 2), torch.zeros(4)), optimizer=torch.optim.NAdam)
tenfold.train(workers="auto")
tenfold.compare(workers=[1, 2, 4], strategy=["allreduce", "ring"], lr=0.1, seed=range(3))
tenfold.simulate(workers=64, link="10gbe", cluster=tenfold.Cluster.of(64, "10gbe"))
tenfold.Experiment(lr=0.1, training={"epochs": 3}).replace(batch_size=None)
tenfold.cross_validate(folds=5, fold_mode="stacked").confidence(0.95)
tenfold.open_run("last", trust=True).tag("paper")
tenfold.train(**tenfold.Experiment().flat())

tenfold.train(epoch=3)  # type: ignore[call-arg]
tenfold.train(lr="abc")  # type: ignore[arg-type]
tenfold.train(workers=2.5)  # type: ignore[arg-type]
tenfold.compare(workers=["one"])  # type: ignore[list-item]
tenfold.Experiment(epochs="three")  # type: ignore[arg-type]
tenfold.cross_validate(fold=5)  # type: ignore[call-overload]
