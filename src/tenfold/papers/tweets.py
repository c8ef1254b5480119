"""Tweets: what people post, and whom they follow; the followees of an author are to be predicted from the text.

A folder holds two things, and a user's own tweets may come in the same form:

    *.jsonl, *.jsonl.gz        one JSON object per line: "user_id", "screen_name" and "text" of a post
    follows/friend_list.csv    tab separated, with the head "follower", "followee" (further columns are ignored): ids

Options: `sample` (person or post), `features` (tfidf or hashed), `dimensions`, `pairs` and `least_posts`; see
docs/data.md. Parts and folds are cut by person, and the text features are fitted to the training part alone.
"""

import csv
import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tenfold.common.files import require_regular
from tenfold.data.sources import Source, SourceOptions, places
from tenfold.errors import DataError
from tenfold.experiment.values import Count, NonNegative

if TYPE_CHECKING:
    from tenfold.data.part import Splits


class TweetOptions(SourceOptions):
    """The samples and their features."""

    sample: Literal["person", "post"] = "person"
    """One sample per person, or one per post."""
    features: Literal["tfidf", "hashed"] = "tfidf"
    """TF-IDF reduced to `dimensions` by a singular value decomposition, or words hashed to `dimensions` columns."""
    dimensions: Count = 60
    pairs: bool | None = None
    """Add what is known of the author and each candidate: mentions in both directions, similar words, and whether they
    are the same. Default: for persons, not for posts."""
    least_posts: NonNegative = 10
    """People with fewer posts are candidates, but no samples."""

    @property
    def has_pairs(self) -> bool:
        """Whether samples have features of each candidate."""
        return self.sample == "person" if self.pairs is None else self.pairs


FOLLOWS = "follows/friend_list.csv"
NAME = "tweets"


@dataclass(frozen=True, eq=False)
class Tweets:
    """Posts, their authors, and who follows whom."""

    people: tuple[str, ...]
    """Screen names, which are also the candidates."""
    posts: tuple[str, ...]
    author: NDArray[np.int64]
    """The number of the person who wrote each post."""
    follows: NDArray[np.float32]
    """[follower, followee] = 1."""

    def samples(self, options: "TweetOptions") -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return for each sample its person, and its number among the people or the posts."""
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
        raise DataError(f"{folder / FOLLOWS} lists fewer than two people who post; it should list user ids")
    author = np.array([numbers[person] for person, _ in written], dtype=np.int64)
    return Tweets(tuple(names[person] for person in sorted(names)), tuple(text for _, text in written), author, follows)


def load_tweets(options: Mapping[str, Any]) -> "Splits":
    """Return the samples with the followees of their authors; their inputs are made when the parts are known."""
    import torch

    from tenfold.data.part import Splits, Tensors
    from tenfold.papers.recommender import fit_features

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
                raise DataError(f"{path} has no header with follower and followee, separated by a tab; add it")
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
