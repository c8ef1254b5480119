"""The version of Tenfold that is installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("tenfold")
except PackageNotFoundError:
    __version__ = "0+unknown"
