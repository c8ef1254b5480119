"""The built-in data sets by name."""

from tenfold.common.registry import Registry
from tenfold.data.sources.digits import DIGITS
from tenfold.data.sources.fashion_mnist import FASHION_MNIST
from tenfold.data.sources.mnist import MNIST
from tenfold.data.sources.source import Source
from tenfold.errors import DataError

SOURCES: Registry[Source] = Registry(
    "data set", {source.name: source for source in (DIGITS, MNIST, FASHION_MNIST)}, DataError
)
