"""The state of a network as one flat vector, and the averaging of batch normalization and spectral normalization.

Variances cannot be averaged: var = avg(var_i) + var(mean_i). Second moments about a common point c can:
E[(x - c)^2] = var + (mean - c)^2. They replace the variances while replicas are averaged. The closer c is to the means,
the fewer digits are lost, so c moves to the running means whenever these are the same on all replicas.

The singular vectors of `spectral_norm`, which divides a weight by its largest singular value, cannot be averaged
either: the mean of unit vectors is shorter than one, and the averaged weights have other singular vectors. They are
recomputed.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm

from tenfold.errors import ModelError

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

Statistics = Sequence[tuple[Tensor, Tensor]]
"""The running mean and the running variance of each layer."""


POWER_ITERATIONS = 15
"""As many as torch takes for the singular vectors of the first weights."""


class BatchNormStatistics:
    """The running statistics of all batch normalization layers of a replica, or of several stacked ones.

    The singular vectors of spectral normalization are updated with them.
    """

    def __init__(
        self,
        statistics: Statistics,
        reference_means: list[Tensor] | None = None,
        power_iterations: Sequence[Callable[[], object]] = (),
    ) -> None:
        self.statistics = statistics
        self._power_iterations = power_iterations
        self.reference_means = [mean.clone() for mean, _ in statistics] if reference_means is None else reference_means
        """The points c, one for each layer."""

    @classmethod
    def of(cls, network: nn.Module) -> "BatchNormStatistics":
        return cls(
            [
                (layer.running_mean, layer.running_var)
                for layer in network.modules()
                if isinstance(layer, BATCH_NORMS) and layer.running_mean is not None and layer.running_var is not None
            ],
            power_iterations=list(power_iterations(network)),
        )

    def variances_to_moments(self) -> None:
        """Replace each running variance by the second moment about the layer's reference mean, before a round."""
        for (mean, variance), reference in zip(self.statistics, self.reference_means, strict=True):
            variance.add_((mean - reference).square_())

    def moments_to_variances(self, *, replicas_are_equal: bool) -> None:
        """Restore the variances after a round; `replicas_are_equal` means that the round made all replicas equal."""
        for (mean, variance), reference in zip(self.statistics, self.reference_means, strict=True):
            variance.sub_((mean - reference).square_()).clamp_(min=0)
        if replicas_are_equal:
            self.update_reference_means()
        self.update_singular_vectors()

    @torch.no_grad()
    def update_singular_vectors(self) -> None:
        """Compute the singular vectors of the current weights."""
        for iterate in self._power_iterations:
            for _ in range(POWER_ITERATIONS):
                iterate()

    def update_reference_means(self) -> None:
        """Set the points c to the running means, which are equal on all replicas."""
        for (mean, _), reference in zip(self.statistics, self.reference_means, strict=True):
            reference.copy_(mean if mean.ndim == reference.ndim else mean[0])


ALIGNMENT = 16  # floats in a cache line: every tensor begins on one, as its own allocation would
DIGEST_SIZE = 8
"""Numbers by which replicas compare the vectors that they exchange."""


def power_iterations(network: nn.Module) -> Iterator[Callable[[], object]]:
    """Yield a function for each spectral normalization of a network that runs power iterations on its vectors."""
    for module in network.modules():
        if isinstance(module, ParametrizationList) and any(isinstance(step, _SpectralNorm) for step in module):
            yield partial(_apply_in_training, module)
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                yield partial(hook.compute_weight, module, do_power_iteration=True)


def _apply_in_training(parametrizations: ParametrizationList) -> None:
    was_training = parametrizations.training
    parametrizations.train()
    parametrizations()
    parametrizations.train(was_training)


DTYPES = (torch.float32, torch.float64)


def flat_dtype(network: nn.Module) -> torch.dtype:
    """Return the dtype of this network's weights and statistics; raise ModelError unless it is one of `DTYPES`."""
    tensors = list(floating_tensors(network).values())
    names = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})
    if not tensors or (len(names) == 1 and tensors[0].dtype in DTYPES):
        return tensors[0].dtype if tensors else torch.float32
    is_complex = any(tensor.is_complex() for tensor in tensors)
    cure = "keep real and imaginary parts in parameters of their own" if is_complex else "network.float()"
    raise ModelError(f"the network has weights of {', '.join(names)}; they must be all float32 or all float64: {cure}")


