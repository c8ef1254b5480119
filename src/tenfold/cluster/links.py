"""Links between workers: latency and bandwidth."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from tenfold.common.registry import Registry, suggest
from tenfold.experiment import Section
from tenfold.experiment.values import format_value

FORMS = "give a name such as 10gbe, or {latency = 1e-3, bandwidth = 1e7}"


class Link(Section):
    """A line that carries n bytes in latency + n / bandwidth seconds, in both directions at once."""

    latency: Annotated[float, Field(ge=0)]
    """Seconds until the first byte arrives, software included."""
    bandwidth: Annotated[float, Field(gt=0)]
    """Bytes per second in each direction."""

    @property
    def per_byte(self) -> float:
        """Seconds per byte."""
        return 1 / self.bandwidth


LINKS: Registry[Link] = Registry(
    "link",
    {
        "shared-memory": Link(latency=5e-6, bandwidth=10e9),
        "loopback": Link(latency=25e-6, bandwidth=3e9),
        "1gbe": Link(latency=50e-6, bandwidth=117e6),
        "10gbe": Link(latency=30e-6, bandwidth=1.17e9),
        "25gbe": Link(latency=20e-6, bandwidth=2.9e9),
        "100gbe": Link(latency=10e-6, bandwidth=11.7e9),
        "infiniband": Link(latency=2e-6, bandwidth=24e9),
        "nvlink": Link(latency=5e-6, bandwidth=250e9),
        "wifi": Link(latency=3e-3, bandwidth=30e6),
        "lte": Link(latency=40e-3, bandwidth=2.5e6),
    },
)
"""What such lines usually give to a program, which is less than their nominal rate.

    shared-memory   processes of one machine: a few microseconds to meet, the speed of copying in memory
    loopback        TCP within one machine
    1gbe to 100gbe  TCP over Ethernet with one switch between; 94% of the nominal rate is left after headers
    infiniband      HDR, 200 Gbit/s, with RDMA
    nvlink          GPUs of one machine (A100 generation), the launch of a transfer included
    wifi            802.11ac or ax in one room: about 240 Mbit/s, milliseconds of latency
    lte             a mobile phone: about 20 Mbit/s, 40 ms
"""


def _read(given: Any) -> Any:
    if isinstance(given, str) and given not in LINKS:
        raise ValueError(f"unknown link '{given}'; {suggest(given, LINKS)}, or {{latency = 1e-3, bandwidth = 1e7}}")
    if not isinstance(given, str | Link | Mapping):
        raise ValueError(f"{format_value(given)} is not a link; {FORMS}")
    return LINKS[given] if isinstance(given, str) else given


def _written(given: Link) -> Any:
    named = next((name for name in LINKS if LINKS[name] == given), None)
    return named or {"latency": given.latency, "bandwidth": given.bandwidth}


LinkField = Annotated[Link, BeforeValidator(_read), PlainSerializer(_written)]
"""A link in a file: a preset's name, or a table with latency and bandwidth."""
