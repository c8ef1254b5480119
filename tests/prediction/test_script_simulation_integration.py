"""Scripts of torch.distributed on a virtual cluster: the weights of real ranks, the times of the cluster."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from forked import forked_python
from launching import free_address, rank_environment
from typer.testing import CliRunner

from tenfold.api.simulate import simulate_script
from tenfold.cli import app
from tenfold.errors import ExperimentError, TrainingError
from tenfold.prediction import script_simulation
from tenfold.prediction.script_simulation import epochs_in
from tenfold.runs.open_run import open_run

pytestmark = pytest.mark.timeout(120)
TRAINING = """
import os, sys
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if sys.argv[1] == "tenfold":
    import tenfold
dist.init_process_group(sys.argv[1])
torch.manual_seed(0)
data = TensorDataset(torch.randn(240, 20), torch.randint(0, 3, (240,)))
sampler = DistributedSampler(data)
layers = [torch.nn.Linear(20, 50), torch.nn.BatchNorm1d(50), torch.nn.ReLU(), torch.nn.Linear(50, 3)]
network = torch.nn.Sequential(*layers)
model = torch.nn.parallel.DistributedDataParallel(network, bucket_cap_mb=0.002)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, batch_size=10, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
if dist.get_rank() == 0:
    torch.save(network.state_dict(), sys.argv[2])
    print("backend", dist.get_backend())
dist.destroy_process_group()
"""
TIMES = """
import json, sys, time
import torch, torch.distributed as dist

dist.init_process_group("nccl")  # whatever is named
assert dist.get_backend() == "gloo"  # as on CPUs
rank = dist.get_rank()
took = {}

class Timed:
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        dist.barrier()
        self.began = time.perf_counter()
    def __exit__(self, *_):
        took[self.name] = time.perf_counter() - self.began

