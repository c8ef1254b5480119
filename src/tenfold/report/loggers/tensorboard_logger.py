"""TensorBoard: event files in the run's folder, which `tensorboard --logdir runs` shows live."""

from pathlib import Path
from typing import Any

from tenfold.common.imports import optional_module
from tenfold.report.loggers.run_logger import RunLogger

FOLDER = "tensorboard"


class TensorBoardLogger(RunLogger):
    """Writes scalars, a folder for each fold, and the experiment as text."""

    name = "tensorboard"

    def __init__(self, runs: Path) -> None:
        super().__init__(runs)
        optional_module("tensorboard", "log='tensorboard'", "tensorboard")
        self._writers: dict[str, Any] = {}

    def open(self, run: dict[str, Any], folder: Path, first_step: int, /) -> None:
        """Begin event files in the run's folder; on resuming, steps that are repeated replace those of before."""
        import tomli_w

        self._folder, self._first_step = folder / FOLDER, first_step
        self._writers = {}
        text = tomli_w.dumps(_without_none(run["experiment"]))
        self._writer("").add_text("experiment", "".join(f"    {line}\n" for line in text.splitlines()))

    def write(self, fold: str, name: str, value: float, step: int) -> None:
        """Add a scalar."""
        self._writer(fold).add_scalar(name, value, step)

    def flush(self) -> None:
        """Write what is buffered to the files."""
        for writer in self._writers.values():
            writer.flush()

    def close(self, _status: str, /) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _writer(self, fold: str) -> Any:
        if fold not in self._writers:
            writing = optional_module("torch.utils.tensorboard", "log='tensorboard'", "tensorboard")
            folder = self._folder / fold.replace(" ", "-") if fold else self._folder
            purge = self._first_step if self._first_step > 1 else None
            self._writers[fold] = writing.SummaryWriter(str(folder), purge_step=purge)
        return self._writers[fold]


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in fields.items()
        if value is not None
    }
