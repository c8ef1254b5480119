import pytest
import torch

from tenfold.experiment import Training
from tenfold.training import evaluation
from tenfold.training.evaluation import TrainingAccuracy, make_training_accuracy


@pytest.fixture
def counted() -> TrainingAccuracy:
    made = make_training_accuracy(Training(), classes=3)
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
    made = make_training_accuracy(Training(loss="bce"), classes=2)
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
    assert make_training_accuracy(training, classes) is None


@pytest.mark.parametrize("loss", ["cross-entropy", "torch.nn.modules.loss:CrossEntropyLoss"])
def test_a_loss_that_is_named_counts_as_the_usual_one(loss: str) -> None:
    made = make_training_accuracy(Training(loss=loss), classes=3)
    assert made is not None
    made.keep(torch.eye(3), torch.eye(3))  # one-hot targets
    assert made.take() == (3.0, 3)


def test_a_part_of_the_outputs_does_not_keep_all_of_them(counted: TrainingAccuracy) -> None:
    counted.keep(torch.zeros(4, 100, 3)[:, -1], torch.zeros(4, dtype=torch.long))
    assert counted._kept[0][0].untyped_storage().nbytes() == 4 * 3 * 4
