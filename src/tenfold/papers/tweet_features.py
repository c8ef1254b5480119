"""Features of tweets, fitted to the training part, and the simple rules that a network is compared with."""

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tenfold.data.part import Splits, Tensors
from tenfold.papers.tweets import TweetOptions, Tweets

LINKS = re.compile(r"https?://\S+|\bRT\b")
WORD = r"[@#]?\b\w\w+\b"
LEAST_PEOPLE = 2
"""Words that fewer people of the training part use are left out."""
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
    """Count all words, mentions and hashtags; links are left out."""
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
        used = np.asarray((counts > 0).sum(axis=0)).ravel()
        self.kept = np.flatnonzero(used >= LEAST_PEOPLE)
        self.idf = np.log((1 + counts.shape[0]) / (1 + used[self.kept])) + 1

    def __call__(self, counts: Any) -> Any:
        """Return the weights of the words in each row."""
        import scipy.sparse as sparse
        from sklearn.preprocessing import normalize

        chosen = counts[:, self.kept].astype(np.float32)
        chosen.data = 1 + np.log(chosen.data)
        return normalize((chosen @ sparse.diags(self.idf.astype(np.float32))).tocsr())


def fit_features(tweets: "Tweets", options: "TweetOptions", parts: Splits) -> Splits:
    """Return the parts with features in the place of the samples' numbers."""
    make = features_of(tweets, options, _people_of(tweets, options, parts.train))

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
    """Return how often each row mentions each person."""
    columns = [words.get(f"@{name.lower()}", -1) for name in tweets.people]
    of_people = np.array([place for place, column in enumerate(columns) if column >= 0], dtype=np.int64)
    mentions = np.zeros((rows.shape[0], len(tweets.people)), dtype=np.float32)
    mentions[:, of_people] = rows[:, [columns[place] for place in of_people]].toarray()
    return mentions


def _people_of(tweets: "Tweets", options: "TweetOptions", part: Any) -> NDArray[np.int64]:
    numbers = part.x.numpy()
    return np.unique(numbers if options.sample == "person" else tweets.author[numbers])


RIDGE = 0.3
"""Strength of the regression's penalty; rows of TF-IDF have length 1."""
People = NDArray[np.int64]
Scores = NDArray[np.float64]


def baseline_scores(tweets: "Tweets", training: People, tested: People) -> dict[str, Scores]:
    """Return for each baseline the scores [tested people, candidates], from the follow lists of the training people.

    Nobody is recommended to themselves.
    """
    follows = tweets.follows[training].astype(np.float64)
    counts = count_words(tweets).people
    tfidf = TfIdf(counts[training])
    words = tfidf(counts)
    alike = (words[tested] @ words.T).toarray()
    popular = follows.mean(axis=0)
    scores_by_name = {
        "random": np.random.default_rng(0).random(alike.shape),
        "most followed": np.broadcast_to(popular, alike.shape).copy(),
        "neighbors by text": alike,
        "ridge regression": popular + _ridge(words, training, alike[:, training], follows - popular),
    }
    for scores in scores_by_name.values():
        scores[np.arange(len(tested)), tested] = -np.inf
    return scores_by_name


def _ridge(words: object, training: People, alike: Scores, wanted: Scores) -> Scores:
    """Return the kernel form of ridge regression: k (K + alpha I)^-1 Y."""
    rows = words[training]  # type: ignore[index]
    gram = (rows @ rows.T).toarray() + RIDGE * np.eye(len(training))
    solved: Scores = alike @ np.linalg.solve(gram, wanted)
    return solved
