"""`examples/transformer` on the GPU: 200 steps in bf16, then decoding by CUDA graphs."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

SIZES = {"dim": 512, "layers": 4, "heads": 8, "kv_heads": 4, "head_dim": 64, "hidden": 1536}


# PyTorch warns that the decoder first runs on another stream than later.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
def test_losses_agree_and_both_decode():
    """Losses with coordgraph are close to PyTorch's, and both decode mostly the same tokens.

    The limits come from a second run of PyTorch, the control, which begins with weights that are
    rounded to bf16. If losses of the control differ from PyTorch's by x, losses with coordgraph may
    differ by 3·x + 0.02. At least 80 % of the tokens must agree, or as many as those of the
    control: one token that differs by chance changes all that follow it.
    """
    from examples.transformer.comparing import CONTROL, OURS, STOCK, Settings, compare
    from examples.transformer.model import Config

    settings = Settings(
        **{"device": torch.device("cuda"), "dtype": torch.bfloat16, "rate": 1e-3},
        **{"steps": 200, "batch": 8, "length": 512, "decode": 64, "control": True},
    )
    results = compare(Config(vocab=2048, **SIZES), settings)
    losses = {name: torch.tensor(r.training.losses) for name, r in results.items()}
    curves = {name: x.unflatten(0, (-1, 10)).mean(1) for name, x in losses.items()}
    noise = (curves[CONTROL] - curves[STOCK]).abs().max()
    assert (curves[OURS] - curves[STOCK]).abs().max() <= 3 * noise + 0.02
    assert curves[OURS][-1] < curves[OURS][0] - 3
    agree = dict[str, float]()
    for name, result in results.items():
        agree[name] = same = result.text.eq(results[STOCK].text).float().mean().item()
        print(f"{name}: loss {curves[name][-1]:.4f}, {result.trains:,.0f} tokens/s in training,")
        print(f"  {result.decodes:,.0f} tokens/s in decoding, {same:.1%} of the tokens agree")
    assert agree[OURS] >= min(0.8, agree[CONTROL])
