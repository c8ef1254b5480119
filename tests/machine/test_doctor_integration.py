from pathlib import Path

import pytest

from tenfold.machine import doctor

pytestmark = pytest.mark.timeout(90)


def test_this_machine_can_be_examined(tmp_path: Path) -> None:
    findings = doctor.examine(tmp_path)
    topics = [finding.topic for finding in findings]
    assert len(topics) == len(set(topics))
    assert {"python", "cores", "threads", "memory", "disk", "torch", "bf16", "gpus", "mpi4py", "mpirun"} <= set(topics)
    assert all(finding.found and bool(finding.advice) == (finding.status != "ok") for finding in findings)
