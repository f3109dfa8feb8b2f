"""`python -m examples.transformer`: train and decode, and print losses and tokens per second."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from typer import Option

from examples.transformer.comparing import Settings, compare
from examples.transformer.model import Config
from examples.transformer.training import TURN

SMALL = Config(dim=64, layers=2, heads=4, kv_heads=2, head_dim=16, hidden=160, vocab=256)
"""The sizes of the model that runs on a CPU."""


app = typer.Typer()


@app.command()
def main(
    device: Annotated[str, Option(help="`cuda` or `cpu`; by default a GPU if there is one.")] = "",
    steps: Annotated[
        int | None, Option(min=1, help="Optimizer steps; by default 200 (CPU: 30).")
    ] = None,
    batch: Annotated[
        int | None, Option(min=1, help="Texts of a step; by default 8 (CPU: 4).")
    ] = None,
    length: Annotated[
        int | None, Option(min=1, help="Tokens of a text; by default 1024 (CPU: 64).")
    ] = None,
    rate: Annotated[
        float | None, Option(help="Learning rate; by default 5e-4 (CPU: 3e-3).")
    ] = None,
    decode: Annotated[
        int | None, Option(min=2, help="Tokens to decode; by default 256 (CPU: 32).")
    ] = None,
    dim: Annotated[int | None, Option(min=1, help="Extent of a token's vector.")] = None,
    layers: Annotated[int | None, Option(min=1, help="Layers (Qwen3-0.6B: 28).")] = None,
    heads: Annotated[int | None, Option(min=1, help="Heads of the queries.")] = None,
    kv_heads: Annotated[int | None, Option(min=1, help="Heads of the keys and values.")] = None,
    head_dim: Annotated[int | None, Option(min=1, help="Extent of a head.")] = None,
    hidden: Annotated[
        int | None, Option(min=1, help="Extent inside of the feed-forward layer.")
    ] = None,
    vocab: Annotated[
        int | None, Option(min=2, help="Different tokens (Qwen3-0.6B: 151936).")
    ] = None,
    compiled: Annotated[bool, Option("--compile", help="Train under torch.compile.")] = False,
    control: Annotated[
        bool, Option(help="Train a third model: PyTorch's, with rounded initial weights.")
    ] = False,
    seed: Annotated[int, Option(help="Seed of the weights and of the corpus.")] = 0,
) -> None:
    """Train and decode a small transformer with PyTorch's products and with codegen.torch's.

    Both models have the same initial weights and get the same batches. On a GPU the factors are
    bf16 (torch.autocast), and a CUDA graph decodes each token. By default the model on a GPU has
    the sizes of Qwen3-0.6B, with fewer layers and a smaller vocabulary; on a CPU it is tiny.
    """
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    gpu = where.type == "cuda"
    sizes = {
        **{"dim": dim, "layers": layers, "heads": heads, "kv_heads": kv_heads},
        **{"head_dim": head_dim, "hidden": hidden, "vocab": vocab},
    }
    given = {name: x for name, x in sizes.items() if x is not None}
    config = Config(**asdict(Config() if gpu else SMALL) | given)
    settings = Settings(
        device=where,
        steps=steps or (200 if gpu else 30),
        batch=batch or (8 if gpu else 4),
        length=length or (1024 if gpu else 64),
        rate=rate or (5e-4 if gpu else 3e-3),
        decode=decode or (256 if gpu else 32),
        dtype=torch.bfloat16 if gpu else torch.float32,
        compiled=compiled,
        control=control,
        seed=seed,
    )
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    errors = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=errors) as progress:
        task = progress.add_task("training", total=settings.steps * len(settings.names))
        results = compare(config, settings, lambda steps: progress.advance(task, steps))
    stock = results["PyTorch"]
    curve = Table("step", *results, title="mean loss of ten steps (nats per token)")
    for first in range(0, settings.steps, 10):
        means = (r.mean_loss(first, first + 10) for r in results.values())
        curve.add_row(str(first), *(f"{mean:.4f}" for mean in means))
    table = Table("products of", "trains (tokens/s)", "decodes (tokens/s)", "same tokens")
    for name, result in results.items():
        same = result.text.eq(stock.text).float().mean().item()
        trains = "not timed" if result.trains is None else f"{result.trains:,.0f}"
        table.add_row(name, trains, f"{result.decodes:,.0f}", f"{same:.1%}")
    if stock.trains is None:
        table.caption = f"Training is timed after {TURN} steps: pass --steps {TURN + 1} or more."
    console = Console()
    console.print(curve, table)


if __name__ == "__main__":
    app()
