"""Text as numbers: TF-IDF and its singular value decomposition, fitted to the people of the training part alone."""

import csv
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from tenfold.common.files import require_regular
from tenfold.data.part import Splits, Tensors
from tenfold.data.sources import Source, places
from tenfold.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tenfold.data.part import Splits
    from tenfold.data.sources import TweetOptions


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
    found: NDArray[Any] = vectors[:, first] / np.sqrt(np.maximum(values[first], 1e-12))
    return found


def _hashed(rows: Any, words: dict[str, int], columns: int) -> Floats:
    """Return the counts of words, each added to the column that its name is hashed to, as rows of length 1."""
    import zlib

    import scipy.sparse as sparse
    from sklearn.preprocessing import normalize

    places = np.array([zlib.crc32(word.encode()) % columns for word in sorted(words, key=words.__getitem__)])
    hashing = sparse.csr_matrix(
        (np.ones(len(places), np.float32), (np.arange(len(places)), places)), (len(places), columns)
    )
    found: Floats = normalize(np.log1p((rows @ hashing).toarray())) * np.sqrt(columns)
    return found


def _mentions(tweets: "Tweets", rows: Any, words: dict[str, int]) -> Floats:
    """Return how often each row mentions each person."""
    columns = [words.get(f"@{name.lower()}", -1) for name in tweets.people]
    known = np.array([place for place, column in enumerate(columns) if column >= 0], dtype=np.int64)
    found = np.zeros((rows.shape[0], len(tweets.people)), dtype=np.float32)
    found[:, known] = rows[:, [columns[place] for place in known]].toarray()
    return found


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


# Tweets: what people post, and whom they follow; the followees of an author are to be predicted from the text.
#
# A folder holds two things, and a user's own tweets may come in the same form:
#
#     *.jsonl, *.jsonl.gz        one JSON object per line: "user_id", "screen_name" and "text" of a post
#     follows/friend_list.csv    tab separated, with the head "follower", "followee" (further columns are ignored): ids
#
# Options: `sample` (person or post), `features` (tfidf or hashed), `dimensions`, `pairs` and `least_posts`; see
# docs/data.md. Parts and folds are cut by person, and the text features are fitted to the training part alone.

FOLLOWS = "follows/friend_list.csv"
NAME = "tweets"


@dataclass(frozen=True, eq=False)
class Tweets:
    """Posts, their authors, and who follows whom."""

    people: tuple[str, ...]
    """Screen names, which are also the candidates."""
    posts: tuple[str, ...]
    author: "NDArray[np.int64]"
    """The number of the person who wrote each post."""
    follows: "NDArray[np.float32]"
    """[follower, followee] = 1."""

    def samples(self, options: "TweetOptions") -> "tuple[NDArray[np.int64], NDArray[np.int64]]":
        """Return for each sample its person, and its number among the people or the posts."""
        import numpy as np

        often = np.bincount(self.author, minlength=len(self.people)) >= options.least_posts
        if options.sample == "person":
            chosen = np.flatnonzero(often)
            return chosen, chosen
        chosen = np.flatnonzero(often[self.author])
        return self.author[chosen], chosen


def find_tweets() -> Path | None:
    """Return the first folder that holds tweets, if there is one."""
    return next((folder for folder in places(NAME) if (folder / FOLLOWS).is_file() and _post_files(folder)), None)


@lru_cache(maxsize=2)
def read_tweets(folder: Path) -> Tweets:
    """Read a folder of tweets."""
    import numpy as np

    names: dict[str, str] = {}
    written = []
    for where, line in _lines(folder):
        try:
            post = json.loads(line)
            person, text = str(post["user_id"]), str(post["text"])
            names[person] = str(post["screen_name"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{where} is not a post ({type(error).__name__}: {error}); it should be a JSON object with user_id, "
                "screen_name and text"
            ) from None
        written.append((person, text))
    numbers = {person: number for number, person in enumerate(sorted(names))}
    follows = np.zeros((len(numbers), len(numbers)), dtype=np.float32)
    for follower, followee in _edges(folder / FOLLOWS):
        if follower in numbers and followee in numbers and follower != followee:
            follows[numbers[follower], numbers[followee]] = 1
    if not follows.any():
        raise DataError(f"{folder / FOLLOWS} does not list two people who post; it should list the ids of people")
    author = np.array([numbers[person] for person, _ in written], dtype=np.int64)
    return Tweets(tuple(names[person] for person in sorted(names)), tuple(text for _, text in written), author, follows)


def load_tweets(options: Mapping[str, Any]) -> "Splits":
    """Return the samples with the followees of their authors; their inputs are made when the parts are known."""
    import torch

    from tenfold.data.part import Splits, Tensors
    from tenfold.data.sources import TweetOptions

    chosen, folder = TweetOptions(**options), find_tweets()
    if folder is None:
        raise DataError(
            f"the tweets are not on this machine: put posts (*.jsonl or *.jsonl.gz) and {FOLLOWS} into "
            f"{places(NAME)[0]}; docs/data.md describes both"
        )
    tweets = read_tweets(folder)
    person, number = tweets.samples(chosen)
    if len(set(person.tolist())) < 2:
        raise DataError(f"{folder} has fewer than two people with at least {chosen.least_posts} posts")
    part = Tensors(torch.from_numpy(number), torch.from_numpy(tweets.follows[person]))
    return Splits(
        name=NAME,
        train=part,
        shape=(1,),
        classes=None,
        outputs=len(tweets.people),
        groups=person if chosen.sample == "post" else None,
        fit=lambda parts: fit_features(tweets, chosen, parts),
    )


def _post_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")])


def _lines(folder: Path) -> Iterator[tuple[str, str]]:
    for path in _post_files(folder):
        try:
            require_regular(path)
            with (
                gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file
            ):
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield f"line {number} of {path}", line
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise DataError(f"{path} cannot be read: {error}") from None


def _edges(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            table = csv.DictReader(file, delimiter="\t")
            if not {"follower", "followee"} <= set(table.fieldnames or ()):
                raise DataError(f"{path} has no header with follower and followee, separated by a tab")
            for row in table:
                yield row["follower"], row["followee"]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


TWEETS = Source(
    name=NAME,
    description="posts and follow lists, from your own folder: whom does the author follow?",
    make=load_tweets,
    find=find_tweets,
    absent="not here; put your own into $TENFOLD_DATA/tweets",
)
