"""What comes before the first fold."""

import numpy as np
import pytest
import torch

from tenfold.crossval import resident
from tenfold.engines.prepare import prepare
from tenfold.errors import DataError
from tenfold.experiment import Experiment


def test_a_validation_part_goes_back_to_the_rest_but_not_beside_groups() -> None:
    part = torch.randn(12, 2), torch.arange(12) % 2
    asked = Experiment(model="mlp", data=dict.fromkeys(("train", "validation", "test"), part), folds=2, threads=1)
    with resident(prepare(asked)) as task:
        assert (len(task.splits.train), task.splits.validation) == (24, None)
    with (
        pytest.raises(DataError, match="give the data without a validation part"),
        resident(prepare(asked.replace(groups=np.arange(12) // 3))),
    ):
        pass
