"""Metrics of speech: error rates of spoken digits, by Viterbi's algorithm, and the accuracy of phones.

The grammar is that of the digit strings in the data "speech": a pause, "the number is", one digit or more, a pause.
Where an utterance has no phones but those of digits, as recordings of digits have, "the number is" is left out. Every
phone has three states, one for each third, in a chain in which a frame may stay, advance, or skip one state. A frame's
score in state s is log p(s | frame) - log p(s): the network's posterior divided by the prior, which is the mean
posterior of all frames that are evaluated. All paths through the grammar are equally likely.
"""

import itertools
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenfold.errors import ModelError
from tenfold.papers.speech import AFTER, BEFORE, DIGITS, DIGITS_ALONE, PHONES, THIRDS
from tenfold.training.metrics import SumMetric, Sums, counted, ratio

MATCH = 0.9
"""An utterance is a digit string if the grammar explains at least this share of its true states."""
UNLIKELY = -20.0

Scores = NDArray[np.float64]


class Grammar(NamedTuple):
    """The states of the grammar, and how they follow each other."""

    states: NDArray[np.int64]
    """The class of the network that each belongs to."""
    before: NDArray[np.int64]
    """For each state those that may come before it, itself first; padded with the number of states, which is none."""
    words: NDArray[np.int64]
    """For each state the digit that begins with it, or -1."""
    skipped_to: NDArray[np.bool_]
    """Whether it is the second of its word, with which a word may begin as well."""
    first: tuple[int, int]
    last: tuple[int, int]


