"""The two ways of the README to train a script of one's own, under torchrun with two ranks."""

import re
from pathlib import Path

import pytest
from launched_program import run_script
from launching import torchrun

pytestmark = pytest.mark.timeout(120)
README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"^```python[^\n]*\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
STEPS = """
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
rank = torch.distributed.get_rank()
for inputs, targets in zip(x[rank::2].split(100), y[rank::2].split(100)):
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(inputs), targets).backward()
    optimizer.step()
torch.distributed.destroy_process_group()
"""
REPORT = """
import os
from pathlib import Path
weights = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
Path({folder!r}, os.environ["RANK"]).write_text(f"{{weights.tolist()}} {{seen if 'seen' in globals() else ''}}")
"""


def block(text: str) -> str:
    [found] = [block for block in BLOCKS if text in block]
    return found


@pytest.mark.parametrize(
    "program",
    [
        block("tenfold.shard(loader)").replace("optimizer.zero_grad()", "optimizer.zero_grad(); seen += len(inputs)"),
        block("init_process_group") + STEPS,
    ],
    ids=["two lines in a loop", "one word in a DDP script"],
)
def test_two_ranks_train_their_shares_and_end_with_the_same_weights(program: str, tmp_path: Path) -> None:
    own_model, _, _ = block("tenfold.Experiment(").partition("experiment =")
    script = tmp_path / "script.py"
    script.write_text("seen = 0\n" + own_model + program + REPORT.format(folder=str(tmp_path)))
    assert torchrun(2, run_script, str(script)) is None
    told = [(tmp_path / str(rank)).read_text().rpartition(" ") for rank in range(2)]
    assert told[0][0] == told[1][0]
    if "shard" in program:
        assert sorted(int(seen) for _, _, seen in told) == [1000, 1000]
