"""`train`: several models learn from the same batches, in turn, and are timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.transformer.corpus import Corpus

__all__ = ["TURN", "Training", "synchronize", "train"]

TURN = 10
"""Number of consecutive training steps of one model, before the next model is trained."""


@dataclass
class Training:
    """The results of training one model.

    Args:
        losses: mean cross entropy of each step, in nats per token.
        speeds: tokens per second, one number for every `TURN` consecutive steps of the model. The
            first `TURN` steps, in which kernels are compiled, are left out.
    """

    losses: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)

    @property
    def speed(self) -> float | None:
        """The median of `speeds`, in tokens per second; None if there were at most `TURN` steps."""
        return median(self.speeds) if self.speeds else None


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all work, if it is a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def train(
    models: Mapping[str, Callable[..., Any]],
    corpus: Corpus,
    *,
    steps: int,
    batch: int,
    length: int,
    rate: float,
    dtype: torch.dtype,
    device: torch.device,
    advance: Callable[[int], None] = lambda steps: None,
) -> dict[str, Training]:
    """Train models by AdamW, each from the weights that it has, all with the same batches.

    Args:
        models: the models, or what `torch.compile` made of them, by name.
        corpus: makes the batches.
        steps: number of optimizer steps.
        batch, length: number of texts of a step, and of predicted tokens of a text.
        rate: learning rate, which the first tenth of the steps increases from 0.
        dtype: type to which `torch.autocast` casts; with float32 autocast is not used.
        device: the device of the models.
        advance: called after every `TURN` steps of a model, with the number of these steps.
    """
    options: dict[str, Any] = {"lr": rate, "betas": (0.9, 0.95), "weight_decay": 0.1}
    optimizers = {
        name: torch.optim.AdamW(model.parameters(), **options) for name, model in models.items()
    }
    results = {name: Training() for name in models}
    for first in range(0, steps, TURN):
        texts = [corpus.batch(batch, length + 1).to(device) for _ in range(first, steps)[:TURN]]
        for name, model in models.items():
            synchronize(device)
            begin, losses = perf_counter(), list[Tensor]()
            for number, text in enumerate(texts, first):
                for group in optimizers[name].param_groups:
                    group["lr"] = rate * min(1.0, (number + 1) / max(1, steps // 10))
                losses.append(_step(model, optimizers[name], text, dtype))
            # `tolist` waits for the GPU, so the time that is taken next includes all steps.
            results[name].losses += torch.stack(losses).tolist()
            if first:
                tokens = len(texts) * batch * length
                results[name].speeds.append(tokens / (perf_counter() - begin))
            advance(len(texts))
    return results


def _step(
    model: Callable[..., Any], optimizer: torch.optim.Optimizer, text: Tensor, dtype: torch.dtype
) -> Tensor:
    """One optimizer step; return the loss."""
    cast = nullcontext() if dtype == torch.float32 else torch.autocast(text.device.type, dtype)
    with cast:
        scores = model(text[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1).float(), text[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()
