"""A task packed for other processes: tensors stay where they are, and functions are sent by value."""

from dataclasses import dataclass, fields, replace
from typing import Any

import cloudpickle
from torch import Tensor

from tenfold.common.part_names import PARTS
from tenfold.data import Part, Splits, SubsetPart, Tensors
from tenfold.data.part import Indices
from tenfold.data.tree import tree_leaves, tree_map
from tenfold.errors import ExperimentError
from tenfold.runs.console import original_streams
from tenfold.transport import SharedTensor
from tenfold.workers.task import Task


@dataclass(frozen=True)
class SharedPart:
    """A part whose tensors lie in shared memory."""

    x: Any
    """A shared tensor, or a tuple or dict of them."""
    y: SharedTensor

    @classmethod
    def copy(cls, part: Tensors) -> "SharedPart":
        """Copy a part into shared memory."""
        copied: list[SharedTensor] = []

        def share(tensor: Tensor) -> SharedTensor:
            copied.append(SharedTensor(tensor))
            return copied[-1]

        try:
            return cls(tree_map(share, part.x), share(part.y))
        except BaseException:
            for tensor in copied:
                tensor.close()
            raise

    def open(self) -> Tensors:
        """Return the part."""
        return Tensors(tree_map(SharedTensor.open, self.x), self.y.open())

    def close(self) -> None:
        """Release the tensors."""
        for tensor in (*tree_leaves(self.x), self.y):
            tensor.close()


@dataclass(frozen=True)
class PickedPart:
    """A subset of a part that is sent: the position of that part in the list, and the sample numbers."""

    position: int
    indices: Indices


class SharedTensors(Tensors):
    """Tensors that are already in shared memory, so that snapshots refer to them without copying."""

    def __init__(self, part: Tensors) -> None:
        self.shared = SharedPart.copy(part)
        opened = self.shared.open()
        super().__init__(opened.x, opened.y)


class TaskSnapshot:
    """A task as it is sent to the workers; the process that packs it keeps the tensors alive until `close`."""

    def __init__(self, task: Task, *, with_numbers: bool = False) -> None:
        """Pack a task; the samples' numbers in the data as given only where the other process writes predictions."""
        self._shared: list[SharedPart] = []
        self._whole: list[SharedPart | Part] = []
        self._positions: dict[int, int] = {}
        try:
            self._content = self._pack_task(task, with_numbers=with_numbers)
        except BaseException:
            self.close()
            raise

    def _pack_task(self, task: Task, *, with_numbers: bool) -> bytes:
        parts = {name: self._pack(getattr(task.splits, name)) for name in PARTS}
        about = {one.name: getattr(task.splits, one.name) for one in fields(task.splits) if one.name not in PARTS}
        if not with_numbers:
            about["numbers"] = {}
        experiment = task.experiment.replace(data="<in shared memory>", groups=None, collate=None)
        try:
            with original_streams():
                return bytes(
                    cloudpickle.dumps(
                        (replace(task, experiment=experiment, splits=None), about, parts, self._whole)  # type: ignore[arg-type]
                    )
                )
        except Exception as error:  # a user's object may raise anything when it is pickled
            raise ExperimentError(
                f"what was given as Python objects (model, data, loss) cannot be sent to worker processes: {error}; "
                "create what cannot be pickled, such as locks and open files, inside them"
            ) from error

    def open(self) -> Task:
        """Return the task, in the process that it was sent to."""
        task, about, parts, packed = cloudpickle.loads(self._content)
        whole = [part.open() if isinstance(part, SharedPart) else part for part in packed]
        opened = {
            name: SubsetPart(whole[part.position], part.indices) if isinstance(part, PickedPart) else whole[part]
            for name, part in parts.items()
            if part is not None
        }
        splits: Splits = Splits(**(about | opened))
        return replace(task, splits=splits)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Release the shared tensors."""
        for part in self._shared:
            part.close()

    def _pack(self, part: Part | None) -> PickedPart | int | None:
        """Return a part's position among those that are sent; each is sent once."""
        if part is None:
            return None
        if isinstance(part, SubsetPart):
            position = self._pack(part.part)
            assert isinstance(position, int)
            return PickedPart(position, part.indices)
        if id(part) not in self._positions:
            self._positions[id(part)] = len(self._whole)
            self._whole.append(self._share(part))
        return self._positions[id(part)]

    def _share(self, part: Part) -> SharedPart | Part:
        if isinstance(part, SharedTensors):
            return part.shared
        if not isinstance(part, Tensors):
            return part
        packed = SharedPart.copy(part)
        self._shared.append(packed)
        return packed

    def __getstate__(self) -> dict[str, Any]:
        return {"_content": self._content}


def bytes_to_share(splits: Splits) -> int:
    """Return how many bytes a snapshot would put into shared memory."""
    parts = [getattr(splits, name) for name in PARTS]
    whole = {id(one): one for one in (part.part if isinstance(part, SubsetPart) else part for part in parts)}
    return sum(
        tensor.nbytes
        for one in whole.values()
        if isinstance(one, Tensors) and not isinstance(one, SharedTensors)
        for tensor in (*tree_leaves(one.x), one.y)
    )


def in_shared_memory(splits: Splits) -> Splits:
    """Move the parts that are tensors into shared memory; the originals can be freed."""
    moved: dict[str, Any] = {}
    try:
        for name in PARTS:
            part = getattr(splits, name)
            moved[name] = SharedTensors(part) if isinstance(part, Tensors) else part
    except BaseException:
        for part in moved.values():
            if isinstance(part, SharedTensors):
                part.shared.close()
        raise
    return replace(splits, **moved)
