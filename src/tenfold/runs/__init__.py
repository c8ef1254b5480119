"""Events, the store that keeps them, and runs that are read from it."""

from tenfold.runs.recorder import Recorder
from tenfold.runs.run import Run
from tenfold.runs.store import Store
