"""Networks such as people train: what they are, and data from which they can learn."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from tenfold.board.demo_tasks import CLASSES, Lstm, resnet, tabular
from tenfold.models.networks import lenet5

WORDS, LENGTH = 256, 32


class Transformer(nn.Module):
    """An encoder over words that classifies texts, or a decoder that predicts the next word."""

    def __init__(self, *, width: int = 128, layers: int = 4, causal: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, WORDS if causal else CLASSES)
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH) if causal else None
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.encoder(self.words(words) + self.places, mask=self.mask)
        return self.out(x).transpose(1, 2) if self.mask is not None else self.out(x.mean(1))


@dataclass(frozen=True)
class Task:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    lr: float
    """For SGD with momentum 0.9, on all sides."""
    steps: int
    """Steps of a turn on 2 cores, a second or two."""
    of_words: bool = False
    next_word: bool = False

    def data(self, samples: int) -> tuple[Tensor, Tensor]:
        """Return inputs and labels that depend on them, the same every time."""
        generator = torch.Generator().manual_seed(0)
        if self.next_word:  # each word is a fixed function of the one before, now and then any word
            follows = torch.randperm(WORDS, generator=generator)
            words = [torch.randint(WORDS, (samples,), generator=generator)]
            for _ in range(LENGTH):
                noise = torch.rand(samples, generator=generator) < 0.1
                words.append(
                    torch.where(noise, torch.randint(WORDS, (samples,), generator=generator), follows[words[-1]])
                )
            text = torch.stack(words, 1)
            return text[:, :-1].contiguous(), text[:, 1:].contiguous()
        if self.of_words:
            x = torch.randint(WORDS, (samples, *self.shape), generator=generator)
            table = torch.randn(WORDS, CLASSES, generator=generator)
            return x, table[x].mean(1).argmax(1)
        y = torch.randint(CLASSES, (samples,), generator=generator)
        patterns = torch.randn(CLASSES, *self.shape, generator=generator)
        return 0.5 * patterns[y] + torch.randn(samples, *self.shape, generator=generator), y


TASKS = {
    "ResNet": Task(resnet, (3, 32, 32), 0.05, 8),
    "transformer": Task(Transformer, (LENGTH,), 0.05, 12, of_words=True),
    "LSTM": Task(Lstm, (20, 32), 0.1, 40),
    "tabular MLP": Task(tabular, (64,), 0.05, 600),
    "small GPT": Task(partial(Transformer, causal=True), (LENGTH,), 0.05, 12, of_words=True, next_word=True),
    "LeNet-5": Task(partial(lenet5, (1, 28, 28), CLASSES), (1, 28, 28), 0.02, 120),
}
