"""Loops of one's own under real launchers: torchrun and mpirun start them, and nothing hangs when one fails."""

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from example_program import run_on_rank
from forked import forked_python, start_program
from launchers import mpirun
from launching import end_ranks, free_address, rank_environment, torchrun

import tenfold

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"
BEGIN = """
import json
import pathlib
import sys
import torch
from torch import nn
import tenfold

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(41, 3))
"""
UNEVEN = """
for block in range(2):
    with tenfold.average(model, optimizer, "hopping-ring", sync_every=2) as ranks:
        for step in range(3 + 4 * ranks.rank):
            optimizer.zero_grad()
            model(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
        with ranks.mean():
            pass
shard = tenfold.shard(torch.utils.data.TensorDataset(torch.arange(41)), batch_size=8)
seen = sorted(int(one) for (batch,) in shard for one in batch)
weights = sum(float(one.double().sum()) for one in model.state_dict().values() if one.is_floating_point())
told = [ranks.rank, ranks.size, len(shard), weights, seen]
pathlib.Path(f"told-{ranks.rank}").write_text(json.dumps(told))
"""
FAILING = """
with tenfold.average(model, optimizer, sync_every=1) as ranks:
    for step in range(100):
        model(torch.randn(8, 3)).square().mean().backward()
        if ranks.rank == 1 and step == 3:
            raise ZeroDivisionError("a mistake in the loop")
        optimizer.step()
"""
BETWEEN = """
with tenfold.average(model, optimizer) as ranks:
    pass
if ranks.rank == 1:
    raise ZeroDivisionError("a mistake in the loop")
with tenfold.average(model, optimizer):
    pass
"""
DIFFERENT = """
import os
rank = int(os.environ["RANK"])
{}
try:
    with tenfold.average(model, optimizer, **options):
        pass
except tenfold.TenfoldError as error:
    print(error)
    raise SystemExit(2)
"""
TWO_NETWORKS = """
torch.manual_seed(0)
generator, critic = nn.Linear(2, 3), nn.Linear(3, 1)
of_generator = torch.optim.Adam(generator.parameters(), lr=0.01)
of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
loss = nn.functional.binary_cross_entropy_with_logits
with tenfold.average(generator, of_generator) as ranks, tenfold.average(critic, of_critic, sync_every=2):
    for (real,) in tenfold.shard(data, batch_size=4):
        made = generator(torch.randn(len(real), 2))
        of_critic.zero_grad()
        judged = torch.cat([critic(real), critic(made.detach())])
        loss(judged, torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])).backward()
        of_critic.step()
        of_generator.zero_grad()
        loss(critic(made), torch.ones(len(real), 1)).backward()
        of_generator.step()
told = [one.tolist() for network in (generator, critic) for one in network.parameters()]
pathlib.Path(f"told-{ranks.rank}").write_text(json.dumps(told))
"""
CARRIED_STATE = """
torch.manual_seed(0)
streams = torch.randint(0, 5, (8, 33))
embedding, cell, last = nn.Embedding(5, 4), nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 5)
network = nn.ModuleList([embedding, cell, last])
of_network = torch.optim.SGD(network.parameters(), lr=0.5)
size = 8 // int(torch.os.environ.get("WORLD_SIZE", 1))
with tenfold.average(network, of_network, average="gradients") as ranks:
    for epoch in range(2):
        for (batch,) in tenfold.shard(torch.utils.data.TensorDataset(streams), batch_size=size):
            state = None
            for start in range(0, 32, 8):
                words, following = batch[:, start : start + 8], batch[:, start + 1 : start + 9]
                hidden, state = cell(embedding(words), state)
                state = tuple(one.detach() for one in state)
                of_network.zero_grad()
                nn.functional.cross_entropy(last(hidden).flatten(0, 1), following.flatten()).backward()
                of_network.step()
told = [one.tolist() for one in network.parameters()] + [[float(ranks.steps)]]
pathlib.Path(f"told-{ranks.rank}").write_text(json.dumps(told))
"""
GROUP = "torch.distributed.init_process_group('gloo')\n"


