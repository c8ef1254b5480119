"""Averaging the running statistics of batch normalization.

Variances cannot be averaged: var = avg(var_i) + var(mean_i). Second moments can, about any point c that all replicas
agree on: E[(x - c)^2] = var + (mean - c)^2. They replace the variances while replicas are averaged. The nearer c is to
the means, the fewer digits are lost, so it moves to the running means whenever these are the same on all replicas.
"""

from collections.abc import Sequence

from torch import Tensor, nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

Statistics = Sequence[tuple[Tensor, Tensor]]
"""The running mean and the running variance of each layer."""


def variances_to_moments(statistics: Statistics, reference_means: Sequence[Tensor]) -> None:
    """Replace each running variance by the second moment about the layer's reference mean, before averaging."""
    for (mean, variance), reference in zip(statistics, reference_means, strict=True):
        variance.add_((mean - reference).square_())


def moments_to_variances(statistics: Statistics, reference_means: Sequence[Tensor]) -> None:
    """Turn the second moments back into variances, after averaging."""
    for (mean, variance), reference in zip(statistics, reference_means, strict=True):
        variance.sub_((mean - reference).square_()).clamp_(min=0)


class BatchNormStatistics:
    """The running statistics of all batch normalization layers of one replica."""

    def __init__(self, network: nn.Module) -> None:
        self._statistics = [
            (layer.running_mean, layer.running_var)
            for layer in network.modules()
            if isinstance(layer, BATCH_NORMS) and layer.running_mean is not None and layer.running_var is not None
        ]
        self.reference_means = [mean.clone() for mean, _ in self._statistics]
        """The points c, one for each layer."""

    def variances_to_moments(self, reference_means: Sequence[Tensor] | None = None) -> None:
        """Replace the variances by second moments, before a round; `reference_means` are other points c."""
        variances_to_moments(self._statistics, reference_means or self.reference_means)

    def moments_to_variances(
        self, reference_means: Sequence[Tensor] | None = None, *, replicas_are_equal: bool
    ) -> None:
        """Restore the variances, after a round; `replicas_are_equal` says that it has made all replicas the same."""
        moments_to_variances(self._statistics, reference_means or self.reference_means)
        if replicas_are_equal:
            self.update_reference_means()

    def update_reference_means(self) -> None:
        """Move the points c to the running means, which are the same on all replicas."""
        for (mean, _), reference in zip(self._statistics, self.reference_means, strict=True):
            reference.copy_(mean)
