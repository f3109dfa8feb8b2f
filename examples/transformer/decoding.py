"""`Decoder`: greedy decoding with a static cache, as one CUDA graph per token on a GPU."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from examples.transformer.model import Cache, Transformer
from examples.transformer.training import synchronize

__all__ = ["Decoder"]


class Decoder:
    """Decodes texts of a fixed length from prompts of a fixed shape.

    Args:
        model: the model, whose weights are used in the type that they have.
        prompt: i64 (batch, tokens), the first tokens of the texts.
        count: number of tokens to add.
    """

    def __init__(self, model: Transformer, prompt: Tensor, count: int) -> None:
        self.model, self.prompt, self.count = model, prompt, count
        batch, length = prompt.shape
        weight = model.embedding.weight
        self.cache = Cache.empty(model.config, batch, length + count, weight)
        self.tokens = torch.zeros(batch, 1, dtype=torch.int64, device=prompt.device)
        self.text = torch.zeros(batch, length + count, dtype=torch.int64, device=prompt.device)
        self.graph: Any = None

    @torch.no_grad()
    def decode(self) -> tuple[Tensor, float]:
        """Decode the texts; return them as i64 (batch, tokens), and the tokens per second.

        The time to read the prompt does not count.
        """
        self._read_prompt()
        if self.prompt.is_cuda and self.graph is None:
            self._capture()
            self._read_prompt()
        synchronize(self.prompt.device)
        begin = perf_counter()
        for _ in range(self.count - 1):
            self.graph.replay() if self.graph else self._next()
        synchronize(self.prompt.device)
        seconds = perf_counter() - begin
        return self.text.clone(), self.prompt.shape[0] * (self.count - 1) / seconds

    def _read_prompt(self) -> None:
        """Run the model on the prompt, which fills the cache, and choose the first new token."""
        length = self.prompt.shape[1]
        self.cache.positions = torch.arange(length, device=self.prompt.device)
        scores = self.model(self.prompt, self.cache)
        self.tokens.copy_(scores[:, -1:].argmax(-1))
        self.text[:, :length] = self.prompt
        self.text[:, length : length + 1] = self.tokens
        if self.graph is None:
            self.position = torch.tensor([length], device=self.prompt.device)
        self.position.fill_(length)
        self.cache.positions = self.position

    def _next(self) -> None:
        """Choose the next token. All state is in tensors, so that a CUDA graph can be replayed."""
        scores = self.model(self.tokens, self.cache)
        self.tokens.copy_(scores.argmax(-1))
        self.position += 1
        self.text.index_copy_(1, self.position, self.tokens)

    def _capture(self) -> None:
        """Record `_next` as a CUDA graph, after a run that compiles and loads its kernels."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._next()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._next()
