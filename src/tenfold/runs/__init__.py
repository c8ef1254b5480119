"""Events, the run store, and recorded runs."""

from tenfold.runs.recorder import Recorder
from tenfold.runs.run import Run
from tenfold.runs.store import Store
