"""`matrix_product` equals numpy's product, and splits it so that BLAS starts no threads."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from coordgraph.interpreter import multiplication
from coordgraph.interpreter.multiplication import MOST_WORK, matrix_product

ROOT = Path(__file__).resolve().parents[3]
SHAPES = (
    *((128, 64, 128), (130, 64, 256), (1, 5, 7), (0, 4, 4), (4, 0, 4), (4, 4, 0)),
    *((9, 4000, 9), (448, 448, 129), (70, 5000, 70)),
)


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


def test_a_product_of_wide_matrices_wakes_no_thread():
    """The reference of a check multiplies whole matrices; a woken thread spins for 0.1 s."""
    script = (
        "import time\nimport numpy as np\n"
        "from coordgraph.interpreter.multiplication import matrix_product\n"
        "a, b = np.ones((448, 448), 'f4'), np.ones((448, 129), 'f4')\n"
        "time.sleep(0.3)  # the threads that NumPy has started fall asleep\n"
        "before = time.process_time() - time.thread_time()\n"
        "matrix_product(a, b)\n"
        "time.sleep(0.1)\n"
        "print(time.process_time() - time.thread_time() - before)\n"
    )
    command = [sys.executable, "-c", script]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.03


def test_shapes_that_do_not_fit_are_refused():
    for rows in (128, 2):
        with pytest.raises(ValueError, match="mismatch"):
            matrix_product(np.ones((rows, 64)), np.ones((32, 128)))
