"""Train on sequences of different lengths: `collate` pads each batch to its longest sequence.

Samples are dicts of lists, as in Hugging Face data sets. Expected output (the last digits depend on the
processor):

    1 worker: accuracy 0.9
    2 workers: accuracy 0.9
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import tenfold

generator = torch.Generator().manual_seed(0)
lengths = torch.randint(3, 12, (800,), generator=generator).tolist()
texts = [torch.randint(1, 20, (length,), generator=generator).tolist() for length in lengths]
samples = [
    {"input_ids": tokens, "label": int(sum(token > 10 for token in tokens) > len(tokens) / 2)} for tokens in texts
]


def collate(samples: list[dict]) -> dict[str, Tensor]:
    tokens = pad_sequence([torch.tensor(sample["input_ids"]) for sample in samples], batch_first=True)
    return {"input_ids": tokens, "mask": tokens > 0, "label": torch.tensor([sample["label"] for sample in samples])}


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8, padding_idx=0)
        self.last = nn.Linear(8, 2)

    def forward(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        return self.last(self.embed(input_ids).sum(1) / mask.sum(1, keepdim=True))


options = {"model": Network, "data": samples, "collate": collate, "optimizer": "adam", "lr": 0.05, "epochs": 6}
print(f"1 worker: accuracy {tenfold.train(**options).accuracy:.2f}")
print(f"2 workers: accuracy {tenfold.train(**options, workers=2).accuracy:.2f}")
