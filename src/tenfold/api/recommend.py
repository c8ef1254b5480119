"""`tenfold.recommend`: whom a person should follow, by a run on tweets."""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tenfold.data import Tensors
from tenfold.data.sources.source_options import TweetOptions
from tenfold.data.sources.tweet_baselines import baseline_scores
from tenfold.data.sources.tweet_features import features_of
from tenfold.data.sources.tweets import NAME, Tweets, find_tweets, read_tweets
from tenfold.engines.prepare import load
from tenfold.errors import DataError, ExperimentError, StoreError
from tenfold.runs import Run
from tenfold.training.evaluation import predict
from tenfold.training.ranking import ranking_metric

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
        splits = load(run.experiment, torch.device("cpu"))
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
        found = []
        for number in people:
            samples = np.array([number])
            if self.options.sample == "post":
                samples = np.flatnonzero(self.tweets.author == number)
            x = torch.from_numpy(make(samples))
            part = Tensors(x, torch.zeros(len(x)))
            outputs = predict(self.run.model, part, torch.arange(len(x)))
            found.append(outputs.sigmoid().mean(0).numpy())
        return np.stack(found)

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
