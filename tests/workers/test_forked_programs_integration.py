"""Programs that fork after a training, and train in the child."""

import multiprocessing
import multiprocessing.forkserver
import os
import re
import tempfile
from pathlib import Path

import pytest
import torch

import tenfold
from tenfold.errors import MachineError
from tenfold.sklearn import Classifier
from tenfold.workers import fork_server

SMALL = {"model": "mlp", "data": "digits", "limit": 40, "epochs": 1, "hidden": [4]}


@pytest.mark.timeout(120)
def test_a_child_trains_as_its_parent_did(tmp_path: Path) -> None:
    before = tenfold.train(**SMALL, workers=2, runs=tmp_path)
    child = os.fork()
    if not child:
        status = 1
        try:
            measured = before.evaluate()
            threads = {torch.get_num_threads()}
            alone = tenfold.train(**SMALL, runs=tmp_path)
            tenfold.train(
                **SMALL,
                workers=2,
                engine="one-device",
                runs=tmp_path,
                listen=lambda _: threads.add(torch.get_num_threads()),
            )
            together = tenfold.train(**SMALL, workers=2, runs=tmp_path)
            same = measured["accuracy"] == before.metrics["accuracy"] and together.metrics == before.metrics
            status = 0 if (alone.metrics and same and threads == {1}) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert tenfold.train(**SMALL, workers=2, runs=tmp_path).metrics == before.metrics


def test_a_process_that_may_have_none_of_its_own_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    with pytest.raises(MachineError, match="workers=1"):
        tenfold.train(**SMALL, workers=2, runs=tmp_path)
    for several in ({}, {"workers": 2}):
        with pytest.raises(MachineError, match='fold_mode="fold-by-fold'):
            tenfold.cross_validate(**SMALL, folds=2, **several, runs=tmp_path)
    with pytest.raises(MachineError, match=r"from a process of multiprocessing\.Pool"):
        Classifier(workers=2, threads=1, epochs=1, runs=tmp_path).fit([[0.0], [1.0], [2.0]], [0, 1, 0])
    assert not list(tmp_path.iterdir())
    folds = tenfold.cross_validate(**SMALL, folds=2, fold_mode="fold-by-fold", runs=tmp_path)
    assert len(folds.folds) == 2


def test_a_folder_too_long_for_a_socket_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(multiprocessing.forkserver, "ensure_running", refuse)
    monkeypatch.setattr(multiprocessing, "parent_process", multiprocessing.current_process)  # as in a nested one
    sentence = f"temporary folder, {tempfile.gettempdir()}, is too long for a socket; set TMPDIR to a shorter one"
    with pytest.raises(MachineError, match=re.escape(sentence)):
        fork_server.start_server()
