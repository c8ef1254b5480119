"""The options of data sets, in a file of their own so that sources can be listed without importing experiments."""

from typing import Any, Literal

from pydantic import ValidationError

from tenfold.errors import DataError
from tenfold.experiment.explain import explain
from tenfold.experiment.section_fields import Section
from tenfold.experiment.values import Count, NonNegative


class SourceOptions(Section):
    """The options of a data set, as `data.options` gives them."""

    def __init__(self, /, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            lines = explain(error, type(self)).splitlines()
            raise DataError("\n".join(f"data.options.{line}" for line in lines)) from None


class TweetOptions(SourceOptions):
    """What a sample is, and which features it has."""

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


class SpeechOptions(SourceOptions):
    """The number of sentences, and the frames of a sample."""

    utterances: Count = 120
    """Sentences, about four seconds each."""
    context: NonNegative = 5
    """Frames on either side of the one that is labelled."""
