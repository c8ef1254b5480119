"""Rounds of replicas that are rows of one matrix: the strategy's matrix times theirs."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tenfold.errors import ExperimentError
from tenfold.experiment import Parallel
from tenfold.mixing import Round
from tenfold.mixing.builders import make_compressor
from tenfold.mixing.compression import row_lengths
from tenfold.training.flat import ALIGNMENT
from tenfold.training.replica import product
from tenfold.training.stack import ALL
from tenfold.training.stacked_replicas import StackedReplicas
from tenfold.workers.channels import MakeRound
from tenfold.workers.rounds import Rounds

REMEMBERED = 64
"""How many matrices of rounds are kept on the device."""


class StackedRounds(Rounds):
    """The rounds of replicas that average with each other: all of them, or those in some rows, such as those of
    one fold. `workers.rounds.ReplicaRounds` does the same for one replica."""

    def __init__(
        self, parallel: Parallel, stacked: StackedReplicas, samples: Sequence[float], rows: slice = ALL
    ) -> None:
        super().__init__(parallel, stacked.optimizer.weights[rows])
        if self.strategy.asynchronous:
            raise ExperimentError(
                f'parallel.strategy = "{parallel.strategy}" has no rounds, but replicas on one device step '
                "together; use a strategy with rounds, such as allreduce"
            )
        self.stacked = stacked
        self.rows = rows
        self.samples = samples
        size = self.weights.shape[1] if parallel.average != "gradients" else len(self.columns)
        self.compressors = [make_compressor(parallel, size, self._row_lengths()) for _ in range(self.size)]
        self.compressed = self.compressors[0].name != "none"
        self.reference = self.weights.clone() if self.compressed and parallel.average != "gradients" else None
        self.bytes_moved = [0.0] * self.size
        self._matrices: dict[int, tuple[Round, Tensor]] = {}

    @property
    def size(self) -> int:
        """The number of replicas that average."""
        return len(self.samples)

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
        if self.parallel.average != "gradients" and self.is_due(step):
            self.average_weights()

    def mix(self, make_round: MakeRound) -> Round:
        """Multiply the replicas' states by the matrix of the round, and return the round."""
        round_ = make_round(self.size)
        self.stacked.mix(self._matrix(round_), replicas_are_equal=round_.is_exact, rows=self.rows)
        return round_

    def step_outer(self) -> None:
        """Give all replicas the weights that the outer optimizer makes of their average, which is in every row."""
        lr = self.stacked.lr_schedule.at(self.stacked.steps - 1)
        self.weights.copy_(self.outer.update(self.outer_state, self.weights[0].clone(), n=self.size, lr=lr))

    def reset_optimizers(self) -> None:
        """Let the replicas' optimizers begin again, as before the first step."""
        self.stacked.optimizer.forget(self.rows)

    def average_optimizers(self, make_round: MakeRound) -> None:
        """Multiply what the optimizers keep by the matrix of the round."""
        matrix = self._matrix(make_round(self.size))
        for role in self.stacked.optimizer.roles.values():
            role[self.rows].copy_(product(matrix, role[self.rows]))

    def step_by_gradients(self, sizes: Sequence[int]) -> None:
        """Average the gradients, weighted by the samples they were computed on, and step all replicas."""
        round_, gradient = self.begin()(self.size), self.stacked.optimizer.gradient[self.rows]
        for row, size in zip(gradient, sizes, strict=True):
            if not size:
                row.zero_()
        if not round_.is_idle:
            nbytes = self._compress_gradients(gradient)
            matrix = torch.as_tensor(round_.matrix([float(size) for size in sizes])).to(gradient)
            gradient.copy_(product(matrix, gradient))
            self.count_bytes(round_, nbytes)
        self.stacked.optimizer.step(self.rows)

    def use_mean_of_replicas(self) -> None:
        """Give every replica the mean of all."""
        last = self.strategy.final(self.size)
        if not last.is_idle:
            self.stacked.mix(self._matrix(last), replicas_are_equal=last.is_exact, rows=self.rows)

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint stores."""
        errors = [compressor.error for compressor in self.compressors]
        return super().state() | {"errors": errors, "bytes_moved": self.bytes_moved}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state that `state` returned."""
        super().load(state)
        self.bytes_moved = state["bytes_moved"]
        for compressor, error in zip(self.compressors, state["errors"], strict=True):
            compressor.error = None if error is None else error.to(self.weights.device)

    def _matrix(self, round_: Round) -> Tensor:
        if id(round_) not in self._matrices:  # by identity: comparing a thousand sources costs more than mixing them
            if len(self._matrices) >= REMEMBERED:
                self._matrices.clear()
            matrix = torch.as_tensor(round_.matrix(list(self.samples))).to(self.weights)
            self._matrices[id(round_)] = round_, matrix
        return self._matrices[id(round_)][1]

    def compress(self) -> int:
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

    def count_bytes(self, round_: Round, nbytes: int) -> None:
        """Count what each replica would send."""
        sent = round_.bytes_per_worker(nbytes)
        self.bytes_moved = [before + now for before, now in zip(self.bytes_moved, sent, strict=True)]
