"""Two lines in a training loop of one's own: `average` for the model, `shard` for the data."""

from tenfold.loop.averaging import average
from tenfold.loop.sharding import shard

__all__ = ["average", "shard"]
