"""Butterfly mixing: a different small group each round, the exact mean after all of them."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from tenfold.mixing.base import Strategy
from tenfold.mixing.round import Round, group_round, idle_round


@dataclass(frozen=True, kw_only=True)
class Butterfly(Strategy):
    """Round t averages i with i XOR 2^(t mod lg N); after lg N rounds all have the mean (Zhao & Canny 2013).

    Other N use a mixed radix: with the prime factors N = p_1 p_2 ... p_K, smallest first, write each rank in those
    digits; round t averages the groups that differ in digit t mod K only. After K rounds without steps between, the
    mean is exact for every N (with unequal weights it is kept, and approached instead of reached).
    """

    name: ClassVar[str] = "butterfly"

    def round(self, r: int, n: int, /) -> Round:
        """Return the groups that differ in one digit of their ranks."""
        return _digit_round(r % self.period(n), n)

    def period(self, n: int, /) -> int:
        """Return the number of prime factors of n (at least 1)."""
        return max(1, len(prime_factors(n)))


def prime_factors(n: int) -> tuple[int, ...]:
    """Return the prime factors of `n`, smallest first; none for 1."""
    factors, divisor = [], 2
    while divisor * divisor <= n:
        while n % divisor == 0:
            factors.append(divisor)
            n //= divisor
        divisor += 1
    return (*factors, n) if n > 1 else tuple(factors)


@lru_cache(maxsize=256)
def _digit_round(digit: int, n: int) -> Round:
    factors = prime_factors(n)
    if not factors:
        return idle_round(n)
    stride = 1
    for factor in factors[:digit]:
        stride *= factor
    radix = factors[digit]
    zeros = (rank for rank in range(n) if rank // stride % radix == 0)
    return group_round(tuple(tuple(rank + k * stride for k in range(radix)) for rank in zeros))
