"""`Corpus`: an endless random text for training; a model can learn to predict its next tokens."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["SHARES", "Corpus"]

SHARES = (0.7, 0.1, 0.1, 0.1)
"""Probabilities of the four tokens that may follow a token. Their entropy, 0.94 nats, is the least
mean loss that a model can reach."""


class Corpus:
    """A Markov chain: each token has four random successors, with the probabilities `SHARES`.

    Args:
        vocab: number of different tokens.
        seed: seed of the random generator that draws the successors and the batches.
    """

    def __init__(self, vocab: int, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.vocab = vocab
        self.successors = torch.randint(vocab, (vocab, len(SHARES)), generator=self.random)

    def batch(self, count: int, length: int) -> Tensor:
        """Draw the next `count` texts of `length` tokens: i64 (count, length)."""
        tokens = torch.empty(count, length, dtype=torch.int64)
        tokens[:, 0] = torch.randint(self.vocab, (count,), generator=self.random)
        shares = torch.tensor(SHARES).expand(count, -1)
        picks = torch.multinomial(shares, length, replacement=True, generator=self.random)
        for place in range(1, length):
            tokens[:, place] = self.successors[tokens[:, place - 1], picks[:, place]]
        return tokens