def word_error_rate(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return wrong, missing and added digits as a share of the digits that were said; not a number if none were."""
    return _error_rate("word_error_rate", outputs, targets)


def digit_error_rate(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of single digits, as recordings are, that are taken for another; not a number without any.

    That each is one digit is known, so that none is missing or added: nine of ten are wrong by chance.
    """
    return _error_rate("digit_error_rate", outputs, targets, of_one_digit=True)


def _error_rate(name: str, outputs: Tensor, targets: Tensor, *, of_one_digit: bool = False) -> Tensor:
    if outputs.ndim != 2 or outputs.shape[1] != len(PHONES) * THIRDS:
        raise ModelError(
            f"{name} needs one output for each of the {len(PHONES) * THIRDS} states of speech, not outputs of "
            f'shape {tuple(outputs.shape)}; it is a metric of data = "speech"'
        )
    posterior = outputs.double().log_softmax(1)
    prior = torch.logsumexp(posterior, 0) - np.log(len(posterior))
    scores = (posterior - prior).numpy()
    truth = targets.numpy()
    wrong = said = 0
    for start, end in utterances(truth):
        expected = digits_said(truth[start:end])
        if len(expected) == 1 or (expected and not of_one_digit):
            grammar = digit_strings(begin_of(truth[start:end]), of_one_digit)
            wrong += edits(decode(scores[start:end], grammar)[0], expected)
            said += len(expected)
    return torch.tensor(wrong / said if said else float("nan"))


def utterances(states: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return where each utterance begins and ends: where a pause that is past its first third begins again."""
    pause = PHONES.index("pau") * THIRDS
    ends = (states[:-1] > pause) & (states[:-1] < pause + THIRDS)
    cuts = np.flatnonzero(ends & (states[1:] == pause)) + 1
    return list(itertools.pairwise([0, *cuts.tolist(), len(states)]))


def digits_said(states: NDArray[np.int64]) -> list[str]:
    """Return the digits in the true states of an utterance; none if it is another sentence."""
    scores = np.full((len(states), len(PHONES) * THIRDS), UNLIKELY)
    scores[np.arange(len(states)), states] = 0.0
    words, best = decode(scores, digit_strings(begin_of(states)))
    return words if best >= UNLIKELY * (1 - MATCH) * len(states) else []


def begin_of(states: NDArray[np.int64]) -> str:
    """Return the phones before the digits of an utterance with these true states: "the number is", or a pause."""
    of_digits = {PHONES.index(name) for phones in (DIGITS_ALONE, *DIGITS.values()) for name in phones.split()}
    return DIGITS_ALONE if of_digits.issuperset((states // THIRDS).tolist()) else BEFORE


def decode(scores: Scores, grammar: Grammar) -> tuple[list[str], float]:
    """Return the digits on the best path through the grammar, and its score; one row of scores for each frame."""
    count = len(grammar.states)
    emitted = scores[:, grammar.states]
    best = np.full(count + 1, -np.inf)  # the last is the state before none
    for state in grammar.first:
        best[state] = emitted[0, state]
    came_from = np.zeros((len(scores), count), dtype=np.int64)
    for frame in range(1, len(scores)):
        reached = best[grammar.before]
        chosen = reached.argmax(1)
        came_from[frame] = np.take_along_axis(grammar.before, chosen[:, None], 1)[:, 0]
        best[:count] = np.take_along_axis(reached, chosen[:, None], 1)[:, 0] + emitted[frame]
    state = max(grammar.last, key=lambda state: best[state])
    total = float(best[state])
    if not np.isfinite(total):
        return [], -np.inf  # shorter than the shortest path
    words: list[str] = []
    names = list(DIGITS)
    for frame in range(len(scores) - 1, 0, -1):
        previous = int(came_from[frame, state])
        digit = grammar.words[state]
        inside = previous == state or (grammar.skipped_to[state] and previous == state - 1)
        if digit >= 0 and not inside:
            words.append(names[digit])
        state = previous
    return words[::-1], total


def edits(decoded: list[str], expected: list[str]) -> int:
    """Return the fewest words to replace, add or remove to turn one list into the other."""
    row = list(range(len(expected) + 1))
    for i, word in enumerate(decoded, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(expected, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]


@cache
def digit_strings(begin_with: str, of_one_digit: bool = False) -> Grammar:
    states: list[int] = []
    spans: list[range] = []
    for phones in (begin_with, *DIGITS.values(), AFTER):
        chain = [PHONES.index(name) * THIRDS + third for name in phones.split() for third in range(THIRDS)]
        spans.append(range(len(states), len(states) + len(chain)))
        states += chain
    before: list[list[int]] = [[state] for state in range(len(states))]
    for span in spans:
        for state in span[1:]:
            before[state] += range(max(span[0], state - 2), state)
    begin, *digits, end = spans
    ends = [span[-1] for span in (begin, *digits)], [span[-2] for span in (begin, *digits)]
    entered_from = (ends[0][:1], ends[1][:1]) if of_one_digit else ends
    for span in digits:
        _enter(before, span, *entered_from)
    _enter(before, end, ends[0][1:], ends[1][1:])
    width = max(map(len, before))
    words, skipped_to = np.full(len(states), -1), np.zeros(len(states), dtype=bool)
    for digit, span in enumerate(digits):
        words[[span[0], span[1]]] = digit
        skipped_to[span[1]] = True
    return Grammar(
        np.array(states),
        np.array([item + [len(states)] * (width - len(item)) for item in before]),
        words,
        skipped_to,
        (begin[0], begin[1]),
        (end[-1], end[-2]),
    )


def _enter(before: list[list[int]], span: range, last: list[int], last_but_one: list[int]) -> None:
    """Let a word follow others: each from its last state or the one before it, with one state skipped at most."""
    before[span[0]] += [*last, *last_but_one]
    before[span[1]] += last


def _count_right_phones(outputs: Tensor, targets: Tensor) -> Sums:
    right = outputs.argmax(1) // THIRDS == targets // THIRDS
    return {"correct": right.sum(), "labeled": counted(right.numel())}


phone_accuracy = SumMetric(_count_right_phones, ratio("correct", "labeled"))
"""The share of frames of speech whose state, a third of a phone, belongs to the right phone."""
