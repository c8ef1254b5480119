"""The models of all folds put together: their weights averaged, or their outputs combined in a vote."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.crossval.fold import OUTPUTS
from tenfold.data.tree import find_main_output, tree_combine
from tenfold.experiment import Training
from tenfold.machine import devices
from tenfold.mixing.round import exact_round
from tenfold.runs import stored_predictions, tensor_file
from tenfold.training import FlatState, all_targets, choose_loss, choose_metrics, evaluate, measure
from tenfold.training.measures import OutputKind, output_kind
from tenfold.training.network_call import plain_outputs
from tenfold.transport import average_in_rank_order, compute_shares
from tenfold.workers.task import Task, make_network

AVERAGE = "average.pt"
"""The file with the average of all models' weights."""


def combine_outputs(outputs: Sequence[Any], kind: OutputKind) -> Any:
    """Return the outputs of several models as one, in the form in which a single model puts them out.

    Probabilities are averaged: for classes the logarithm of their mean is returned, for a single logit the logit of
    their mean. Plain numbers, and logits for each position of a sample, are averaged as they are. Of several outputs,
    `kind` is that of the main one; others are averaged.
    """
    if not isinstance(outputs[0], Tensor):
        main = find_main_output(outputs[0])

        def combine(leaves: list[Tensor]) -> Any:
            return combine_outputs(leaves, kind if leaves[0] is main else "numbers")

        return tree_combine(combine, outputs)
    stacked = torch.stack(list(outputs))
    if kind == "classes" and stacked.ndim == 3:
        return stacked.log_softmax(-1).logsumexp(0) - math.log(len(stacked))
    if kind == "logit":
        return torch.logit(stacked.sigmoid().mean(0), eps=1e-7)
    return stacked.mean(0)


class Vote(nn.Module):
    """Several networks as one, which averages their probabilities or numbers."""

    def __init__(self, networks: Sequence[nn.Module], training: Training, classes: int | None) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.training_fields, self.classes = training, classes
        """What the outputs are is judged by these, see `output_kind`."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the combined outputs of all networks."""
        outputs = [plain_outputs(network(*args, **kwargs)) for network in self.networks]
        kind = output_kind(self.training_fields, self.classes, find_main_output(outputs[0]))
        return combine_outputs(outputs, kind)


def average_weights(network: nn.Module, weights: Sequence[dict[str, Any]], samples: Sequence[int]) -> dict[str, Any]:
    """Return the mean of the models' weights, weighted by the samples each was trained on.

    As in any round the whole state is averaged: for batch normalization mean = avg(mean_i) and
    var = avg(var_i) + var(mean_i). `network` is one of the same architecture; it is left with the mean.
    """
    network.load_state_dict(weights[0])
    flat = FlatState(network)
    vectors = []
    for one in weights:
        network.load_state_dict(one)
        flat.batch_norm.variances_to_moments()
        vectors.append(flat.vector.clone())
    counts = compute_shares(exact_round(len(weights)), [float(count) for count in samples], 0)
    average_in_rank_order(vectors, counts, flat.vector)
    flat.batch_norm.moments_to_variances(replicas_are_equal=False)
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def save_average(task: Task, samples: dict[Path, int], path: Path) -> dict[str, float]:
    """Save the average of the weights in some folders of runs, and return its metrics on the test part.

    `samples` has for each folder the number of samples that its model was trained on.
    """
    network = make_network(task)
    weights = [dict(tensor_file.load(folder / "model.pt")) for folder in samples]
    tensor_file.save(average_weights(network, weights, list(samples.values())), path)
    if task.splits.test is None:
        return {}
    network = network.to(devices.resolve(task.experiment.machine.device))
    return evaluate(network, task.splits.test, *_measures(task), precision=task.experiment.training.precision)


def measure_vote(task: Task, folders: Iterable[Path]) -> dict[str, float]:
    """Return the metrics, on the test part, of the vote of the models in some folders of runs."""
    splits, training = task.splits, task.experiment.training
    if splits.test is None:
        return {}
    folders = list(folders)
    outputs = [_test_outputs(folder) for folder in folders]
    if any(one is None for one in outputs):  # too large to be stored
        device = devices.resolve(task.experiment.machine.device)
        vote = Vote([_fold_network(task, folder) for folder in folders], training, splits.classes).to(device)
        return evaluate(vote, splits.test, *_measures(task), precision=training.precision)
    kind = output_kind(training, splits.classes, find_main_output(outputs[0]))
    return measure(combine_outputs(outputs, kind), all_targets(splits.test), *_measures(task))


def _fold_network(task: Task, folder: Path) -> nn.Module:
    network = make_network(task)
    network.load_state_dict(dict(tensor_file.load(folder / "model.pt")))
    return network


def _measures(task: Task) -> tuple[Any, Any]:
    training, classes = task.experiment.training, task.splits.classes
    return choose_loss(training, classes), choose_metrics(training, classes)


def _test_outputs(folder: Path) -> Any:
    """Return a fold's outputs on the test part, from the file that holds them; None where there is none."""
    if (folder / OUTPUTS).exists():
        return tensor_file.load(folder / OUTPUTS)
    stored = stored_predictions.load(folder / stored_predictions.FILE, "test")
    return torch.from_numpy(stored.outputs) if stored is not None else None
