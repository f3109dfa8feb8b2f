"""`Corpus`: a random language without end, whose next tokens a model can learn."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["SHARES", "Corpus"]

SHARES = (0.7, 0.1, 0.1, 0.1)
"""Probabilities of the tokens that may follow a token; their entropy is 0.94, the least loss."""


class Corpus:
    """A Markov chain: each token has four random successors, the first of them with 70 %.

    Args:
        vocab: number of different tokens.
        seed: of the successors, and of all batches.
    """

    def __init__(self, vocab: int, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.vocab = vocab
        self.successors = torch.randint(vocab, (vocab, len(SHARES)), generator=self.random)

    def batch(self, count: int, length: int) -> Tensor:
        """The next texts: i64 (count, length)."""
        tokens = torch.empty(count, length, dtype=torch.int64)
        tokens[:, 0] = torch.randint(self.vocab, (count,), generator=self.random)
        shares = torch.tensor(SHARES).expand(count, -1)
        picks = torch.multinomial(shares, length, replacement=True, generator=self.random)
        for place in range(1, length):
            tokens[:, place] = self.successors[tokens[:, place - 1], picks[:, place]]
        return tokens