def launch(launcher: str, program: str, folder: Path) -> tuple[bool, str]:
    """Start a program on two ranks; return whether both ended well, and what they printed."""
    (folder / "program.py").write_text(program)
    if launcher != "mpirun":
        if launcher == "torchrun":
            well = not torchrun(2, run_on_rank, str(folder))
        else:
            address = free_address()
            own = [rank_environment(rank, 2, 2, address) for rank in range(2)]
            well = end_ranks([start_program(run_on_rank, str(folder), item) for item in own]) == [0, 0]
        return well, "".join(path.read_text() for path in sorted(folder.glob("output-*")))
    done = subprocess.run(
        [*mpirun(), "-n", "2", *forked_python(), "program.py"],
        env=os.environ | {"PYTHONPATH": str(Path(tenfold.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        check=False,
    )
    return done.returncode == 0, done.stdout


@pytest.mark.timeout(240)
def test_two_networks_with_two_optimizers_are_averaged_in_one_loop(tmp_path: Path) -> None:
    well, printed = launch("torchrun", BEGIN + TWO_NETWORKS, tmp_path)
    assert well, printed
    one, other = (json.loads((tmp_path / f"told-{rank}").read_text()) for rank in range(2))
    assert one == other


@pytest.mark.timeout(240)
def test_a_state_that_is_carried_between_steps_is_that_of_one_process_with_all_streams(tmp_path: Path) -> None:
    well, printed = launch("torchrun", BEGIN + CARRIED_STATE, tmp_path)
    assert well, printed
    one, other = (json.loads((tmp_path / f"told-{rank}").read_text()) for rank in range(2))
    assert one == other
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "program.py").write_text(BEGIN + CARRIED_STATE)
    single = rank_environment(0, 1, 1, free_address())
    assert end_ranks([start_program(run_on_rank, str(tmp_path / "alone"), single)]) == [0]
    alone = json.loads((tmp_path / "alone" / "told-0").read_text())
    assert alone[-1] == one[-1] == [8.0]
    for found, expected in zip(one, alone, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.timeout(120)
def test_the_example(tmp_path: Path) -> None:
    well, printed = launch("torchrun", EXAMPLE.read_text(), tmp_path)
    assert well, printed
    assert len(re.findall(r"2 ranks, 276 steps each: test accuracy 0\.9", printed)) == 1


@pytest.mark.timeout(120)
def test_uneven_loops_one_block_after_another_in_a_group_of_ones_own(tmp_path: Path) -> None:
    well, printed = launch("torchrun", BEGIN + GROUP + UNEVEN, tmp_path)
    assert well, printed
    assert_told_alike(tmp_path)


def assert_told_alike(folder: Path) -> None:
    told = [json.loads((folder / f"told-{rank}").read_text()) for rank in range(2)]
    assert [(rank, size) for rank, size, *_ in told] == [(0, 2), (1, 2)]
    assert len({(batches, weights) for _, _, batches, weights, _ in told}) == 1
    assert sorted(number for *_, seen in told for number in seen) == list(range(41))


@pytest.mark.timeout(120)
def test_a_mistake_on_one_rank_ends_all(tmp_path: Path) -> None:
    well, printed = launch("none", BEGIN + FAILING, tmp_path)
    assert not well
    assert_named(printed)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("change", "names"),
    [
        ("model = nn.Linear(3, 2 + rank)", "weight is float32 [2, 3] on rank 0, float32 [3, 3] on rank 1"),
        ("model = nn.Linear(3, 2) if rank else nn.Sequential(nn.Linear(3, 2))", "0.weight"),
        ("options = dict(sync_every=1 + rank)", "sync_every is 1 on rank 0, 2 on rank 1"),
        ("tenfold.shard(data, seed=rank)", "seed 1 on rank 1"),
        ("options = dict(average='gradients'); optimizer.defaults['lr'] = rank", "lr is 0 on rank 0"),
    ],
)
def test_ranks_that_differ_all_end_with_an_error_that_names_it(change: str, names: str, tmp_path: Path) -> None:
    different = f"options = dict(sync_every=1)\n{change}\nif type(model) is not nn.Sequential or len(model) == 1:\n"
    different += "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    (tmp_path / "program.py").write_text(BEGIN + DIFFERENT.format(different))
    address = free_address()
    ranks = [start_program(run_on_rank, str(tmp_path), rank_environment(rank, 2, 2, address)) for rank in range(2)]
    assert end_ranks(ranks) == [2, 2]
    for rank in range(2):
        assert names in (tmp_path / f"output-{rank}").read_text()


@pytest.mark.timeout(120)
def test_uneven_loops_and_then_a_mistake_between_blocks_under_mpirun(tmp_path: Path) -> None:
    """Both in one launch, as mpirun starts slowly."""
    well, printed = launch("mpirun", BEGIN + UNEVEN + BETWEEN, tmp_path)
    assert not well
    assert_told_alike(tmp_path)
    assert_named(printed)


def assert_named(printed: str) -> None:
    assert "ZeroDivisionError: a mistake in the loop" in printed
    assert "worker 1" in printed
    assert "SIGABRT" not in printed
