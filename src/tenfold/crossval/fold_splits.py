"""Which samples each model of a cross-validation trains on, and which it is validated on."""

from dataclasses import dataclass

import numpy as np

from tenfold.crossval.fold_experiment import resolve_fold_mode
from tenfold.data import Fold, make_folds
from tenfold.runs.fold_name import fold_name
from tenfold.workers.task import Task


@dataclass(frozen=True)
class FoldSplit(Fold):
    """A fold of the whole training part, or of a node's shard of it; samples are those of the training part."""

    node: int
    """From 1 where every node has its own shard, else 0."""

    @property
    def key(self) -> tuple[int, int, int]:
        """Its node, repeat and fold, which identify it within the cross-validation."""
        return self.node, self.repeat, self.fold

    @property
    def name(self) -> str:
        """Its name in titles and messages: "fold 3", "node 1, repeat 2, fold 3"."""
        return fold_name(self.fold, self.repeat, self.node)


def make_fold_splits(task: Task) -> list[FoldSplit]:
    """Return the split of every model, in training order; none contains a sample of the test part.

    With fold_mode = "data-and-folds" each node splits its own shard into folds; otherwise the whole training part is
    split.
    """
    experiment, splits = task.experiment, task.splits
    division, targets = experiment.division, splits.train.targets
    by_node = resolve_fold_mode(experiment) == "data-and-folds"
    sources = list(task.shards) if by_node else [np.arange(len(splits.train))]
    found = []
    for node, samples in enumerate(sources, 1):
        cut = make_folds(
            len(samples) if targets is None else targets[samples],
            division.folds or 2,
            division.fold_kind,
            repeats=division.fold_repeats,
            seed=experiment.data.split_seed,
            groups=None if splits.groups is None else splits.groups[samples],
        )
        found += [
            FoldSplit(one.fold, one.repeat, samples[one.train], samples[one.validation], node if by_node else 0)
            for one in cut
        ]
    return sorted(found, key=lambda split: (split.repeat, split.fold, split.node))
