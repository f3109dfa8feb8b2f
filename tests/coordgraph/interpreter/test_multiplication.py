"""`matrix_product` equals numpy's product, and splits it so that BLAS starts no threads."""

import numpy as np
import pytest

from coordgraph.interpreter import multiplication
from coordgraph.interpreter.multiplication import MOST_WORK, matrix_product

SHAPES = ((128, 64, 128), (130, 64, 256), (1, 5, 7), (0, 4, 4), (4, 0, 4), (4, 4, 0), (9, 4000, 9))


@pytest.mark.parametrize("kind", ["f4", "f8", "i4"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_product_is_numpys(shape: tuple[int, int, int], kind: str):
    m, k, n = shape
    random = np.random.default_rng(1)
    a, b = (random.integers(-3, 4, s).astype(kind) for s in ((m, k), (k, n)))
    found = matrix_product(a, b)
    assert found.dtype == a.dtype
    np.testing.assert_array_equal(found, a @ b)


def test_a_tile_is_multiplied_in_bands_of_rows(monkeypatch: pytest.MonkeyPatch):
    bands: list[int] = []
    joined = np.concatenate

    def concatenate(parts: list[np.ndarray]) -> np.ndarray:
        bands.extend(len(part) for part in parts)
        return joined(parts)

    monkeypatch.setattr(multiplication.np, "concatenate", concatenate)
    a, b = np.ones((130, 64), "f4"), np.ones((64, 128), "f4")
    matrix_product(a, b)
    assert sum(bands) == 130
    assert max(bands) * 64 * 128 <= MOST_WORK


def test_shapes_that_do_not_fit_are_refused():
    for rows in (128, 2):
        with pytest.raises(ValueError, match="mismatch"):
            matrix_product(np.ones((rows, 64)), np.ones((32, 128)))
