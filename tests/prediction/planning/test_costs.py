"""What settings take that were not trained yet."""

import pytest
import torch

from tenfold.cluster.cluster import HERE
from tenfold.data import Splits, Tensors
from tenfold.experiment import Experiment
from tenfold.prediction.planning.costs import Candidate, CostModel, _Rates
from tenfold.prediction.planning.learning_probe import Probe
from tenfold.prediction.profile import Profile

RATES = _Rates(first=3.0, epoch=2.0, error=(0.9, 1.1), start=0.0, evaluation=5.0, save=1.0)


def test_an_untried_setting_evaluates_and_saves_like_others_with_as_many_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CostModel, "_complete", lambda *_, **__: Profile(made="", machine={}))
    monkeypatch.setattr(CostModel, "_by_clock", lambda *_: RATES)
    part = Tensors(torch.ones(8, 2), torch.zeros(8, dtype=torch.int64))
    candidate = Candidate(Experiment(model="mlp", data="digits", batch_size=4, threads=1, device="cpu"))
    data = Splits(name="made", train=part, validation=part, shape=(2,), classes=2, outputs=2)
    costs = CostModel([candidate], data, HERE, print, deadline=0)
    probe = Probe(8, 2, "accuracy", (0.5,), 1.0, {}, start=0.1, evaluation=0.2, save=0.05)
    untried, with_others = costs(candidate, 2), costs(candidate, 2, similar=[probe])
    elsewhere = costs(candidate, 2, similar=[Probe(8, 2, "accuracy", (0.5,), 1.0, {}, threads=7)])
    assert untried is not None
    assert with_others is not None
    assert elsewhere is not None
    assert untried.other == elsewhere.other == 12
    assert with_others.other == pytest.approx(0.1 + 2 * 0.2 + 2 * 0.05)
    assert with_others.training == untried.training == 5
