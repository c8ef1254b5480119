"""A network that scores candidates, from features of the sample and of each candidate."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tenfold.data import Tensors
from tenfold.engines.prepare import load
from tenfold.errors import DataError, ExperimentError, ModelError, StoreError
from tenfold.models.networks import between
from tenfold.papers.tweet_features import PAIR_FEATURES, baseline_scores, features_of
from tenfold.papers.tweets import NAME, TweetOptions, Tweets, find_tweets, read_tweets
from tenfold.runs import Run
from tenfold.training.evaluation import predict
from tenfold.training.scorers import ranking_metric


class Recommender(nn.Module):
    """score_j = (W x + b)_j + v p_j, then + g(p_j, score_j) with a small network g that all candidates share.

    x are the first inputs of a sample, p_j the four inputs that it has for candidate j; the last 4 x candidates inputs
    are one block for each of the four.
    """

    def __init__(self, inputs: int, candidates: int, hidden: Sequence[int], activation: str, dropout: float) -> None:
        super().__init__()
        self.candidates = candidates
        self.dropout = nn.Dropout(dropout)
        self.own = nn.Linear(inputs, candidates)
        self.pair = nn.Linear(PAIR_FEATURES, 1, bias=False)
        layers: list[nn.Module] = []
        width = PAIR_FEATURES + 1
        for units in hidden:
            layers += [nn.Linear(width, units), *between(activation, None)]
            width = units
        last = nn.Linear(width, 1)
        self.shared = nn.Sequential(*layers, last)
        for start in (self.own.weight, self.pair.weight, last.weight):
            nn.init.zeros_(start)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each candidate."""
        own, pairs = x[:, : -PAIR_FEATURES * self.candidates], x[:, -PAIR_FEATURES * self.candidates :]
        pairs = pairs.reshape(len(x), PAIR_FEATURES, self.candidates).transpose(1, 2)
        scores = self.own(self.dropout(own)) + self.pair(pairs).squeeze(-1)
        shared = self.shared(torch.cat([pairs, scores.unsqueeze(-1)], dim=-1)).squeeze(-1)
        return torch.add(scores, shared)


def recommender(
    shape: tuple[int, ...],
    outputs: int,
    *,
    hidden: Sequence[int] = (16,),
    activation: str = "relu",
    dropout: float = 0.2,
) -> nn.Module:
    """Return a network for samples that hold four inputs for each of the outputs, after some of their own."""
    inputs = shape[0] - PAIR_FEATURES * outputs if len(shape) == 1 else 0
    if inputs < 1:
        raise ModelError(
            f"the recommender takes samples of some inputs and {PAIR_FEATURES} more for each of the {outputs} "
            f'candidates, but a sample here has shape {shape}; data = "tweets" with pairs gives such samples'
        )
    return Recommender(inputs, outputs, hidden, activation, dropout)


KINDS = ("precision", "recall", "map", "ndcg")


@dataclass(frozen=True)
class Recommended:
    """A candidate for a person to follow."""

    name: str
    probability: float
    followed: bool
    """Whether the person follows the candidate already."""


class PeopleToFollow:
    """The model of a run on tweets, with the people it knows."""

    def __init__(self, run: Run) -> None:
        if run.experiment.data.name != NAME:
            raise StoreError(
                f"run {run.id} was not trained on tweets; `tenfold train --data tweets` records such a run"
            )
        folder = find_tweets()
        if folder is None:
            raise DataError(f"run {run.id} was trained on tweets, which are not on this machine")
        self.run = run
        self.tweets: Tweets = read_tweets(folder)
        self.options = TweetOptions(**run.experiment.data.options)
        splits = load(run.experiment, torch.float32)
        person, _ = self.tweets.samples(self.options)
        everyone = np.arange(len(person))
        self.training = np.unique(person[splits.numbers.get("train", everyone)])
        self.tested = np.unique(person[splits.numbers.get("test", everyone)])

    def recommend(self, person: str, top: int = 10) -> list[Recommended]:
        """Return the candidates with the highest probabilities, without the person."""
        if top < 1:
            raise ExperimentError(f"top = {top}: should be at least 1")
        names = {name.lower(): number for number, name in enumerate(self.tweets.people)}
        number = names.get(person.lower().removeprefix("@"))
        if number is None:
            near = get_close_matches(person, self.tweets.people, n=3, cutoff=0.5)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise DataError(f"none of the {len(names)} people in these tweets is called '{person}'{hint}")
        scores = self.scores(np.array([number]))[0]
        scores[number] = -np.inf
        best = np.argsort(-scores, kind="stable")[:top]
        follows = self.tweets.follows[number]
        return [Recommended(self.tweets.people[k], float(scores[k]), bool(follows[k])) for k in best]

    def scores(self, people: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the probability of each candidate for each person; for runs on posts, the mean over the posts."""
        make = features_of(self.tweets, self.options, self.training)
        parts = []
        for number in people:
            samples = np.array([number])
            if self.options.sample == "post":
                samples = np.flatnonzero(self.tweets.author == number)
            x = torch.from_numpy(make(samples))
            part = Tensors(x, torch.zeros(len(x)))
            outputs = predict(self.run.model, part, torch.arange(len(x)))
            parts.append(outputs.sigmoid().mean(0).numpy())
        return np.stack(parts)

    def table(self, top: int = 10) -> dict[str, dict[str, float]]:
        """Return precision, recall, MAP and NDCG of the model and of baselines, over the people of the test part."""
        own = self.scores(self.tested)
        own[np.arange(len(self.tested)), self.tested] = -np.inf
        rows: dict[str, Any] = {f"run {self.run.id}": own, **baseline_scores(self.tweets, self.training, self.tested)}
        targets = torch.from_numpy(self.tweets.follows[self.tested])
        return {name: _measured(torch.from_numpy(np.asarray(scores)), targets, top) for name, scores in rows.items()}


def recommend(run: Run, person: str, *, top: int = 10) -> list[Recommended]:
    """Return whom a person should follow, according to the model of a run on tweets, best first."""
    return PeopleToFollow(run).recommend(person, top)


def _measured(scores: torch.Tensor, targets: torch.Tensor, top: int) -> dict[str, float]:
    metrics = {f"{kind}_at_{top}": ranking_metric(f"{kind}_at_{top}") for kind in KINDS}
    return {name: float(metric(scores, targets)) for name, metric in metrics.items() if metric is not None}
