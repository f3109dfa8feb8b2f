"""`examples/transformer` on the CPU: losses and decoded tokens agree with those of PyTorch."""

from __future__ import annotations

import re
from typing import Any

import pytest
from typer.testing import CliRunner

torch: Any = pytest.importorskip("torch")

from examples.transformer.__main__ import app  # noqa: E402 - without PyTorch it is not importable
from examples.transformer.comparing import OURS, STOCK, Settings, compare  # noqa: E402
from examples.transformer.corpus import SHARES, Corpus  # noqa: E402
from examples.transformer.decoding import Decoder  # noqa: E402
from examples.transformer.model import Config, Transformer  # noqa: E402

TINY = Config(dim=32, layers=1, heads=4, kv_heads=2, head_dim=8, hidden=48, vocab=64)


def settings(**changed: Any) -> Settings:
    given: dict[str, Any] = {
        **{"device": torch.device("cpu"), "dtype": torch.float32, "rate": 1e-2},
        **{"steps": 20, "batch": 4, "length": 32, "decode": 8},
    }
    return Settings(**given | changed)


@pytest.mark.parametrize(("name", "bound"), [("float32", 1e-4), ("bfloat16", 3e-2)])
def test_losses_agree(name: str, bound: float):
    """Losses with coordgraph's products and with PyTorch's differ by rounding errors only.

    In f32 the sums differ in the last bits; in bf16 every product is rounded to 8 bits.
    """
    advanced: list[int] = []
    results = compare(TINY, settings(dtype=getattr(torch, name)), advanced.append)
    stock, ours = (torch.tensor(results[x].training.losses) for x in (STOCK, OURS))
    assert stock.shape == (20,)
    assert sum(advanced) == 40
    assert (ours - stock).abs().max() <= bound
    assert ours[-3:].mean() < ours[:3].mean() - 0.2
    assert (results[OURS].trains or 0) > 0
    assert results[OURS].decodes > 0
    if name == "float32":
        assert torch.equal(results[OURS].text, results[STOCK].text)


def test_products_of_the_model_are_ours(monkeypatch: pytest.MonkeyPatch):
    """A forward pass calls `multiply` for three products of the layer, and for a last product.

    The fourth product of the layer is gated; its operator calls `multiply` in the backward pass
    only.
    """
    import codegen.torch.ops as ops

    called: list[str] = []
    run = ops.multiply

    def noted(*tensors: Any, **options: Any) -> Any:
        called.append("matmul")
        return run(*tensors, **options)

    monkeypatch.setattr(ops, "multiply", noted)
    compare(TINY, settings(steps=1, decode=2))
    forward, backward = 4, 10
    # Decoding runs three times. Each run processes the whole prompt, then one further token.
    decoding = 3 * 2 * forward
    assert len(called) == forward + backward + decoding


def test_a_cache_does_not_change_what_is_decoded():
    torch.manual_seed(0)
    model = Transformer(TINY).eval()
    prompt = Corpus(TINY.vocab, 0).batch(3, 5)
    text, _ = Decoder(model, prompt, 6).decode()
    assert torch.equal(text[:, :5], prompt)
    with torch.no_grad():
        assert torch.equal(model(text)[:, 4:-1].argmax(-1), text[:, 5:])


def test_the_corpus_is_repeatable():
    one, other = Corpus(50, 3), Corpus(50, 3)
    text = one.batch(8, 400)
    assert torch.equal(text, other.batch(8, 400))
    assert not torch.equal(text, one.batch(8, 400))
    likely = one.successors[text[:, :-1], 0] == text[:, 1:]
    assert likely.float().mean() == pytest.approx(SHARES[0], abs=0.05)


def test_command_line():
    sizes = "--dim 16 --layers 1 --heads 2 --kv-heads 1 --head-dim 8 --hidden 16 --vocab 32"
    given = f"--device cpu --steps 2 --batch 2 --length 8 --decode 3 --control {sizes}"
    done = CliRunner().invoke(app, given.split(), env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    losses = re.search(r"│ 0 +│ (\d\.\d+) +│ (\d\.\d+) +│ (\d\.\d+) ", done.output)
    assert losses
    assert losses[1] == losses[2]
    assert done.output.count("100.0%") >= 2
    assert done.output.count("not timed") == 3
    assert "pass --steps 11 or more" in done.output
    assert "nan" not in done.output
    assert CliRunner().invoke(app, ["--steps", "0"]).exit_code == 2
