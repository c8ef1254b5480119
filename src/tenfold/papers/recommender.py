"""Recommend whom to follow, from tweets: features of the text, a network that scores candidates, and simple rules."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tenfold.data.part import Splits, Tensors
from tenfold.engines.prepare import load
from tenfold.errors import DataError, ExperimentError, ModelError, StoreError
from tenfold.models.networks import between
from tenfold.papers.tweets import NAME, TweetOptions, Tweets, find_tweets, read_tweets
from tenfold.runs import Run
from tenfold.training.evaluation import predict
from tenfold.training.metrics import ranking_metric

LINKS = re.compile(r"https?://\S+|\bRT\b")
WORD = r"[@#]?\b\w\w+\b"
LEAST_PEOPLE = 2
"""Words used by fewer people of the training part are ignored."""
PAIR_FEATURES = 4
"""Mentions of the candidate, mentions by the candidate, similar words, and being the candidate."""
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Counts:
    """How often words occur, [posts, words] and [people, words]; no statistics are taken yet."""

    posts: Any
    people: Any
    words: dict[str, int]


@lru_cache(maxsize=2)
def count_words(tweets: "Tweets") -> Counts:
    import scipy.sparse as sparse
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(token_pattern=WORD, dtype=np.float32)
    posts = counter.fit_transform([LINKS.sub(" ", text) for text in tweets.posts])
    ones = np.ones(len(tweets.author), dtype=np.float32)
    shape = (len(tweets.people), len(tweets.author))
    by_person = sparse.csr_matrix((ones, (tweets.author, np.arange(len(tweets.author)))), shape=shape)
    return Counts(posts, (by_person @ posts).tocsr(), counter.vocabulary_)


class TfIdf:
    """tf = 1 + log(count), idf = log((1 + n) / (1 + df)) + 1, rows of length 1, over the n people it is fitted to."""

    def __init__(self, counts: Any) -> None:
        from sklearn.feature_extraction.text import TfidfTransformer

        self.kept = np.flatnonzero(counts.getnnz(axis=0) >= LEAST_PEOPLE)
        self.transformer = TfidfTransformer(sublinear_tf=True).fit(counts[:, self.kept])

    def __call__(self, counts: Any) -> Any:
        return self.transformer.transform(counts[:, self.kept])


def fit_features(tweets: "Tweets", options: "TweetOptions", parts: Splits) -> Splits:
    """Return the parts with sample numbers replaced by features."""
    numbers: Any = parts.train.x.numpy()  # type: ignore[attr-defined]
    make = features_of(tweets, options, np.unique(numbers if options.sample == "person" else tweets.author[numbers]))

    def with_features(part: Any) -> Tensors:
        return Tensors(torch.from_numpy(make(part.x.numpy())), part.y)

    made = parts.with_each(with_features)
    assert isinstance(made.train, Tensors)
    return replace(made, shape=tuple(made.train.x.shape[1:]))


def features_of(tweets: "Tweets", options: "TweetOptions", training_people: NDArray[np.int64]) -> Any:
    """Return a function from numbers of samples to their features, fitted to these people."""
    counts = count_words(tweets)
    tfidf = TfIdf(counts.people[training_people])
    text = _reduced(tfidf, counts, options, training_people)
    candidates = tfidf(counts.people) if options.has_pairs else None
    mentions = _mentions(tweets, counts.people, counts.words) if options.has_pairs else None

    def make(numbers: NDArray[np.int64]) -> Floats:
        by_person = options.sample == "person"
        rows = (counts.people if by_person else counts.posts)[numbers]
        columns = [text(rows)]
        if candidates is not None and mentions is not None:
            author = numbers if by_person else tweets.author[numbers]
            own = np.eye(len(tweets.people), dtype=np.float32)[author]
            alike = 5 * (tfidf(rows) @ candidates.T).toarray() * (1 - own)
            columns += [np.log1p(_mentions(tweets, rows, counts.words)), 0.5 * np.log1p(mentions.T[author]), alike, own]
        return np.concatenate(columns, axis=1).astype(np.float32)

    return make


def _reduced(tfidf: TfIdf, counts: Counts, options: "TweetOptions", training_people: NDArray[np.int64]) -> Any:
    if options.features == "hashed":
        return lambda rows: _hashed(rows, counts.words, options.dimensions)
    fitted = tfidf(counts.people[training_people])
    basis = _singular_vectors(fitted, min(options.dimensions, min(fitted.shape) - 1))
    scale = 1 / np.sqrt(np.square((fitted @ fitted.T) @ basis).mean())
    return lambda rows: (tfidf(rows) @ fitted.T) @ basis * scale


def _singular_vectors(fitted: Any, count: int) -> NDArray[Any]:
    """Return B such that (X A^T) B are the coordinates of rows X along the first right singular vectors of A.

    There are far fewer people than words, so B comes from the eigenvectors of A A^T, divided by the singular values.
    """
    values, vectors = np.linalg.eigh((fitted @ fitted.T).toarray().astype(np.float64))
    first = np.argsort(values)[::-1][:count]
    scaled: NDArray[Any] = vectors[:, first] / np.sqrt(np.maximum(values[first], 1e-12))
    return scaled


def _hashed(rows: Any, words: dict[str, int], columns: int) -> Floats:
    """Return the counts of words, each added to the column that its name is hashed to, as rows of length 1."""
    import zlib

    import scipy.sparse as sparse
    from sklearn.preprocessing import normalize

    places = np.array([zlib.crc32(word.encode()) % columns for word in sorted(words, key=words.__getitem__)])
    hashing = sparse.csr_matrix(
        (np.ones(len(places), np.float32), (np.arange(len(places)), places)), (len(places), columns)
    )
    hashed: Floats = normalize(np.log1p((rows @ hashing).toarray())) * np.sqrt(columns)
    return hashed


def _mentions(tweets: "Tweets", rows: Any, words: dict[str, int]) -> Floats:
    columns = [words.get(f"@{name.lower()}", -1) for name in tweets.people]
    of_people = np.array([place for place, column in enumerate(columns) if column >= 0], dtype=np.int64)
    mentions = np.zeros((rows.shape[0], len(tweets.people)), dtype=np.float32)
    mentions[:, of_people] = rows[:, [columns[place] for place in of_people]].toarray()
    return mentions


RIDGE = 0.3
"""Strength of the regression's penalty; rows of TF-IDF have length 1."""
People = NDArray[np.int64]
Scores = NDArray[np.float64]