def compute(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass

x = torch.full((250_000,), float(rank))
with Timed("all_reduce"):
    dist.all_reduce(x)
assert x[0] == 1
with Timed("hidden"):
    handle = dist.all_reduce(x, async_op=True)
    compute(0.2)
    handle.wait()
with Timed("behind a slow rank"):
    compute(0.3 * rank)
    dist.all_reduce(torch.zeros(1))
with Timed("message"):
    if rank == 0:
        dist.send(x, 1)
    else:
        y = torch.zeros(250_000, dtype=torch.float32)
        dist.recv(y, 0)
        assert y.equal(x)
with Timed("future"):
    handle = dist.all_reduce(x, async_op=True)
    handle.get_future().wait()
gathered = [None, None]
dist.all_gather_object(gathered, rank)
assert gathered == [0, 1]
dist.new_group([0, 1]).barrier()
with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
    json.dump(took, file)
"""


COMPUTING = """
import time
import torch.distributed as dist

dist.init_process_group("gloo")
until = time.process_time() + 0.2
while time.process_time() < until:
    pass
dist.barrier()
"""
STARTING_SLOWLY = (
    COMPUTING
    + """
import torch
parameter = torch.nn.Parameter(torch.ones(()))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for _ in range(20):
    parameter.grad = torch.ones(())
    optimizer.step()
"""
)
SPAWNING = """
import time
import torch.distributed as dist
import torch.multiprocessing as mp

def train(rank, world):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    began = time.perf_counter_ns(), time.perf_counter()
    dist.barrier()
    assert time.perf_counter_ns() - began[0] > 0.9e9
    assert time.perf_counter() - began[1] > 0.9
    print("waited")

if __name__ == "__main__":
    processes = mp.spawn(train, args=(2,), nprocs=2, join=False)
    while not processes.join():
        pass
    print("joined")
"""
LAB = """
[[groups]]
name = "new"
link = "10gbe"

[[groups]]
name = "old"
speed = 0.25
link = "1gbe"
"""


@pytest.fixture(autouse=True)
def fork_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_simulation, "PYTHON", forked_python())


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize("ranks", [2, 4])
def test_weights_are_those_of_the_real_script(tmp_path: Path, ranks: int) -> None:
    program = script(tmp_path, TRAINING)
    address = free_address()
    real_ranks = [
        subprocess.Popen(
            [*forked_python(), str(program), "tenfold", str(tmp_path / "real.pt")],
            env=rank_environment(rank, ranks, ranks, address),
        )
        for rank in range(ranks)
    ]
    assert [rank.wait(60) for rank in real_ranks] == [0] * ranks
    printed: list[str] = []
    done = simulate_script(
        program,
        "gloo",
        str(tmp_path / "virtual.pt"),
        workers=ranks,
        link="10gbe",
        runs=tmp_path / "runs",
        say=lambda _, line: printed.append(line),
    )
    real, virtual = (torch.load(tmp_path / f"{name}.pt") for name in ("real", "virtual"))
    assert all(torch.equal(real[name], virtual[name]) for name in real)
    assert printed == ["backend gloo"]
    assert done.clock == "predicted"
    assert done.result["steps"] == 48 // ranks
    assert done.interval is not None
    assert done.interval[0] < (done.seconds or 0) < done.interval[1]


def test_collectives_take_virtual_time(tmp_path: Path) -> None:
    link = {"latency": 0.1, "bandwidth": 2.5e6}  # 1 MB: 0.4 s
    done = simulate_script(script(tmp_path, TIMES), str(tmp_path), workers=2, link=link, runs=tmp_path / "runs")
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for times in (first, second):
        assert times["all_reduce"] == pytest.approx(0.5, abs=0.05)
        assert times["hidden"] == pytest.approx(0.5, abs=0.05)
        assert times["behind a slow rank"] == pytest.approx(0.4, abs=0.05)
        assert times["future"] == pytest.approx(0.5, abs=0.05)
    assert second["message"] == pytest.approx(0.5, abs=0.05)
    ranks = done.result["ranks"]
    assert ranks[0]["wait"] > 0.25 > ranks[1]["wait"]
    assert ranks[1]["compute"] - ranks[0]["compute"] == pytest.approx(0.3, abs=0.15)
    assert done.result["operations"]["all_reduce"]["count"] == 4
    assert done.result["speedup"] == pytest.approx(done.result["baseline_seconds"] / done.seconds)
    assert {span.kind for span in done.spans()} == {"compute", "wait", "communicate"}


def test_what_every_rank_does_once_is_no_speedup(tmp_path: Path) -> None:
    done = simulate_script(script(tmp_path, STARTING_SLOWLY), workers=3, runs=tmp_path / "runs")
    assert done.result["speedup"] < 2  # of 3, if it were divided among them


def test_only_time_ends_early_and_says_so(tmp_path: Path) -> None:
    program = script(tmp_path, TRAINING.replace("range(2)", "range(1000)"))
    done = simulate_script(program, "gloo", "--epochs", "1000", only_time=True, workers=2, runs=tmp_path / "runs")
    assert done.result["steps"] == 12_000
    assert any("xtrapolated" in reason for reason in done.result["reasons"])


def test_errors_of_a_script_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no such thing"):
        simulate_script(script(tmp_path, "raise ValueError('no such thing')"), workers=1, runs=tmp_path / "runs")
    mpi = script(tmp_path, "import torch.distributed as dist\ndist.init_process_group('mpi')")
    with pytest.raises(TrainingError, match="gloo"):
        simulate_script(mpi, workers=1, runs=tmp_path / "runs")
    with pytest.raises(TrainingError, match="code 3"):
        simulate_script(script(tmp_path, "raise SystemExit(3)"), workers=1, runs=tmp_path / "runs")
    insists = script(tmp_path, "import torch; torch.cuda.set_device(0)")
    with pytest.raises(TrainingError, match="use the CPU"):
        simulate_script(insists, workers=1, runs=tmp_path / "runs")
    with pytest.raises(ExperimentError, match="process group"):
        simulate_script(script(tmp_path, "print(1)"), workers=1, runs=tmp_path / "runs")


def test_an_interrupted_script_is_recorded_and_the_command_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(script_simulation, "run_ranks", interrupt)
    program = str(script(tmp_path, COMPUTING))
    outcome = CliRunner().invoke(app, ["simulate", program, "--runs", str(tmp_path / "runs")])
    assert outcome.exit_code != 0
    assert "again" in outcome.output
    assert open_run(1, runs=tmp_path / "runs").status == "interrupted"


def test_a_script_may_start_its_ranks_itself_and_read_the_clock_in_nanoseconds(tmp_path: Path) -> None:
    printed: list[str] = []
    done = simulate_script(
        script(tmp_path, SPAWNING),
        workers=2,
        link={"latency": 1.0, "bandwidth": 1e9},
        runs=tmp_path / "runs",
        say=lambda _, line: printed.append(line),
    )
    assert done.result["operations"]["barrier"]["count"] == 1
    assert sorted(printed) == ["joined", "joined", "waited", "waited"]


def test_modules_of_the_current_folder_are_not_those_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # a new Python, rather than one that is forked
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "numbers.py").write_text("raise RuntimeError('not the standard library')")
    monkeypatch.chdir(folder)
    done = simulate_script(script(tmp_path, COMPUTING), workers=1, runs=tmp_path / "runs")
    assert done.result["operations"]["barrier"]["count"] == 1


MODULE = """
import sys, time
import torch.distributed as dist
from package.helper import read_clock

dist.init_process_group("gloo")
began = read_clock()
dist.barrier()
assert read_clock() - began > 0.9
print(__name__, sys.argv[1:])
"""


def test_a_module_runs_as_python_would_run_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "package"  # whose clock is the virtual one all the same
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(MODULE)
    (package / "helper.py").write_text("import time\n\ndef read_clock(): return time.monotonic()")
    monkeypatch.chdir(package.parent)
    fields = ["--workers", "2", "--set", "link={latency = 1.0, bandwidth = 1e9}", "--runs", str(tmp_path / "runs")]
    outcome = CliRunner().invoke(app, ["simulate", "-m", "package", *fields, "--", "a//b", "--epochs", "2"])
    assert outcome.exit_code == 0, outcome.output
    assert outcome.output.count("__main__ ['a//b', '--epochs', '2']") == 2
    assert open_run(1, runs=tmp_path / "runs").metadata["script"]["module"] == "package"


@pytest.mark.parametrize("name", ["package.missing", "os.path.sep", "sys", ".relative", ""])
def test_a_missing_module_is_a_sentence(name: str) -> None:
    outcome = CliRunner().invoke(app, ["simulate", "-m", name, "--workers", "2"])
    assert outcome.exit_code == 2
    assert "no module" in outcome.output


def test_epochs_are_read_from_arguments() -> None:
    assert epochs_in(["--epochs", "3"]) == epochs_in(["--max_epochs=3"]) == epochs_in(["-x", "--num-epochs", "3"]) == 3
    assert epochs_in(["--epoch-size", "3"]) is None
    assert epochs_in(["3"]) is None


def test_several_numbers_of_workers_make_one_page(tmp_path: Path) -> None:
    page, runs = tmp_path / "page.html", tmp_path / "runs"
    arguments = ["--workers", "1,2", "--link", "1gbe", "-o", str(page), "--runs", str(runs)]
    outcome = CliRunner().invoke(app, ["simulate", str(script(tmp_path, COMPUTING)), *arguments])
    assert outcome.exit_code == 0, outcome.output
    listed = [open_run(number, runs=runs) for number in (1, 2)]
    assert len({run.metadata["invocation"] for run in listed}) == 1
    one, two = (run.result for run in listed)
    assert (one["workers"], two["workers"]) == (1, 2)
    assert two["seconds"] == pytest.approx(one["seconds"], rel=0.3)  # each rank does the same
    text = page.read_text()
    assert "script.py" in text
    assert "predicted" in text
    assert "without startup" not in text  # the script's own startup and evaluation are part of its time


def test_a_file_describes_the_cluster(tmp_path: Path) -> None:
    lab, runs = tmp_path / "lab.toml", tmp_path / "runs"
    lab.write_text(LAB)
    arguments = ["--workers", "2", "--cluster", str(lab), "--runs", str(runs)]
    outcome = CliRunner().invoke(app, ["simulate", str(script(tmp_path, COMPUTING)), *arguments])
    assert outcome.exit_code == 0, outcome.output
    new, old = open_run(1, runs=runs).result["ranks"]
    assert old["compute"] == pytest.approx(4 * new["compute"], rel=0.3)
    assert new["wait"] > 0.3 > old["wait"]


def test_the_command_refuses_what_does_not_fit(tmp_path: Path) -> None:
    program = str(script(tmp_path, "print(1)"))
    for arguments, word in (
        ([program, "--lr", "0.1"], "lr"),
        ([program, "--cluster", "here"], "here"),
        ([str(tmp_path / "missing.py")], "missing.py"),
        (["--", "--epochs", "2"], "--epochs"),
    ):
        outcome = CliRunner().invoke(app, ["simulate", *arguments, "--runs", str(tmp_path / "runs")])
        assert outcome.exit_code == 2
        assert word in outcome.output
    assert not (tmp_path / "runs").exists()
