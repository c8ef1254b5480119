"""The commands of several machines, as text."""

import shlex
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from looped import looped

from tenfold.errors import MachineError
from tenfold.launchers import Host, find_mpirun, mpirun, parse_hosts, program, read_hosts, share_out, slurm, torchrun

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
        with pytest.raises(MachineError, match="at least 1"):
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


NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,12}", fullmatch=True)


@looped(
    ("text", "expected"),
    [
        ("node1\nnode2\n", [("node1", 1), ("node2", 1)]),
        ("node1 slots=4\nnode2 slots=2 max_slots=8\n", [("node1", 4), ("node2", 2)]),
        ("node1:4\nnode2:2", [("node1", 4), ("node2", 2)]),
        ("# all of them\n\nnode1 slots=2  # the new one\n  node2\n", [("node1", 2), ("node2", 1)]),
        ("node1\nnode2\nnode1\n", [("node1", 2), ("node2", 1)]),
        ("me@10.0.0.1 slots=2\r\n[fe80::1]:3\r\n", [("me@10.0.0.1", 2), ("[fe80::1]", 3)]),
    ],
)
def test_it_is_understood(text: str, expected: list[tuple[str, int]]) -> None:
    assert parse_hosts(text) == tuple(Host(name, slots) for name, slots in expected)


def test_lines_that_say_no_slots_take_what_is_asked_for() -> None:
    assert parse_hosts("a\nb slots=1\na\n", slots=3) == (Host("a", 6), Host("b", 1))


def test_others_know_a_host_without_its_user() -> None:
    assert Host("me@node1").address == "node1"
    assert Host("node1").address == "node1"


@given(
    st.lists(st.tuples(NAMES, st.integers(1, 64)), min_size=1, max_size=8), st.sampled_from(["{} slots={}", "{}:{}"])
)
def test_no_slot_is_lost_in_either_form(wanted: list[tuple[str, int]], form: str) -> None:
    hosts = parse_hosts("\n".join(form.format(*item) for item in wanted))
    assert sum(host.slots for host in hosts) == sum(slots for _, slots in wanted)
    assert [host.name for host in hosts] == list(dict.fromkeys(name for name, _ in wanted))


@looped(
    ("text", "said"),
    [
        ("", "hosts.txt"),
        ("# nobody\n", "hosts.txt names no host"),
        ("node1\nnode2 slots=0\n", "hosts.txt"),
        ("node1 slots=many\n", "line 1: slots is 'many'"),
        ("node1:x\n", "line 1: slots is 'x'"),
        ("node1 gpus=2\n", "gpus=2"),
        ("node1 4\n", "unknown setting"),
        ("-oProxyCommand=evil\n", "oProxyCommand=evil"),
        ("node1;rm\n", "node1"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(MachineError) as error:
        parse_hosts(text, "hosts.txt")
    assert said in str(error.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"there is no hosts file .*; write one name per line"):
        read_hosts(tmp_path / "hosts.txt")
    with pytest.raises(MachineError, match="directory"):
        read_hosts(tmp_path)
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfe\x00n")
    with pytest.raises(MachineError, match="UTF-8"):
        read_hosts(tmp_path / "odd.txt")
