"""`compare`: trains and decodes one model with PyTorch's products, and with `codegen.torch`'s."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

import codegen.torch as cgt
from examples.transformer.corpus import Corpus
from examples.transformer.decoding import Decoder
from examples.transformer.model import Config, Layers, Transformer
from examples.transformer.training import Training, train

__all__ = ["CONTROL", "OURS", "STOCK", "Comparison", "Settings", "compare"]

STOCK, OURS, CONTROL = "PyTorch", "codegen.torch", "PyTorch, rounded weights"
ROUNDS = 3
"""Number of times that each model decodes the same prompts; the median of the speeds is reported.
"""


@dataclass(frozen=True)
class Settings:
    """Options of `compare`.

    Args:
        device: the device on which the models run.
        dtype: the element type of the products.
        steps: number of optimizer steps.
        batch, length: number of texts of a step, and of predicted tokens of a text.
        rate: learning rate.
        decode: number of tokens to decode, from prompts of 16 tokens.
        compiled: whether to train the models under `torch.compile`.
        control: whether to train a third model, with PyTorch's products, whose initial weights are
            rounded to bf16. The difference of its losses from the first model's shows how much
            rounding alone changes the losses.
        seed: the seed of the initial weights and of the corpus.
    """

    device: torch.device
    dtype: torch.dtype
    steps: int
    batch: int
    length: int
    rate: float
    decode: int
    compiled: bool = False
    control: bool = False
    seed: int = 0

    @property
    def names(self) -> list[str]:
        """The names of the models that `compare` trains and decodes."""
        return [STOCK, OURS, *([CONTROL] * self.control)]


@dataclass
class Comparison:
    """The results of one model.

    Args:
        training: the losses and speeds of the model's training.
        text: i64 (batch, tokens), the decoded texts with their prompts.
        decodes: speed of decoding in tokens per second, summed over the batch.
    """

    training: Training
    text: Tensor
    decodes: float

    @property
    def trains(self) -> float | None:
        """Speed of training in tokens per second; None if it was not measured: see `Training`."""
        return self.training.speed

    def mean_loss(self, first: int, end: int) -> float:
        """The mean loss of the training steps from `first` to `end` - 1."""
        return fmean(self.training.losses[first:end])


def _models(config: Config, settings: Settings) -> dict[str, Transformer]:
    """The models by name. All have equal initial weights; the model `CONTROL` rounds them."""
    torch.manual_seed(settings.seed)
    stock = Transformer(config)
    models = {STOCK: stock, OURS: Transformer(config, Layers(cgt.Linear, cgt.SwiGLU))}
    models[OURS].load_state_dict(stock.state_dict())
    if settings.control:
        models[CONTROL] = Transformer(config)
        rounded = {name: x.bfloat16().float() for name, x in stock.state_dict().items()}
        models[CONTROL].load_state_dict(rounded)
    return {name: model.to(settings.device) for name, model in models.items()}


def compare(
    config: Config, settings: Settings, advance: Callable[[int], None] = lambda steps: None
) -> dict[str, Comparison]:
    """Train the models, then decode the same prompts with each of them.

    Args:
        config: the sizes of the models.
        settings: device, element type, numbers of steps and tokens, and other options.
        advance: called after every few training steps of a model, with the number of these steps.

    Returns:
        The results by name of the model: `STOCK` (PyTorch's products), `OURS` (codegen.torch's)
        and, if `settings.control` is True, `CONTROL` (PyTorch's, rounded initial weights).
    """
    models, corpus = _models(config, settings), Corpus(config.vocab, settings.seed)
    trained: dict[str, Any] = dict(models)
    if settings.compiled:
        trained = {name: torch.compile(model) for name, model in models.items()}
    trainings = train(
        trained,
        corpus,
        steps=settings.steps,
        batch=settings.batch,
        length=settings.length,
        rate=settings.rate,
        dtype=settings.dtype,
        device=settings.device,
        advance=advance,
    )
    prompt = corpus.batch(settings.batch, 16).to(settings.device)
    decoders = {
        name: Decoder(model.to(settings.dtype).eval(), prompt, settings.decode)
        for name, model in models.items()
    }
    rounds = [{name: decoder.decode() for name, decoder in decoders.items()} for _ in range(ROUNDS)]
    return {
        name: Comparison(trainings[name], rounds[0][name][0], median(r[name][1] for r in rounds))
        for name in models
    }
