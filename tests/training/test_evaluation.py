import math
import multiprocessing
import pickle
import re
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tenfold.data import Tensors
from tenfold.errors import ModelError
from tenfold.experiment import Training
from tenfold.training import (
    LOSSES,
    METRICS,
    all_targets,
    choose_loss,
    choose_metrics,
    evaluate,
    evaluation,
    measure,
    predict,
)
from tenfold.training.evaluation import (
    BATCH,
    TrainingAccuracy,
    evaluate_share,
    make_training_accuracy,
    merge_shares,
    share_of,
    values_of,
)


def accuracy_counter(training, classes):
    return make_training_accuracy(training, choose_metrics(training, classes))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def part(samples):
    generator = torch.Generator().manual_seed(samples)
    return Tensors(torch.randn(samples, 4, generator=generator), torch.randint(3, (samples,), generator=generator))


class WithoutTargets(Tensors):
    """Data whose targets are known only batch by batch."""

    targets = None


@settings(deadline=None, derandomize=True, max_examples=15)
@given(st.integers(1, 2 * BATCH + 1))
def test_an_evaluation_is_the_direct_computation(samples):
    made, data = network(), part(samples)
    found = evaluate(made, data, LOSSES["cross-entropy"], {"accuracy": METRICS["accuracy"]})
    with torch.no_grad():
        outputs = made.eval()(data.x)
    assert found["loss"] == pytest.approx(float(functional.cross_entropy(outputs, data.y)), rel=1e-5)
    assert found["accuracy"] == pytest.approx(float((outputs.argmax(1) == data.y).float().mean()))
    assert list(found) == ["loss", "accuracy"]


def test_predictions_come_in_the_order_that_was_asked_for():
    made, data = network(), part(20)
    samples = torch.tensor([7, 3, 19, 3])
    everything = predict(made, data, torch.arange(20))
    torch.testing.assert_close(predict(made, data, samples), everything[samples])


@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_left_as_it_was(training):
    made = network().train(training)
    made[1].eval()
    modes = [layer.training for layer in made.modules()]
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    generator = torch.get_rng_state()
    outputs = predict(made, part(20), torch.arange(20))
    assert [layer.training for layer in made.modules()] == modes
    assert all(torch.equal(before[name], tensor) for name, tensor in made.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert not outputs.requires_grad


def test_the_mode_is_restored_even_when_the_network_fails():
    made = network().train()
    wrong = Tensors(torch.randn(3, 5), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(RuntimeError):
        predict(made, wrong, torch.arange(3))
    assert made.training
    assert made[3].training


def test_bf16_predictions_come_back_as_fp32_and_near():
    made, data = network(), part(50)
    exact = predict(made, data, torch.arange(50))
    rounded = predict(made, data, torch.arange(50), precision="bf16")
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.05)


def test_no_samples_give_no_outputs():
    assert len(predict(network(), part(5), torch.arange(0))) == 0


def test_a_network_without_parameters_can_be_evaluated():
    data = part(6)
    assert torch.equal(predict(nn.Identity(), data, torch.arange(6)), data.x)


def test_targets_are_gathered_where_they_are_not_at_hand():
    data = part(BATCH + 3)
    assert torch.equal(all_targets(WithoutTargets(data.x, data.y)), data.y)
    assert torch.equal(all_targets(data), data.y)


def test_measures_are_numbers_by_name():
    outputs, targets = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])
    found = measure(outputs, targets, LOSSES["mse"], {"mae": METRICS["mae"], "three": lambda o, t: 3})
    assert found == {"loss": 2.0, "mae": 1.0, "three": 3.0}
    assert {type(value) for value in found.values()} == {float}


class Counting(nn.Module):
    """Outputs for each position and word, of which it counts how many are in memory."""

    def __init__(self, words, positions):
        super().__init__()
        self.words, self.positions = words, positions
        self.alive = self.most = 0

    def forward(self, x):
        outputs = x[:, :1, None].expand(len(x), self.positions, self.words) * torch.linspace(-1, 1, self.words)
        self.alive += len(x)
        self.most = max(self.most, self.alive)
        weakref.finalize(outputs, self._freed, len(x))
        return outputs

    def _freed(self, samples):
        self.alive -= samples


LOSS = choose_loss(Training(), 3)


LANGUAGE = choose_metrics(Training(metrics=["accuracy", "perplexity", "f1_micro"]), 2048)


