"""Programs of others on the tenfold backend: torch's own tests of backends, and the real training libraries."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import environment, free_address

SUITE = Path(__file__).parents[1] / "support" / "torch_suite.py"
SLICE = [
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_DistributedDataParallel_requires_grad",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_all_gather_coalesced_complex",
    "test_all_gather_coalesced_with_empty",
    "test_all_reduce_coalesced_max",
    "test_all_reduce_sum_complex",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_ddp_create_graph",
    "test_destroy_full_group",
    "test_get_future",
    "test_monitored_barrier_gloo_subgroup",
    "test_scatter_object_list",
    "test_send_recv_any_source",
    "test_sparse_all_reduce_sum",
    "test_static_graph_api_cpu",
]
LINE = """
import tenfold, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(256, 8)
y = x.sum(1, keepdim=True)

def show(weight):
    result = f"RESULT {dist.get_backend()} {dist.get_world_size()} {weight.detach().sum().item()}\\n"
    print(result, end="", flush=True)  # as one text, which the other rank's does not interrupt
"""
PROGRAMS = {
    "lightning": """
import lightning
from lightning.pytorch.strategies import DDPStrategy

class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, index):
        loss = (self.layer(batch[0]) - batch[1]).pow(2).mean()
        self.log("loss", loss, sync_dist=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

model = Line()
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
strategy = DDPStrategy(process_group_backend="tenfold")
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=3, **quiet)
trainer.fit(model, DataLoader(TensorDataset(x, y), batch_size=16))
show(model.layer.weight)
""",
    "accelerate": """
from accelerate import Accelerator

dist.init_process_group("tenfold")
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, data = accelerator.prepare(model, optimizer, DataLoader(TensorDataset(x, y), batch_size=16))
for _ in range(3):
    for inputs, targets in data:
        optimizer.zero_grad()
        accelerator.backward((model(inputs) - targets).pow(2).mean())
        optimizer.step()
assert accelerator.gather(torch.ones(1)).sum() == 2
show(accelerator.unwrap_model(model).weight)
accelerator.end_training()
""",
    "transformers": """
from transformers import Trainer, TrainingArguments

class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": (out - labels).pow(2).mean(), "logits": out}

dist.init_process_group("tenfold")
quiet = dict(report_to=[], save_strategy="no", disable_tqdm=True)
chosen = dict(num_train_epochs=5, per_device_train_batch_size=16, learning_rate=0.1, lr_scheduler_type="constant")
data = [{"x": one, "labels": label} for one, label in zip(x, y)]
trainer = Trainer(Line(), TrainingArguments("out", use_cpu=True, optim="sgd", **quiet, **chosen), train_dataset=data)
trainer.train()
show(trainer.model.layer.weight)
""",
}


@pytest.mark.timeout(150)
@pytest.mark.parametrize("library", PROGRAMS)
def test_a_library_trains_on_it(library: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    (tmp_path / "program.py").write_text(LINE + PROGRAMS[library])
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--master-port", str(free_address()[1]), "program.py"]
    done = subprocess.run(
        torchrun, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=140, check=False
    )
    results = re.findall(r"RESULT tenfold 2 ([0-9.]+)", done.stdout)
    assert done.returncode == 0, done.stderr[-5000:]
    assert len(results) == 2
    assert len(set(results)) == 1
    assert abs(float(results[0]) - 8) < 1


@pytest.mark.timeout(110)
def test_a_part_of_the_tests_that_torch_has_for_backends() -> None:
    if importlib.util.find_spec("expecttest") is None:
        pytest.skip("torch's tests need expecttest")
    done = subprocess.run(
        [sys.executable, str(SUITE), *SLICE],
        env=environment(WORLD_SIZE="3", SUITE_BACKEND="tenfold"),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    ended = dict(re.findall(r"^(test_\w+) (passed|skipped|FAILED)", done.stdout, re.MULTILINE))
    assert set(ended) == set(SLICE), done.stderr[-3000:]
    assert set(ended.values()) == {"passed"}, done.stdout[-5000:]
