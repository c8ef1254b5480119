"""Two lines for your own training loop: `average` for the model, `shard` for the data."""

from tenfold.loop.averaging import average
from tenfold.loop.sharding import shard

__all__ = ["average", "shard"]