def baseline_scores(tweets: "Tweets", training: People, tested: People) -> dict[str, Scores]:
    """Return for each baseline the scores [tested people, candidates], from the follow lists of the training people.

    Nobody is recommended to themselves.
    """
    from sklearn.kernel_ridge import KernelRidge

    follows = tweets.follows[training].astype(np.float64)
    counts = count_words(tweets).people
    tfidf = TfIdf(counts[training])
    words = tfidf(counts)
    alike = (words[tested] @ words.T).toarray()
    popular = follows.mean(axis=0)
    ridge = KernelRidge(alpha=RIDGE).fit(words[training], follows - popular)
    scores_by_name = {
        "random": np.random.default_rng(0).random(alike.shape),
        "most followed": np.broadcast_to(popular, alike.shape).copy(),
        "neighbors by text": alike,
        "ridge regression": popular + ridge.predict(words[tested]),
    }
    for scores in scores_by_name.values():
        scores[np.arange(len(tested)), tested] = -np.inf
    return scores_by_name


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
            f"the recommender needs {PAIR_FEATURES} inputs for each of the {outputs} candidates after the others, "
            f'but a sample here has shape {shape}; use data = "tweets" with pairs'
        )
    return Recommender(inputs, outputs, hidden, activation, dropout)


KINDS = ("precision", "recall", "map", "ndcg")


@dataclass(frozen=True)
class Recommended:
    """A candidate for a person to follow."""

    name: str
    probability: float
    followed: bool
    """Whether the person already follows the candidate."""


class PeopleToFollow:
    """The model of a run on tweets, with the people it knows."""

    def __init__(self, run: Run) -> None:
        if run.experiment.data.name != NAME:
            raise StoreError(f"run {run.id} was not trained on tweets; train one with `tenfold train --data tweets`")
        folder = find_tweets()
        if folder is None:
            raise DataError(f"run {run.id} was trained on tweets that are not on this machine")
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
    """Return whom a person should follow, according to the model of a run on tweets, with the best first."""
    return PeopleToFollow(run).recommend(person, top)


def _measured(scores: torch.Tensor, targets: torch.Tensor, top: int) -> dict[str, float]:
    metrics = {f"{kind}_at_{top}": ranking_metric(f"{kind}_at_{top}") for kind in KINDS}
    return {name: float(metric(scores, targets)) for name, metric in metrics.items() if metric is not None}