@pytest.mark.parametrize("samples", [40, 200])
def test_an_evaluation_takes_the_same_memory_however_many_samples_there_are(samples):
    made = Counting(words=2048, positions=64)  # 0.5 MB for each sample
    texts = Tensors(torch.randn(samples, 4), torch.randint(0, 2048, (samples, 64)))
    share = evaluate_share(made, texts, torch.arange(samples), LOSS, LANGUAGE, keep=64 * samples)
    assert made.most <= 128  # 64 MB: those of the batch at hand, and of the one before it
    assert share.outputs is None
    assert share.output_bytes == samples * 64 * 2048 * 4
    found = values_of(share, texts, LOSS, LANGUAGE)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert len(pickle.dumps(replace(share, sums=share.sums | {"f1_micro": {}}))) < 10_000


def send_peaks_of_evaluations(connection, sizes):
    """Send how many bytes of memory this process used at most while it evaluated so many samples."""
    torch.set_num_threads(1)
    made, peaks = Counting(words=1024, positions=64), []
    for samples in (sizes[0], *sizes):  # the first time, code is loaded
        texts = Tensors(torch.randn(samples, 4), torch.randint(0, 1024, (samples, 64)))
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins again at what is used now
        evaluate_share(made, texts, torch.arange(samples), LOSS, LANGUAGE, keep=1 << 20)
        status = Path("/proc/self/status").read_text()
        peaks.append(int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024)
    connection.send(peaks[1:])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak since a moment")
def test_the_memory_of_a_process_that_evaluates_does_not_grow_with_the_part():
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=send_peaks_of_evaluations, args=(sender, (512, 1280)))
    child.start()
    assert receiver.poll(60)
    small, large = receiver.recv()
    child.join(10)
    assert large < small + 128e6  # the outputs of the additional samples have 201 MB, those of a batch 64


def test_very_large_outputs_are_computed_for_one_sample_at_a_time():
    made = Counting(words=32_000, positions=512)  # 65 MB
    texts = Tensors(torch.randn(4, 4), torch.randint(0, 32_000, (4, 512)))
    evaluate_share(made, texts, torch.arange(4), LOSS, {})
    assert made.most == 2


def convolutions():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))


MEASURED = choose_metrics(Training(metrics=["accuracy", "f1_macro", "neg_log_loss", "roc_auc_ovr"]), 5)


@pytest.mark.parametrize("samples", [7, 200, 1000])
def test_metrics_have_the_same_bits_for_any_number_of_workers(samples):
    made = convolutions()
    images = Tensors(torch.rand(samples, 1, 8, 8), torch.arange(samples) % 5)

    def evaluated(workers):
        parts = [share_of(samples, rank, workers) for rank in range(workers)]
        assert torch.equal(torch.cat(parts), torch.arange(samples))
        return values_of(
            merge_shares([evaluate_share(made, images, part, LOSS, MEASURED) for part in parts]), images, LOSS, MEASURED
        )

    alone = evaluated(1)
    assert list(alone) == ["loss", *MEASURED]
    for workers in (2, 3, 5, 16):
        assert evaluated(workers) == alone


def test_targets_that_come_with_the_batches_reach_metrics_of_all_outputs():
    made, data = network(), part(50)
    metrics = choose_metrics(Training(metrics=["roc_auc_ovr", "accuracy"]), 3)
    unknown = WithoutTargets(data.x, data.y)
    assert evaluate(made, unknown, LOSS, metrics) == evaluate(made, data, LOSS, metrics)


def test_metrics_of_all_outputs_are_refused_where_these_do_not_fit(monkeypatch):
    monkeypatch.setattr(evaluation, "free_memory", lambda: 1000)
    with pytest.raises(ModelError, match="roc_auc_ovr") as caught:
        evaluate(network(), part(500), LOSS, choose_metrics(Training(metrics=["accuracy", "roc_auc_ovr"]), 3))
    assert "of memory" in str(caught.value)
    evaluate(network(), part(500), LOSS, choose_metrics(Training(metrics=["accuracy", "f1_macro"]), 3))


def test_what_cannot_be_measured_is_named():
    metrics = choose_metrics(Training(metrics=["mae"]), None)
    with pytest.raises(ModelError, match="on the test part"):
        evaluate_share(network(), part(5), torch.arange(5), LOSS, metrics, name="test")


