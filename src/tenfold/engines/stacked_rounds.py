"""Rounds of replicas that are rows of one matrix: the strategy's matrix times theirs."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tenfold.errors import ExperimentError
from tenfold.experiment import Parallel
from tenfold.mixing import Round, is_round_due
from tenfold.mixing.builders import make_compressor, make_outer, make_strategy
from tenfold.mixing.compression import row_lengths
from tenfold.training.flat import ALIGNMENT
from tenfold.training.replica import product
from tenfold.training.stack import ALL
from tenfold.training.stacked_replicas import StackedReplicas

REMEMBERED = 64
"""How many matrices of rounds are kept on the device."""


class StackedRounds:
    """The rounds of replicas that average with each other: all of them, or those in some rows, such as those of
    one fold. `workers.trainers.replica_rounds.ReplicaRounds` does the same for one replica."""

    def __init__(
        self, parallel: Parallel, stacked: StackedReplicas, samples: Sequence[float], rows: slice = ALL
    ) -> None:
        self.parallel = parallel
        self.strategy = make_strategy(parallel)
        if self.strategy.asynchronous:
            raise ExperimentError(
                f'parallel.strategy = "{parallel.strategy}" has no rounds, but replicas on one device step '
                "together; use a strategy with rounds, such as allreduce"
            )
        self.stacked = stacked
        self.rows = rows
        self.samples = samples
        self.size = len(samples)
        self.outer = make_outer(parallel)
        self.weights = stacked.optimizer.weights[rows]
        self.outer_state = self.outer.start(self.weights[0])
        size = self.weights.shape[1] if parallel.average != "gradients" else len(self.columns)
        self.compressors = [make_compressor(parallel, size, self._row_lengths()) for _ in range(self.size)]
        self.compressed = self.compressors[0].name != "none"
        self.reference = self.weights.clone() if self.compressed and parallel.average != "gradients" else None
        self.count = 0
        self.bytes_moved = [0.0] * self.size
        self._measure_distances = True
        self._distances: Tensor | None = None
        self._matrices: dict[int, tuple[Round, Tensor]] = {}

    def _row_lengths(self) -> tuple[int, ...]:
        """Return the lengths of the rows of the weight matrices, in the order in which workers would send them."""
        parameters = list(self.stacked.stack.network.parameters())
        if self.parallel.average != "gradients":
            return row_lengths([parameter.shape for parameter in parameters], ALIGNMENT)
        return row_lengths([parameter.shape for parameter in parameters if parameter.requires_grad])

    @cached_property
    def columns(self) -> Tensor:
        """The columns of the gradients that workers would send: those of trained parameters, without padding."""
        return self.stacked.stack.learnt_columns()

    def average_weights_if_due(self, step: int) -> None:
        """Carry out the next round if one is due after this step, counted from 1 over the run."""
        parallel = self.parallel
        if parallel.average == "gradients" or not is_round_due(
            step, parallel.steps_between_rounds, parallel.local_after
        ):
            return
        round_ = self._next()
        if round_.is_idle:
            return
        nbytes = self._compress()
        matrix = self._matrix(round_)
        before = self.weights.clone() if self._measure_distances else None
        self.stacked.mix(matrix, replicas_are_equal=round_.is_exact, rows=self.rows)
        if before is not None:
            self._distances = (before - self.weights).norm(dim=1) / self.weights.norm(dim=1).clamp_min(1e-30)
            self._measure_distances = False
        if self.parallel.outer != "none":
            rate = self.stacked.lr_schedule.at(self.stacked.steps - 1)
            self.weights.copy_(self.outer.update(self.outer_state, self.weights[0].clone(), n=self.size, lr=rate))
        if self.reference is not None:
            self.reference.copy_(self.weights)
        optimizer = self.stacked.optimizer
        if self.parallel.optimizer_state == "reset":
            optimizer.forget(self.rows)
        elif self.parallel.optimizer_state == "average":
            for role in optimizer.roles.values():
                role[self.rows].copy_(product(matrix, role[self.rows]))
        self._count_bytes(round_, nbytes)

    def take_distances_from_mean(self) -> list[float]:
        """Return |x - mean| / |mean| of each replica's weights x before the first round since the last call.

        Empty where there was no round.
        """
        taken, self._distances, self._measure_distances = self._distances, None, True
        return [] if taken is None else taken.tolist()

    def step_by_gradients(self, sizes: Sequence[int]) -> None:
        """Average the gradients, weighted by the samples they were computed on, and step all replicas."""
        round_, gradient = self._next(), self.stacked.optimizer.gradient[self.rows]
        for row, size in zip(gradient, sizes, strict=True):
            if not size:
                row.zero_()
        if not round_.is_idle:
            nbytes = self._compress_gradients(gradient)
            matrix = torch.as_tensor(round_.matrix([float(size) for size in sizes])).to(gradient)
            gradient.copy_(product(matrix, gradient))
            self._count_bytes(round_, nbytes)
        self.stacked.optimizer.step(self.rows)

    def use_mean_of_replicas(self) -> None:
        """Give every replica the mean of all."""
        last = self.strategy.final(self.size)
        if not last.is_idle:
            self.stacked.mix(self._matrix(last), replicas_are_equal=last.is_exact, rows=self.rows)

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint stores."""
        errors = [compressor.error for compressor in self.compressors]
        kept = {"outer": self.outer_state, "reference": self.reference, "errors": errors}
        return kept | {"rounds": self.count, "bytes_moved": self.bytes_moved}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self.count, self.bytes_moved = state["rounds"], state["bytes_moved"]
        self.outer_state = {name: tensor.to(self.weights.device) for name, tensor in state["outer"].items()}
        if self.reference is not None:
            self.reference.copy_(state["reference"])
        for compressor, error in zip(self.compressors, state["errors"], strict=True):
            compressor.error = None if error is None else error.to(self.weights.device)

    def _next(self) -> Round:
        self.count += 1
        return self.strategy.round(self.count - 1, self.size)

    def _matrix(self, round_: Round) -> Tensor:
        if id(round_) not in self._matrices:  # by identity: comparing a thousand sources costs more than mixing them
            if len(self._matrices) >= REMEMBERED:
                self._matrices.clear()
            matrix = torch.as_tensor(round_.matrix(list(self.samples))).to(self.weights)
            self._matrices[id(round_)] = round_, matrix
        return self._matrices[id(round_)][1]

    def _compress(self) -> int:
        """Replace the weights by what the others would decode, and return the bytes that a replica sends."""
        whole = self.stacked.stack.matrix[0].nbytes
        if self.reference is None:
            return whole
        for row, reference, compressor in zip(self.weights, self.reference, self.compressors, strict=True):
            packed = compressor.encode(row - reference)
            compressor.decode(packed, row)
            for place in self.stacked.stack.frozen:
                row[place].zero_()
            row.add_(reference)
        return packed.nbytes + whole - self.weights[0].nbytes

    def _compress_gradients(self, gradient: Tensor) -> int:
        """Replace the gradients by what the others would decode, and return the bytes that a replica sends."""
        if not self.compressed:
            return len(self.columns) * gradient.element_size()
        for row, compressor in zip(gradient, self.compressors, strict=True):
            learnt = row[self.columns]
            packed = compressor.encode(learnt)
            row[self.columns] = compressor.decode(packed, learnt)
        return packed.nbytes

    def _count_bytes(self, round_: Round, nbytes: int) -> None:
        sent = round_.bytes_per_worker(nbytes)
        self.bytes_moved = [before + now for before, now in zip(self.bytes_moved, sent, strict=True)]
