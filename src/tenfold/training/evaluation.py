"""Evaluate a network on a part of the data and on its training batches, and select the outputs to store."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tenfold.common.imports import user_frames
from tenfold.data import Part, Splits, batches
from tenfold.data.part import find_main_output, tree_concatenate, tree_leaves, tree_map
from tenfold.data.streams import StreamPart
from tenfold.errors import ModelError
from tenfold.experiment import Training
from tenfold.machine.cores import format_bytes, free_memory, use_threads_that_exist
from tenfold.runs import stored_predictions
from tenfold.runs.stored_predictions import Predictions
from tenfold.training.measures import (
    AlignedMeasure,
    Measure,
    are_probabilities,
    as_number,
    classes_second,
    describe_failure,
    is_share,
    output_kind,
)
from tenfold.training.metrics import ExactSum, PairCounts, Sums, add_sums
from tenfold.training.network_call import autocast, call_network, describe_outputs
from tenfold.training.randomness import keep_rng_state

BATCH, LARGE_BATCH = 128, 512
"""Samples at a time: on a CPU few enough for activations to stay in its cache, nearly twice as fast for `cnn`."""
SMALLEST_BATCH, FEWEST_BATCHES = 64, 16
"""A small part is evaluated in smaller batches, so that several workers have about equally many."""
LARGEST_OUTPUT = 1 << 25
"""Bytes: a network with larger outputs for a batch is given fewer samples at a time, such as one text of 512 words."""
MOST_NUMBERS = 1 << 18
"""Outputs are compared with their targets when at most this many numbers are kept: 1 MB."""
COPIES = 2
"""How often outputs are in memory where a metric needs all of them: where they were computed, and joined."""
MOST_PICTURES = 24
SIDES = range(6, 257)
"""The heights and widths, in pixels, of samples that are treated as pictures."""


def evaluation_batch(samples: int, device_type: str = "cpu") -> int:
    """Return the batch size of an evaluation; it is the same on every worker."""
    if device_type != "cpu":
        return LARGE_BATCH
    return min(BATCH, max(SMALLEST_BATCH, -(-samples // FEWEST_BATCHES)))


def share_of(samples: int, rank: int, size: int) -> Tensor:
    """Return the indices of a part's samples that one of `size` workers evaluates: consecutive batches.

    The batches are the same for any number of workers, so the outputs are bit-equal.
    """
    blocks = batches(torch.arange(samples), evaluation_batch(samples))
    bounds = [len(blocks) * place // size for place in (rank, rank + 1)]
    chosen = blocks[bounds[0] : bounds[1]]
    return torch.cat(chosen) if chosen else torch.arange(0)


def predict(
    network: nn.Module,
    part: Part,
    samples: Tensor,
    *,
    precision: str = "fp32",
    main_only: bool = False,
) -> Any:
    """Return the network's outputs for these samples of the part, in evaluation mode; the previous mode is restored.

    They are a tensor, or a tuple or dict of tensors; a single number per batch, such as a loss computed by the network,
    is repeated for each sample. With `main_only`, only the main one of several outputs is returned, if there is one.
    """
    kept = []
    with evaluation_mode(network):
        for outputs, targets in _outputs_by_batch(network, part, samples, precision=precision):
            main = find_main_output(outputs) if main_only else None
            kept.append(_kept(main) if main is not None else tree_map(_kept, _by_sample(outputs, targets)))
    return join_outputs(kept)


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """In this block, switch a network to evaluation mode without gradients."""
    use_threads_that_exist()
    modes = [(module, module.training) for module in network.modules()]  # a frozen layer may have a different mode
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def _outputs_by_batch(
    network: nn.Module, part: Part, samples: Tensor, *, precision: str, mark: Callable[[], None] = lambda: None
) -> Iterator[tuple[Any, Any]]:
    """Yield the network's outputs and the targets batch by batch; call this within `evaluation_mode`."""
    device_type = next((parameter.device.type for parameter in network.parameters()), "cpu")
    is_first, size = True, None
    for x, y in part.batches(batches(samples, evaluation_batch(len(part), device_type))):
        if is_first:
            is_first, size = False, _piece_size(network, x, y, precision, device_type)
        for inputs, targets in _pieces(x, y, size):
            with autocast(precision, device_type):
                outputs = call_network(network, inputs)
            yield outputs, targets
            mark()


