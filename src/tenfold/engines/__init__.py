"""Where replicas run, and what drives them."""

from tenfold.engines.base import Engine, choose
from tenfold.engines.recording import Outcome, RecordedRun
from tenfold.engines.validate import require_no_launcher, validate
from tenfold.runs.resumption import Resumption
from tenfold.workers.task import Task

__all__ = ["Engine", "Outcome", "RecordedRun", "Resumption", "Task", "choose", "require_no_launcher", "validate"]