def test_outputs_whose_length_differs_between_batches_are_measured_and_not_kept():
    class Texts(Tensors):
        """Batches of texts, padded to the longest of each batch."""

        targets = None

        def batches(self, indices):
            for number, (x, y) in enumerate(super().batches(indices)):
                yield x[:, : 2 + number], y[:, : 2 + number]

    words = torch.arange(80 * 6).reshape(80, 6) % 3
    texts = Texts(functional.one_hot(words, 3).float(), words)
    share = evaluate_share(nn.Identity(), texts, torch.arange(80), LOSS, LANGUAGE, keep=1 << 20)
    assert share.outputs is None
    assert values_of(share, texts, LOSS, LANGUAGE)["accuracy"] == 1.0


def test_a_network_may_use_the_memory_of_its_outputs_again():
    class Reusing(nn.Module):
        def __init__(self):
            super().__init__()
            self.buffer = torch.empty(BATCH + 1, 3)

        def forward(self, x):
            return torch.mul(x[:, :3], 1, out=self.buffer[: len(x)])

    data = part(3 * BATCH)
    right = Tensors(data.x, data.x[:, :3].argmax(1))
    metrics = choose_metrics(Training(metrics=["accuracy", "roc_auc_ovr"]), 3)
    assert evaluate(Reusing(), right, LOSS, metrics)["accuracy"] == 1.0
    assert torch.equal(predict(Reusing(), data, torch.arange(len(data))), data.x[:, :3])


@pytest.fixture
def counted() -> TrainingAccuracy:
    made = accuracy_counter(Training(), 3)
    assert made is not None
    return made


def test_batches_of_all_sizes_count_by_their_samples(counted: TrainingAccuracy) -> None:
    targets = torch.tensor([0, 1, 2, 2])
    counted.keep(torch.eye(3)[targets], targets)
    counted.keep(torch.eye(3)[[0, 0]], torch.tensor([0, 1]))
    assert counted.take() == pytest.approx((5.0, 6))
    assert counted.take() == (0.0, 0)


def test_many_outputs_are_compared_before_they_fill_the_memory(
    counted: TrainingAccuracy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "MOST_NUMBERS", 6)
    for _ in range(5):
        counted.keep(torch.eye(3)[:1], torch.tensor([0]))
    assert counted.take() == (5.0, 5)


def test_outputs_of_other_shapes_are_compared_apart(counted: TrainingAccuracy) -> None:
    for length in (2, 5):
        counted.keep(torch.zeros(4, 3, length), torch.zeros(4, length, dtype=torch.long))
    counted.keep((torch.zeros(4, 3), torch.zeros(4, 3)), torch.zeros(4))  # which of the two is meant is not known
    assert counted.take() == (28.0, 28)  # labels


def test_positions_without_labels_do_not_count(counted: TrainingAccuracy) -> None:
    for labels in ([[0, -100], [1, 0]], [[-100, -100], [-100, -100]]):
        counted.keep(torch.tensor([1.0, 0.0, 0.0])[:, None].expand(2, 3, 2), torch.tensor(labels))
    assert counted.take() == pytest.approx((2.0, 3))


def test_a_single_logit_is_judged_by_its_sign() -> None:
    made = accuracy_counter(Training(loss="bce"), 2)
    assert made is not None
    made.keep(torch.tensor([[1.0], [-1.0], [2.0]]), torch.tensor([1.0, 0.0, 0.0]))
    assert made.take() == pytest.approx((2.0, 3))


@pytest.mark.parametrize(
    ("training", "classes"),
    [
        (Training(), None),
        (Training(loss="mse"), 3),
        (Training(metrics=("f1_macro",)), 3),
        (Training(optimizer="lbfgs"), 3),
    ],
)
def test_nothing_is_counted_where_accuracy_is_not_measured_or_batches_are_seen_repeatedly(
    training: Training, classes: int | None
) -> None:
    assert accuracy_counter(training, classes) is None


@pytest.mark.parametrize("loss", ["cross-entropy", "torch.nn.modules.loss:CrossEntropyLoss"])
def test_a_loss_that_is_named_counts_as_the_usual_one(loss: str) -> None:
    made = accuracy_counter(Training(loss=loss), 3)
    assert made is not None
    made.keep(torch.eye(3), torch.eye(3))  # one-hot targets
    assert made.take() == (3.0, 3)


def test_a_part_of_the_outputs_does_not_keep_all_of_them(counted: TrainingAccuracy) -> None:
    counted.keep(torch.zeros(4, 100, 3)[:, -1], torch.zeros(4, dtype=torch.long))
    assert counted._kept[0][0].untyped_storage().nbytes() == 4 * 3 * 4
