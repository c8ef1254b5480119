"""Baselines that a network should beat: random, most followed, neighbours by text, ridge regression."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tenfold.data.sources.tweet_features import TfIdf, count_words

if TYPE_CHECKING:
    from tenfold.data.sources.tweets import Tweets

RIDGE = 0.3
"""Strength of the regression's penalty; rows of TF-IDF have length 1."""
People = NDArray[np.int64]
Scores = NDArray[np.float64]


def baseline_scores(tweets: "Tweets", training: People, tested: People) -> dict[str, Scores]:
    """Return for each baseline the scores [tested people, candidates], from the follow lists of the training people.

    Nobody is recommended to themselves.
    """
    known = tweets.follows[training].astype(np.float64)
    counts = count_words(tweets).people
    tfidf = TfIdf(counts[training])
    words = tfidf(counts)
    alike = (words[tested] @ words.T).toarray()
    popular = known.mean(axis=0)
    found = {
        "random": np.random.default_rng(0).random(alike.shape),
        "most followed": np.broadcast_to(popular, alike.shape).copy(),
        "neighbours by text": alike,
        "ridge regression": popular + _ridge(words, training, alike[:, training], known - popular),
    }
    for scores in found.values():
        scores[np.arange(len(tested)), tested] = -np.inf
    return found


def _ridge(words: object, training: People, alike: Scores, wanted: Scores) -> Scores:
    """Return the kernel form of ridge regression: k (K + alpha I)^-1 Y."""
    rows = words[training]  # type: ignore[index]
    gram = (rows @ rows.T).toarray() + RIDGE * np.eye(len(training))
    solved: Scores = alike @ np.linalg.solve(gram, wanted)
    return solved
