"""The built-in data sets by name."""

from tenfold.data.digits import DIGITS
from tenfold.data.fashion_mnist import FASHION_MNIST
from tenfold.data.mnist import MNIST
from tenfold.data.source import Source
from tenfold.errors import DataError
from tenfold.registry import Registry

SOURCES: Registry[Source] = Registry(
    "data set", {source.name: source for source in (DIGITS, MNIST, FASHION_MNIST)}, DataError
)
