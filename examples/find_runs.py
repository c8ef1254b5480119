"""Record some runs, tag the best one, and find runs by their fields, results and tags.

Expected output (the accuracies depend on the processor):

    3 runs, 2 of them with lr > 0.01
    the best one: lr 0.02, tagged ('best',)
"""

import tenfold

for lr in (0.005, 0.02, 0.05):
    tenfold.train(model="mlp", data="digits", limit=400, epochs=2, threads=1, optimizer="adam", lr=lr, name=f"lr {lr}")

print(f"{len(tenfold.list_runs())} runs, {len(tenfold.list_runs(filter='lr>0.01'))} of them with lr > 0.01")
best = max(tenfold.list_runs(filter="status=finished"), key=lambda run: run.accuracy or 0)
best.tag("best")
best.set_note("highest accuracy of three learning rates")
(found,) = tenfold.list_runs(filter="tag=best")
print(f"the best one: lr {found.experiment.training.lr}, tagged {found.tags}")