def _piece_size(network: nn.Module, x: Any, y: Any, precision: str, device_type: str) -> int | None:
    """Return the batch size that a network supports, judged by its outputs for two samples; None for any."""
    leaves = [*tree_leaves(x), *tree_leaves(y)]
    samples = len(tree_leaves(y)[0])
    if (
        getattr(network, "takes_whole_batches", False)
        or samples <= 2
        or not all(isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == samples for leaf in leaves)
    ):
        return None
    with keep_rng_state(), autocast(precision, device_type):  # not one: a network may drop a dimension of size 1
        tried = call_network(network, tree_map(lambda leaf: leaf[:2], x))
    each = sum(leaf.nbytes for leaf in tree_leaves(tried)) // 2
    return max(1, LARGEST_OUTPUT // each) if each * BATCH > LARGEST_OUTPUT else None


def _pieces(x: Any, y: Any, size: int | None) -> Iterator[tuple[Any, Any]]:
    """Yield a batch in pieces of this many samples."""
    if size is None:
        yield x, y
        return
    for start in range(0, len(tree_leaves(y)[0]), size):
        cut = slice(start, start + size)
        yield tree_map(itemgetter(cut), x), tree_map(itemgetter(cut), y)


def join_outputs(outputs: Sequence[Any]) -> Any:
    """Concatenate the outputs of several batches; an empty tensor if there are none."""
    kept = [output for output in outputs if output is not None and len(tree_leaves(output)[0])]
    try:
        return tree_concatenate(kept) if kept else torch.empty(0)
    except RuntimeError as error:
        raise ModelError(
            f"the network's outputs for different batches cannot be concatenated ({error}); they should have the same "
            "shape, apart from the number of samples"
        ) from None


def _by_sample(outputs: Any, targets: Any) -> Any:
    """Return outputs with one row for each sample: a single number is repeated."""
    samples = len(tree_leaves(targets)[0])
    return tree_map(lambda leaf: leaf if leaf.ndim else leaf.expand(samples), outputs)


def _kept(output: Tensor) -> Tensor:
    """Copy an output to the CPU; the network may reuse its memory."""
    copied = _as_float(output.detach()).cpu()
    return copied.clone() if copied.data_ptr() == output.data_ptr() else copied


@dataclass(frozen=True, kw_only=True)
class EvaluatedShare:
    """The evaluation of some samples of a part: the sums from which metrics are computed, and outputs if needed."""

    samples: int = 0
    sums: dict[str, Sums] = field(default_factory=dict)
    """Those of the loss and of each metric that can be computed from sums."""
    outputs: Any = None
    """The outputs for all samples, where a metric needs them or they are few; on the CPU."""
    is_main_output: bool = False
    """Whether `outputs` are only the main one of several."""
    targets: Any = None
    """The targets of all samples, where outputs are kept and the part does not know its targets."""
    output_bytes: int = 0
    """The memory that the outputs took, or would take."""
    main_shape: tuple[int, ...] | None = None
    """The shape of the main output for the first samples; None where there is none."""
    are_probabilities: bool = False
    """Whether the rows of the main output are probabilities."""
    is_unit: bool = False
    """Whether there is a single output for each sample, and all lie between 0 and 1."""


def merge_shares(shares: Sequence[EvaluatedShare]) -> EvaluatedShare:
    """Merge the shares of a part, in the order of their samples."""
    filled = [share for share in shares if share.samples]
    if not filled:
        return EvaluatedShare()
    sums: dict[str, Sums] = {}
    for share in filled:
        sums = {name: add_sums(sums.get(name, {}), share.sums[name]) for name in share.sums}
    whole = all(share.outputs is not None for share in filled)
    return EvaluatedShare(
        samples=sum(share.samples for share in filled),
        sums=sums,
        outputs=join_outputs([share.outputs for share in filled]) if whole else None,
        is_main_output=any(share.is_main_output for share in filled),
        targets=tree_concatenate([share.targets for share in filled])
        if whole and all(share.targets is not None for share in filled)
        else None,
        output_bytes=sum(share.output_bytes for share in filled),
        main_shape=filled[0].main_shape,
        are_probabilities=all(share.are_probabilities for share in filled),
        is_unit=all(share.is_unit for share in filled),
    )


def without_large_outputs(share: EvaluatedShare) -> EvaluatedShare:
    """Drop outputs that are too large to be stored with a run; of several, the main output may be kept."""
    if share.outputs is None or _bytes(share.outputs) <= stored_predictions.LIMIT:
        return share
    main = find_main_output(share.outputs)
    if main is None or main is share.outputs or _bytes(main) > stored_predictions.LIMIT:
        return replace(share, outputs=None, targets=None)
    return replace(share, outputs=main, is_main_output=True)


def _bytes(outputs: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(outputs))


def evaluate_share(
    network: nn.Module,
    part: Part,
    samples: Tensor,
    loss: Measure,
    metrics: Mapping[str, Measure],
    *,
    precision: str = "fp32",
    mark: Callable[[], None] = lambda: None,
    keep: int = 0,
    name: str = "evaluated",
) -> EvaluatedShare:
    """Evaluate a network on these samples of a part; `mark` is called after every batch.

    The outputs are kept if a metric needs all of them, or if the whole part's outputs have at most `keep` bytes. `name`
    is the part's name, for errors.
    """
    collector = _ShareCollector(part, loss, metrics, keep=keep, name=name)
    with evaluation_mode(network):
        for outputs, targets in _outputs_by_batch(network, part, samples, precision=precision, mark=mark):
            collector.add(outputs, targets)
    return collector.finish()


def pass_share(
    network: nn.Module, part: Part, samples: Tensor, *, precision: str = "fp32", mark: Callable[[], None] = lambda: None
) -> None:
    """In a stage of a divided network, process these samples of a part and send the results to the next stage."""
    with evaluation_mode(network):
        for _ in _outputs_by_batch(network, part, samples, precision=precision, mark=mark):
            pass


class _ShareCollector:
    """Sums the metrics of batches; several small batches are measured together."""

    def __init__(self, part: Part, loss: Measure, metrics: Mapping[str, Measure], *, keep: int, name: str) -> None:
        self._part = part
        self._measures = {"loss": _as_measure(loss, is_loss=True)}
        self._measures |= {label: _as_measure(metric) for label, metric in metrics.items()}
        self._keep = keep
        self._name = name
        self._samples = self._output_bytes = 0
        self._sums: dict[str, Sums] = {}
        self._outputs: list[Any] = []
        self._targets: list[Any] = []
        self._keeps = self._keeps_main = self._uses_main = False
        self._main_shape: tuple[int, ...] | None = None
        self._are_probabilities = self._is_unit = True
        self._pending: list[tuple[Any, Any]] = []
        self._pending_numbers = 0

    def add(self, outputs: Any, targets: Any) -> None:
        samples = len(tree_leaves(targets)[0])
        if not self._samples:
            self._begin(outputs, targets)
        self._samples += samples
        self._output_bytes += required_bytes(outputs, 1, 1)
        if self._keeps or self._keeps_main:
            batch_outputs = find_main_output(outputs) if self._keeps_main else _by_sample(outputs, targets)
            self._outputs.append(tree_map(_kept, batch_outputs))
            if self._part.targets is None:
                self._targets.append(
                    tree_map(lambda leaf: leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf, targets)
                )
        outputs = tree_map(_as_float, outputs)
        self._add_sums(self._of_batches, outputs, targets)
        outputs = find_main_output(outputs) if self._uses_main else _by_sample(outputs, targets)
        if self._pending and not _can_be_joined(self._pending[-1], (outputs, targets)):
            self._flush()
        numbers = sum(leaf.numel() for leaf in tree_leaves(outputs))
        if numbers >= MOST_NUMBERS:
            self._measure(outputs, targets)
            return
        self._pending.append((tree_map(torch.clone, outputs), targets))  # a network may use the memory again
        self._pending_numbers += numbers
        if self._pending_numbers >= MOST_NUMBERS:
            self._flush()

    def finish(self) -> EvaluatedShare:
        self._flush()
        try:
            outputs = join_outputs(self._outputs) if self._outputs else None
        except ModelError:
            if self._needing:
                raise
            outputs = None  # they cannot be stored, but that is not an error
        has_main = self._main_shape is not None
        return EvaluatedShare(
            samples=self._samples,
            sums={name: {key: _on_cpu(item) for key, item in sums.items()} for name, sums in self._sums.items()},
            outputs=outputs,
            is_main_output=self._keeps_main,
            targets=tree_concatenate(self._targets) if self._targets and outputs is not None else None,
            output_bytes=self._output_bytes,
            main_shape=self._main_shape,
            are_probabilities=has_main and self._are_probabilities,
            is_unit=has_main and self._is_unit,
        )

    def _begin(self, outputs: Any, targets: Any) -> None:
        """Inspect the first batch: the metrics it allows, and the memory that all outputs would take."""
        main, samples = find_main_output(outputs), len(tree_leaves(targets)[0])
        if main is None:
            self._measures = {label: item for label, item in self._measures.items() if not item.optional}
        self._needing = [label for label, measure in self._measures.items() if measure.needs_all_outputs]
        self._of_batches = {label: item for label, item in self._measures.items() if item.needs_whole_batches}
        self._of_samples = {label: item for label, item in self._measures.items() if item.summed is not None}
        # a tuple (logits, loss) has a main output until its loss is repeated for each sample
        self._uses_main = main is not None and find_main_output(_by_sample(outputs, targets)) is None
        whole = required_bytes(outputs, samples, len(self._part))
        if self._needing:
            check_fits(self._needing, self._name, whole, len(self._part))
        self._keeps = bool(self._needing) or whole <= self._keep
        self._keeps_main = (
            not self._keeps and main is not None and required_bytes(main, samples, len(self._part)) <= self._keep
        )
        if self._keeps and self._uses_main and not any(self._measures[label].own for label in self._needing):
            self._keeps, self._keeps_main = False, True

    def _flush(self) -> None:
        if not self._pending:
            return
        pending, self._pending, self._pending_numbers = self._pending, [], 0
        outputs, targets = (tree_concatenate(some) for some in zip(*pending, strict=True))
        self._measure(outputs, targets)

    def _measure(self, outputs: Any, targets: Any) -> None:
        self._add_sums(self._of_samples, outputs, targets)
        main = find_main_output(outputs)
        if main is not None:
            self._main_shape = self._main_shape or tuple(main.shape)
            self._are_probabilities = self._are_probabilities and are_probabilities(main, "classes")
            self._is_unit = self._is_unit and is_share(main)

    def _add_sums(self, measures: Mapping[str, AlignedMeasure], outputs: Any, targets: Any) -> None:
        try:
            for label, item in measures.items():
                self._sums[label] = add_sums(self._sums.get(label, {}), item.sums(outputs, targets))
        except Exception as error:  # a user's loss may raise anything
            raise make_measure_error(self._name, outputs, targets, error) from error


def _as_float(output: Tensor) -> Tensor:
    """Convert floats of lower precision to float32, in which metrics are computed."""
    return output.float() if output.is_floating_point() and output.dtype != torch.float64 else output


def _can_be_joined(first: tuple[Any, Any], second: tuple[Any, Any]) -> bool:
    """Return whether two batches have outputs and targets of equal shapes, apart from the number of samples."""
    shapes = [
        [item.shape[1:] for item in (*tree_leaves(batch[0]), *tree_leaves(batch[1]))] for batch in (first, second)
    ]
    return shapes[0] == shapes[1]


def make_measure_error(part: str, outputs: Any, targets: Any, error: Exception) -> ModelError:
    """Return the error for a loss or metric that failed, with the shapes of its arguments."""
    return ModelError(
        f"loss or metrics failed on the {part} part, with outputs {describe_outputs(outputs)} and targets "
        f"{describe_outputs(targets)}: {describe_failure(error)}{user_frames(error)}"
    )


def required_bytes(outputs: Any, samples: int, of: int) -> int:
    """Return the bytes of the outputs for `of` samples, given those of a few; floats count at least four bytes."""
    each: int = sum(
        leaf.numel() * (max(4, leaf.itemsize) if leaf.is_floating_point() else leaf.itemsize)
        for leaf in tree_leaves(outputs)
    )
    return math.ceil(each / max(1, samples) * of)


def check_fits(metrics: Sequence[str], part: str, nbytes: int, samples: int) -> None:
    """Raise ModelError if the outputs for a whole part, which these metrics need together, do not fit into memory."""
    free = free_memory()
    if COPIES * nbytes <= free:
        return
    raise ModelError(
        f"{_need(metrics)} the outputs for all {samples:,} samples of the {part} part at once, which take "
        f"{format_bytes(COPIES * nbytes)} of memory, and {format_bytes(free)} are free; use metrics that are computed "
        "from sums (accuracy, f1_macro, perplexity, rmse, ...), or a smaller part"
    )


def describe_kept_outputs(metrics: Sequence[str], part: str, nbytes: int) -> str:
    """Return a sentence about the memory of metrics that need all outputs."""
    size = format_bytes(COPIES * nbytes)
    return f"{_need(metrics)} all outputs for the {part} part at once: {size} of memory at each evaluation"


def _need(metrics: Sequence[str]) -> str:
    several = len(metrics) > 1
    return f"the metric{'s' * several} {', '.join(metrics)} need{'s' * (not several)}"


def _as_measure(measure: Measure, *, is_loss: bool = False) -> AlignedMeasure:
    if isinstance(measure, AlignedMeasure):
        return measure
    return AlignedMeasure(measure, "the loss" if is_loss else "the metric", is_loss=is_loss)


def _on_cpu(sum_: Tensor | ExactSum | PairCounts) -> Any:
    if isinstance(sum_, PairCounts):
        return PairCounts(sum_.classes, sum_.keys.cpu(), sum_.counts.cpu())
    return sum_.cpu() if isinstance(sum_, Tensor) else sum_


def values_of(
    share: EvaluatedShare, part: Part, loss: Measure, metrics: Mapping[str, Measure], *, name: str = "evaluated"
) -> dict[str, float]:
    """Return the loss and the metrics of a model, given its evaluation on all samples of a part."""
    values: dict[str, float] = {}
    for label, given in {"loss": loss, **metrics}.items():
        measure = _as_measure(given, is_loss=label == "loss")
        if label in share.sums:
            values[label] = measure.value(share.sums[label])
        elif measure.needs_all_outputs and not (measure.optional and share.main_shape is None):
            targets = share.targets if share.targets is not None else all_targets(part)
            try:
                with torch.no_grad():
                    values[label] = as_number(measure(share.outputs, targets), measure)
            except Exception as error:  # a user's metric may raise anything
                raise make_measure_error(name, share.outputs, targets, error) from error
    return values


def all_targets(part: Part) -> Tensor:
    if part.targets is not None:
        return part.targets.cpu()
    return torch.cat([y for _, y in part.batches(batches(torch.arange(len(part)), LARGE_BATCH))]).cpu()


def measure(outputs: Any, targets: Tensor, loss: Measure, metrics: Mapping[str, Measure]) -> dict[str, float]:
    if find_main_output(outputs) is None:
        metrics = {name: metric for name, metric in metrics.items() if not getattr(metric, "optional", False)}
    measures = {name: _as_measure(item, is_loss=name == "loss") for name, item in {"loss": loss, **metrics}.items()}
    with torch.no_grad():
        return {
            name: as_number(item(outputs, targets), item)
            if item.needs_all_outputs
            else item.value(item.sums(outputs, targets))
            for name, item in measures.items()
        }


def evaluate(
    network: nn.Module, part: Part, loss: Measure, metrics: Mapping[str, Measure], *, precision: str = "fp32"
) -> dict[str, float]:
    share = evaluate_share(network, part, torch.arange(len(part)), loss, metrics, precision=precision)
    return values_of(share, part, loss, metrics)


class TrainingAccuracy:
    """Counts correctly classified samples of the training batches, each before the step on its batch.

    Outputs are kept, and many batches are compared with their targets together: for each batch, the four operations
    would take up to 5% of a small network's step. Before `take`, there is hardly any waiting for a device.
    """

    def __init__(self, accuracy: AlignedMeasure) -> None:
        self.accuracy = accuracy
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._numbers = 0
        self._sums: list[Sums] = []

    def keep(self, outputs: Any, targets: Any) -> None:
        """Keep the outputs of a batch, if they are a tensor and have targets."""
        main = find_main_output(outputs)
        if main is None or not isinstance(targets, Tensor):
            return
        main = main.detach()
        if main.untyped_storage().nbytes() > 2 * main.nbytes:
            main = main.clone()  # a view would keep the whole tensor
        self._kept.append((main, targets))
        self._numbers += main.numel()
        if self._numbers >= MOST_NUMBERS:
            self._compare()

    def take(self) -> tuple[float, int]:
        """Return the number of correct and of all labels since the last call."""
        self._compare()
        sums, self._sums = self._sums, []
        return float(sum(int(item["correct"]) for item in sums)), sum(int(item["labeled"]) for item in sums)

    def _compare(self) -> None:
        if not self._kept:
            return
        kept, self._kept, self._numbers = self._kept, [], 0
        try:
            if len({(outputs.shape[1:], targets.shape[1:]) for outputs, targets in kept}) == 1:
                kept = [(torch.cat([item for item, _ in kept]), torch.cat([item for _, item in kept]))]
            self._sums += [self.accuracy.sums(outputs, targets) for outputs, targets in kept]
        except Exception:  # the evaluation reports the problem, if there is one
            return


def make_training_accuracy(training: Training, metrics: Mapping[str, AlignedMeasure]) -> TrainingAccuracy | None:
    """Return a counter of correct predictions; None if accuracy is not measured, or steps repeat their batches."""
    chosen = metrics.get("accuracy")
    if chosen is None or chosen.own or training.needs_closure:
        return None
    return TrainingAccuracy(chosen)


def describe_missing_predictions(share: EvaluatedShare, part: str) -> str:
    """Return a sentence that explains why the outputs for a part are not stored with the run, or ""."""
    if share.main_shape is None or share.outputs is not None:
        return ""
    if share.output_bytes > stored_predictions.LIMIT:
        return (
            f"the outputs for the {part} part are not stored with the run: they take "
            f"{format_bytes(share.output_bytes)}, and at most {stored_predictions.LIMIT >> 20} MiB are stored; "
            "run.predict computes them again"
        )
    return f"the outputs for the {part} part are not stored with the run, since their shapes differ between batches"


def make_predictions(training: Training, splits: Splits, part: str, share: EvaluatedShare) -> Predictions | None:
    """Return outputs and targets of all samples of a part ("test", "validation") in their stored form.

    Of several outputs, only the main one is stored; None if there is none, or the outputs were not kept.
    """
    main = find_main_output(share.outputs) if share.outputs is not None else None
    chosen: Part | None = getattr(splits, part)
    targets = share.targets if share.targets is not None or chosen is None else chosen.targets
    if main is None or not isinstance(targets, Tensor):
        return None
    main, numbers = classes_second(main, targets), splits.numbers.get(part)
    made = Predictions(
        part,
        output_kind(training, splits.classes, main),
        np.arange(len(main)) if numbers is None else numbers,
        main.cpu().numpy(),
        targets.cpu().numpy(),
    )
    if chosen is None or isinstance(chosen, StreamPart) or not _are_images(splits.shape):
        return made
    return _with_pictures(made, chosen)


def _are_images(shape: Any) -> bool:
    """Return whether samples of this shape can be shown: [1 or 3, height, width], or [height, width]."""
    if not isinstance(shape, tuple) or not all(isinstance(side, int) for side in shape):
        return False  # several inputs
    channels, sides = (1, shape) if len(shape) == 2 else (shape[0], shape[1:]) if shape else (0, ())
    return channels in (1, 3) and len(sides) == 2 and all(side in SIDES for side in sides)


def _with_pictures(made: Predictions, samples: Part) -> Predictions:
    if made.kind != "classes" or made.targets.ndim != 1 or made.outputs.ndim != 2:
        return made
    wrong = np.flatnonzero(~made.right & (made.targets >= 0))
    worst = wrong[np.argsort(-made.confidences[wrong], kind="stable")][:MOST_PICTURES]
    if not len(worst):
        return made
    x, _ = next(iter(samples.batches([worst])))
    if not isinstance(x, Tensor) or not bool(x.isfinite().all()):
        return made
    return replace(made, worst=worst, pictures=_pictures(x.cpu().numpy()))


def _pictures(x: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Convert samples to images: black is the lowest value of all, white the highest."""
    values = x.astype(np.float64) if x.ndim == 4 else x.astype(np.float64)[:, None]
    low, high = float(values.min()), float(values.max())
    scaled = (values - low) / (high - low or 1.0) * 255
    return np.moveaxis(np.rint(scaled).astype(np.uint8), 1, -1)
