"""Sentences of a small grammar: orders, reports and numbers, the same for the same number."""

import random

WHO = [
    "the captain",
    "my sister",
    "an old farmer",
    "the young doctor",
    "our neighbour",
    "a quiet child",
    "the judge",
    "your brother",
]
DOES = ["opened", "carried", "measured", "painted", "forgot", "repaired", "counted", "moved", "watched", "chose"]
WHAT = [
    "the yellow boat",
    "a heavy chair",
    "three small boxes",
    "the broken clock",
    "her winter coat",
    "a large map",
    "the gate",
]
WHERE = [
    "near the river",
    "under the table",
    "before noon",
    "behind the church",
    "after the storm",
    "in the kitchen",
    "on Thursday",
]
ORDERS = ["please bring", "quickly close", "do not touch", "carefully lift", "slowly turn", "try to find"]
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def sentence(number: int) -> str:
    """Return a sentence."""
    draw = random.Random(number)
    kind = draw.randrange(4)
    if kind == 0:
        return f"{draw.choice(ORDERS)} {draw.choice(WHAT)} {draw.choice(WHERE)}"
    if kind == 1:
        digits = " ".join(draw.choice(DIGITS) for _ in range(draw.randint(4, 8)))
        return f"the number is {digits}"
    if kind == 2:
        return f"{draw.choice(WHO)} {draw.choice(DOES)} {draw.choice(WHAT)} {draw.choice(WHERE)}"
    return f"{draw.choice(WHERE)} {draw.choice(WHO)} {draw.choice(DOES)} {draw.choice(WHAT)}"