def flat_size(network: nn.Module) -> int:
    """Return the number of elements in this network's vector."""
    return sum(padded_size(tensor.numel()) for tensor in floating_tensors(network).values())


def exchange_size(network: nn.Module) -> int:
    """Return the number of elements that a round of gradients, or of one optimizer state vector, exchanges.

    There is one element for each weight and each parameter, and a digest.
    """
    return flat_size(network) + padded_size(DIGEST_SIZE + sum(1 for _ in network.parameters()))


def state_shapes(network: nn.Module) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the tensors in this network's vector."""
    return tuple(tuple(tensor.shape) for tensor in floating_tensors(network).values())


class FlatState:
    """Parameters, then floating-point buffers, stored one after another in `vector`."""

    def __init__(self, network: nn.Module, vector: Tensor | None = None) -> None:
        tensors, dtype = floating_tensors(network), flat_dtype(network)
        device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
        size = flat_size(network)
        if vector is not None and (vector.numel(), vector.dtype) != (size, dtype):
            raise ModelError(
                f"the model has about {size:,} weights and statistics of {dtype} here, but {vector.numel():,} of "
                f"{vector.dtype} in another process; build the same network in every process"
            )
        self.vector = torch.zeros(size, dtype=dtype, device=device) if vector is None else vector
        self.starts: dict[str, int] = {}
        """Where in the vector each tensor begins, by its name."""
        start = 0
        for name, tensor in tensors.items():
            self.starts[name] = start
            view = view_like(tensor, self.vector, start)
            view.copy_(tensor.detach())
            tensor.data = view
            start += padded_size(tensor.numel())
        self._tensors = tensors
        self._parameters = dict(network.named_parameters())
        self.parameters = sum(padded_size(parameter.numel()) for parameter in self._parameters.values())
        """How many of the vector's first numbers are parameters."""
        self.batch_norm = BatchNormStatistics.of(network)
        """The running statistics in the vector, which a round averages as second moments."""

    @property
    def parameter_shapes(self) -> list[tuple[int, ...]]:
        return [tuple(parameter.shape) for parameter in self._parameters.values()]

    def release(self) -> None:
        """Move every tensor and its gradient, which may be in a transport's buffer, back to memory of their own."""
        for tensor in self._tensors.values():
            tensor.data = tensor.data.clone()
            if tensor.grad is not None:
                tensor.grad = tensor.grad.clone()

    def find_replaced(self, network: nn.Module, *, memory: bool) -> str:
        """Return the name of a parameter that the network has replaced (with `memory`: or moved), or ""."""
        now = dict(network.named_parameters())
        for name, parameter in self._parameters.items():
            place = self.vector.data_ptr() + self.starts[name] * self.vector.element_size()
            if now.pop(name, None) is not parameter or (memory and parameter.numel() and parameter.data_ptr() != place):
                return name
        return next(iter(now), "")

    def add_gradients(self, total: Tensor) -> None:
        """Add the parameters' gradients to a vector with the same layout."""
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                view_like(parameter, total, self.starts[name]).add_(parameter.grad)

    @property
    def frozen(self) -> list[slice]:
        """The slices of the vector with frozen parameters."""
        return [
            slice(self.starts[name], self.starts[name] + parameter.numel())
            for name, parameter in self._parameters.items()
            if not parameter.requires_grad
        ]


def floating_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return a network's parameters, then its floating-point buffers, by name."""
    floats = {name: buffer for name, buffer in network.named_buffers() if buffer.is_floating_point()}
    return {**dict(network.named_parameters()), **floats}


def view_like(tensor: Tensor, vector: Tensor, start: int) -> Tensor:
    """Return the view of a vector that begins at `start`, with the tensor's shape and memory format."""
    if tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return vector.as_strided(tensor.shape, tensor.stride(), vector.storage_offset() + start)
    return vector[start : start + tensor.numel()].view(tensor.shape)


def padded_size(count: int) -> int:
    """Return the length of `count` elements in a vector, including padding."""
    return -(-count // ALIGNMENT) * ALIGNMENT
