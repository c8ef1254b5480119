"""The commands of several machines, as text."""

import shlex
import shutil
import sys
from pathlib import Path

import pytest
from looped import looped

from tenfold.errors import MachineError
from tenfold.launch.start import Host, find_mpirun, mpirun, program, share_out, slurm, torchrun

TWO = (Host("me@node1", 4), Host("node2", 2))
TRAIN = program(Path("lenet.toml"))


def test_what_every_process_runs() -> None:
    assert shlex.join(program(Path("lenet.toml"), ["--lr", "0.1"])) == "-m tenfold train lenet.toml --lr 0.1"
    assert shlex.join(program(Path("own_loop.py"))) == "own_loop.py"


def test_all_hosts_meet_on_the_first() -> None:
    said = [(host.name, shlex.join(command)) for host, command in torchrun(TWO, TRAIN, name="lenet")]
    meeting = "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint node1:29500 --rdzv-id lenet --rdzv-conf "
    assert said == [
        ("me@node1", meeting + "is_host=1 --local-addr node1 --nproc-per-node 4 -m tenfold train lenet.toml"),
        ("node2", meeting + "is_host=0 --local-addr node2 --nproc-per-node 2 -m tenfold train lenet.toml"),
    ]


def test_one_host_has_nobody_to_meet() -> None:
    [(host, command)] = torchrun((Host("node1", 3),), TRAIN)
    assert host.name == "node1"
    assert shlex.join(command) == "torchrun --standalone --nproc-per-node 3 -m tenfold train lenet.toml"


def test_an_interpreter_in_the_place_of_the_path() -> None:
    for _, command in torchrun(TWO, TRAIN, python="/venv/bin/python", port=4000):
        assert command[:3] == ["/venv/bin/python", "-m", "torch.distributed.run"]
        assert "node1:4000" in command
    assert "/venv/bin/python -m tenfold" in shlex.join(mpirun(TWO, TRAIN, python="/venv/bin/python"))


def test_torchrun_understands_its_command() -> None:
    from torch.distributed.run import config_from_args, parse_args

    for host, command in torchrun(TWO, program(Path("own_loop.py"), ["--epochs", "3"]), name="own"):
        config, _, arguments = config_from_args(parse_args(command[1:]))
        assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (2, 2, host.slots)
        assert (config.rdzv_backend, config.rdzv_endpoint, config.run_id) == ("c10d", "node1:29500", "own")
        assert config.rdzv_configs["is_host"] == ("1" if host is TWO[0] else "0")
        assert config.local_addr == host.address
        assert arguments[-3:] == ["own_loop.py", "--epochs", "3"]


def test_mpirun_beside_python_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = str(Path(sys.executable).parent)
    places = {beside: "/env/bin/mpirun", None: "/usr/bin/mpirun"}
    monkeypatch.setattr(shutil, "which", lambda _name, path=None: places.get(path))
    assert find_mpirun() == "/env/bin/mpirun"
    del places[beside]
    assert find_mpirun() == "/usr/bin/mpirun"
    places.clear()
    assert find_mpirun() is None


def test_mpirun_starts_everything_from_one_place() -> None:
    line = "mpirun -n 6 --host me@node1:4,node2:2 python -m tenfold train lenet.toml"
    assert shlex.join(mpirun(TWO, TRAIN)) == line


class TestSlurm:
    def test_the_script(self) -> None:
        script = slurm(TRAIN, name="lenet", nodes=2, per_node=4, threads=3)
        lines = script.splitlines()
        assert lines[0] == "#!/bin/bash"
        assert [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")] == [
            "--job-name=lenet",
            "--nodes=2",
            "--ntasks-per-node=1",
            "--cpus-per-task=12",
            "--output=%x-%j.out",
        ]
        assert "srun --cpus-per-task" in script
        assert '--nnodes "$SLURM_NNODES" --nproc-per-node 4' in script
        assert script.rstrip().endswith("-m tenfold train lenet.toml")

    def test_a_gpu_for_each_process(self) -> None:
        assert "#SBATCH --gpus-per-node=2" in slurm(TRAIN, name="lenet", nodes=1, per_node=2, gpus=True)

    def test_an_interpreter_in_the_place_of_the_path(self) -> None:
        script = slurm(TRAIN, name="lenet", nodes=1, per_node=1, python="/my venv/bin/python")
        assert "\"$SLURM_CPUS_PER_TASK\" '/my venv/bin/python' -m torch.distributed.run \\\n" in script

    def test_odd_names_are_quoted(self) -> None:
        script = slurm(program(Path("my net.toml")), name="my net", nodes=1, per_node=1)
        assert "--job-name='my net'" in script
        assert "train 'my net.toml'" in script

    @pytest.mark.parametrize("count", ["nodes", "per_node", "threads"])
    def test_nothing_runs_nowhere(self, count: str) -> None:
        with pytest.raises(MachineError, match="= 0 runs nothing; it takes at least 1"):
            slurm(TRAIN, name="lenet", **{"nodes": 1, "per_node": 1, count: 0})


def test_workers_are_shared_out_evenly() -> None:
    assert share_out(8, 2) == 4
    assert share_out(1, 2) == 1
    with pytest.raises(MachineError, match="divide"):
        share_out(5, 2)


@looped("name", ["a\n#SBATCH --wrap=id", "a\rb", "a\x00b", "a\u2028b"])
def test_a_file_name_adds_no_lines_to_a_slurm_script(name: str) -> None:
    for fields in ({"name": name, "what": TRAIN}, {"name": "lenet", "what": program(Path(name))}):
        with pytest.raises(MachineError, match="script"):
            slurm(fields["what"], name=str(fields["name"]), nodes=1, per_node=1)
