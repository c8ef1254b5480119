"""The exceptions for users.

    TenfoldError            a sentence for the user; the command line prints it and exits with 2
      ExperimentError       the experiment asks for something that does not exist or does not fit together
      DataError             a data set cannot be found, fetched, read or understood
      ModelError            a model cannot be built, or does not accept the data
      StoreError            a run cannot be found, recorded or resumed
        RunTakenOver        another process has claimed the run that this one was writing
      TrainingError         training itself failed: the loss became NaN, for example
        Diverged            the loss became NaN or infinite; resuming would repeat it
        UserCodeError       the user's own model, loss, metric or data raised an error; its lines are in the message
        WorkerLost          a worker died or hangs; the run can be resumed
      MachineError          this machine lacks something that was requested (cores, a device, an MPI)

`StopTraining` is not an error: callbacks raise it to stop a run, which then finishes as usual.

Every message says what was wrong, where, and what would be right. Anything else that is raised is a bug or comes from
the user's own code, and keeps its traceback; the command line shows the lines of it that are the user's.
"""

from collections.abc import Sequence


class TenfoldError(Exception):
    """Base of all errors whose message is written for the user."""


class ExperimentError(TenfoldError):
    """The experiment asks for something that does not exist or does not fit together."""


class DataError(TenfoldError):
    """A data set cannot be found, fetched, read or understood."""


class ModelError(TenfoldError):
    """A model cannot be built, or does not accept the data."""


class StoreError(TenfoldError):
    """A run cannot be found, recorded or resumed."""


class RunTakenOver(StoreError):  # noqa: N818 - it says what happened
    """Another process has claimed the run that this one was writing, moved or removed it; this one writes no more."""


class TrainingError(TenfoldError):
    """Training itself failed."""


class Diverged(TrainingError):  # noqa: N818 - it says what happened
    """The loss became NaN or infinite; the same steps would lead there again."""


class UserCodeError(TrainingError):
    """The user's own model, loss, metric or data raised an error."""


class WorkerLost(TrainingError):  # noqa: N818 - it says what happened, not that something is wrong
    """A worker died or hangs; the run can be resumed. `rank` is the worker's, or the first one's in a lost process."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[type["WorkerLost"], tuple[int, str]]:
        return type(self), (self.rank, str(self))


class StopTraining(Exception):  # noqa: N818 - nothing is wrong
    """Raised by a callback to stop the training; its text says why.

    In a cross-validation it stops the fold that the event is about; with `all_folds`, or raised for the start or the
    end of a fold, all of them: those in training end with their epoch, and no other is trained.
    """

    def __init__(self, reason: str = "", *, all_folds: bool = False) -> None:
        super().__init__(reason)
        self.all_folds = all_folds


class MachineError(TenfoldError):
    """This machine lacks something that was requested."""


def name_workers(ranks: Sequence[int]) -> str:
    """Return how messages name workers with consecutive ranks: "worker 3", or "workers 32 to 63"."""
    return f"worker {ranks[0]}" if len(ranks) == 1 else f"workers {ranks[0]} to {ranks[-1]}"
