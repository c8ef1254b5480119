"""A task made ready to travel to other processes: tensors stay where they are, and functions go by value."""

from dataclasses import dataclass, fields, replace
from typing import Any

import cloudpickle

from tenfold.data import Part, Splits, Tensors
from tenfold.engines.task import Task
from tenfold.errors import ExperimentError
from tenfold.transport import SharedTensor


@dataclass(frozen=True)
class SharedPart:
    """A part whose tensors lie in shared memory."""

    x: SharedTensor
    y: SharedTensor

    def open(self) -> Tensors:
        """Return the part."""
        return Tensors(self.x.open(), self.y.open())


class Parcel:
    """A task on its way to the workers; whoever packs it keeps the tensors alive until `close`."""

    def __init__(self, task: Task) -> None:
        self._shared: list[SharedTensor] = []
        names = ("train", "validation", "test")
        self._parts = {name: self._pack(getattr(task.splits, name)) for name in names}
        about = {one.name: getattr(task.splits, one.name) for one in fields(task.splits) if one.name not in names}
        experiment = task.experiment.replace(data="<in shared memory>")
        try:
            self._content = cloudpickle.dumps((replace(task, experiment=experiment, splits=None), about, self._parts))  # type: ignore[arg-type]
        except Exception as error:  # whatever an object of the user's own makes of being pickled
            self.close()
            raise ExperimentError(
                f"what was given as Python objects (model, data, loss) cannot be sent to worker processes: {error}; "
                "let them make inside what cannot be pickled, such as locks and open files"
            ) from error

    def open(self) -> Task:
        """Return the task, in the process that it was sent to."""
        task, about, parts = cloudpickle.loads(self._content)
        opened = {name: part.open() if isinstance(part, SharedPart) else part for name, part in parts.items()}
        splits: Splits = Splits(**(about | opened))
        return replace(task, splits=splits)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Let go of the shared tensors."""
        for tensor in self._shared:
            tensor.close()

    def _pack(self, part: Part | None) -> SharedPart | Part | None:
        if not isinstance(part, Tensors):
            return part
        packed = SharedPart(SharedTensor(part.x), SharedTensor(part.y))
        self._shared += [packed.x, packed.y]
        return packed

    def __getstate__(self) -> dict[str, Any]:
        return {"_content": self._content}
