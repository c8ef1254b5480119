"""torch's own tests of backends, on the tenfold backend; its module chooses what to skip when it is imported.

    WORLD_SIZE=3 python tests/support/torch_suite.py [NAME ...]

runs all of them, or those with these names, as if the backend were gloo (with SUITE_AS=mpi: as if it were MPI, for the
tests that no other backend takes); with SUITE_BACKEND=gloo it runs them on gloo. Needs the package `expecttest`.
"""

import multiprocessing
import os
import sys
import tempfile
import unittest

os.environ.setdefault("WORLD_SIZE", "2")
os.environ["BACKEND"] = os.environ.get("SUITE_AS", "gloo")  # run what this backend is able to do
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp())
os.environ.setdefault("INIT_METHOD", "")
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "100")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from torch.testing._internal.common_distributed import DistTestCases
from torch.testing._internal.distributed import distributed_test

import tenfold
import tenfold.transport.process_group  # noqa: F401 - once, for all ranks, which are forked

BACKEND = os.environ.get("SUITE_BACKEND", "tenfold")


class _Disguised(str):
    """The name of a backend that the tests treat as they treat another."""

    def __eq__(self, other: object) -> bool:
        return other in (os.environ["BACKEND"], str(self))

    def __hash__(self) -> int:
        return hash(os.environ["BACKEND"])


distributed_test.BACKEND = _Disguised(BACKEND)
for feature in ("ddp", "subgroup", "plugin"):
    DistTestCases.backend_feature[feature].add("tenfold")


class TorchSuite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
    """The tests; their ranks are forked, since each import of torch would take seconds."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)


def run(names: list[str]) -> dict[str, str]:
    """Run the tests with these names, or all, and return how each ended."""
    names = names or sorted(name for name in dir(TorchSuite) if name.startswith("test_"))
    results = {}
    for name in names:
        result = unittest.TestResult()
        TorchSuite(name).run(result)
        problems = [*result.errors, *result.failures]
        skipped = f"skipped: {result.skipped[0][1]}" if result.skipped else "passed"
        results[name] = f"FAILED: {problems[0][1]}" if problems else skipped
        print(name, results[name][: 100000 if problems else 100], flush=True)
    return results


def main() -> None:
    results = run(sys.argv[1:])
    for kind in ("passed", "skipped", "FAILED"):
        print(kind, sum(value.startswith(kind) for value in results.values()))


if __name__ == "__main__":
    main()
