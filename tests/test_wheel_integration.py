"""The wheel, installed into a fresh environment outside the repository: it has everything that its commands need."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
SECONDS = 100


def run(command: list[str | Path], folder: Path, **variables: str) -> str:
    hidden = ("PYTHONPATH", "TENFOLD_RUNS", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | variables
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution, as `make dist` does."""
    for package in ("build", "hatchling"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed, so that no wheel can be built")
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], folder)
    assert (folder / f"tenfold-{VERSION}.tar.gz").exists()
    return folder / f"tenfold-{VERSION}-py3-none-any.whl"


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the wheel; its dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    programs = folder / "bin"
    pip = [sys.executable, "-m", "pip", "--python", programs / "python"]
    run([*pip, "install", "--no-deps", "--no-index", wheel], folder)
    packages = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    # A line of a .pth file adds a folder but not the .pth files in it, such as that of an editable Tenfold.
    installed = [folder for folder in sys.path if Path(folder).name == "site-packages"]
    shared = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *installed])
    (packages / "dependencies.pth").write_text("\n".join(shared) + "\n")
    return programs


def test_the_wheel_has_the_files_that_pages_recipes_and_the_board_read(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        packed = set(file.namelist())
    source = ROOT / "src"
    for path in source.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert str(path.relative_to(source)) in packed


@pytest.mark.timeout(3 * SECONDS)
def test_it_is_imported_from_where_it_is_installed_with_the_commands_of_its_entry_points(
    scripts: Path, tmp_path: Path
) -> None:
    program = "import tenfold, tenfold.cli; print(tenfold.__version__, tenfold.__file__); tenfold.cli.main()"
    (version, file), *listed = (
        line.split() for line in run([scripts / "python", "-c", program, "recipe", "--json"], tmp_path).splitlines()
    )
    assert version == VERSION
    assert Path(file).is_relative_to(scripts.parent)
    assert any("dsmp-table-1" in word for line in listed for word in line)


@pytest.mark.timeout(3 * SECONDS)
def test_the_demo_races_on_digits_where_mnist_is_out_of_reach(scripts: Path, tmp_path: Path) -> None:
    if Path("/usr/share/datasets/mnist").exists():
        pytest.skip("MNIST comes with this machine, and training on it takes long")
    closed = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    places = {"TENFOLD_CACHE": str(tmp_path / "cache"), "TENFOLD_DATA": str(tmp_path / "data")}
    run([scripts / "tenfold", "demo", "--model", "mlp", "--no-open", "--quiet"], tmp_path, **closed, **places)
    page = (tmp_path / "report.html").read_text()
    assert "the tutorial&#39;s loop" in page
    assert '"F"' in page  # the flags of predicted finishes
    assert run([scripts / "tenfold", "runs", "--json"], tmp_path).count('"finished"') == 3
