"""What was measured after each epoch, collected from events."""

from tenfold.runs.events import Event, Metric

OF_EPOCHS = ("epoch_loss", "epoch_accuracy")
"""What is measured on all training batches of an epoch, in contrast to single ones."""


class History:
    """Collects what was measured after each epoch, from the events that it is called with."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, float]] = {}

    def __call__(self, event: Event) -> None:
        """Keep a metric of an epoch."""
        if isinstance(event, Metric) and (event.name in OF_EPOCHS or event.part != "train"):
            row = self._rows.setdefault(event.epoch, {"epoch": event.epoch + 1})
            row |= {"step": event.step, "seconds": event.seconds}
            row[f"{event.part}_{event.name.removeprefix('epoch_')}"] = event.value

    def rows(self) -> list[dict[str, float]]:
        """Return one row per epoch."""
        return [self._rows[epoch] for epoch in sorted(self._rows)]
