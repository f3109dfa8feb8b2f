"""`coordgraph run` computes batches, groups and lists of products, also with k = 0, correctly."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.cli.check import Check, Inputs, make_inputs, poisoned_output
from codegen.cli.options import Problem, Scheduling
from codegen.cli.products import Products
from codegen.cli.run import run
from codegen.cli.scheduled import scheduled
from tests.codegen.cli.commands import coordgraph

QUICK = ("--dtype", "f32", "-t", "cpu", "--tile", "16x16x16", "--repeat", "1", "--check")
BATCH = ("--m", "40", "--n", "33", "--k", "50", "--batches", "3")
ALONG_M = ("--groups", "m", "--extents", "20,0,5", "--n", "33", "--k", "50")
ALONG_K = ("--groups", "k", "--extents", "20,0,50", "--m", "40", "--n", "33")
LIST = ("--groups", "mnk", "--extents", "17x20x9,4x50x33")
TRANSPOSED = ("--transpose-a", "--transpose-b")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "products"),
    [
        ((*ALONG_K, *TRANSPOSED), [[40, 33, 20], [40, 33, 0], [40, 33, 50]]),
        pytest.param(ALONG_M, [[20, 33, 50], [0, 33, 50], [5, 33, 50]], marks=pytest.mark.slow),
        ((*LIST, *TRANSPOSED), [[17, 20, 9], [4, 50, 33]]),
        pytest.param((*BATCH, *TRANSPOSED), [[40, 33, 50]] * 3, marks=pytest.mark.slow),
        pytest.param(BATCH, [[40, 33, 50]] * 3, marks=pytest.mark.slow),
        pytest.param(ALONG_K, [[40, 33, 20], [40, 33, 0], [40, 33, 50]], marks=pytest.mark.slow),
        pytest.param(LIST, [[17, 20, 9], [4, 50, 33]], marks=pytest.mark.slow),
    ],
)
def test_many_products(words: tuple[str, ...], products: list[list[int]]):
    found = coordgraph("run", *words, *QUICK, "--beta", "0.5", "--json").json
    assert found["problem"]["products"] == products
    assert found["check"]["passed"]
    flops = sum(2 * m * n * k for m, n, k in products)
    assert found["flops_per_second"] * found["seconds"] == pytest.approx(flops)
    # A product with k = 0 takes one iteration too, in which its D is written.
    depth = sum(-(-m // 16) * -(-n // 16) * max(-(-k // 16), 1) for m, n, k in products)
    assert found["schedule"]["iterations"] == depth


EXAMPLES = [
    line.split()[1:]
    for line in (run.__doc__ or "").splitlines()
    if line.split()[:2] == ["coordgraph", "run"] and ("--batches" in line or "--groups" in line)
]


@pytest.mark.slow  # quick tests run these examples with the default tile, in test_help_examples.py
@pytest.mark.parametrize("words", EXAMPLES, ids=" ".join)
def test_the_examples_of_the_help(words: list[str]):
    assert coordgraph(*words, "--tile", "32x32x32", "--repeat", "1").code == 0


def test_there_is_an_example_of_every_kind():
    kinds = [words[words.index("--groups") + 1] for words in EXAMPLES if "--groups" in words]
    assert (len(EXAMPLES), sorted(kinds)) == (4, ["k", "m", "mnk"])


@pytest.mark.slow
def test_the_report_of_groups():
    done = coordgraph("run", *ALONG_K, *QUICK)
    assert done.code == 0
    assert "40 x 33 x 70, groups along k of 20, 0, 50, f32" in done.out
    assert "27 of the outputs of 3 products, 1 to 4 deep: 63 iterations" in done.out
    assert "passed" in done.out


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "interpreter"])
def test_no_depth(target: str):
    words = ("--m", "20", "--n", "9", "--k", "0", *QUICK, "-t", target)
    found = coordgraph("run", *words, "--beta", "2", "--json").json
    assert (found["check"]["passed"], found["check"]["error"]) == (True, 0)
    assert found["schedule"] is None
    assert coordgraph("run", *words).code == 0


@pytest.mark.parametrize("beta", ["0", "0.5"])
def test_a_plan_is_chosen_without_depth(beta: str):
    words = ("--m", "20", "--n", "9", "--k", "0", "--dtype", "f32", "-t", "cpu", "--repeat", "1")
    found = coordgraph("run", *words, "--plan", "auto", "--beta", beta, "--check", "--json").json
    assert (found["check"]["passed"], found["check"]["error"]) == (True, 0)
    assert found["plan"].endswith(" data-parallel")


@pytest.mark.parametrize(("n", "alignment"), [(64, 16), (63, 1)])
def test_a_plan_for_a_gpu_is_chosen_without_depth(n: int, alignment: int):
    """The kernel multiplies zeros whose rows are aligned along k, so n decides the alignment."""
    how = Scheduling(plan="auto", target="sm_90a")
    made = scheduled(Problem(64, n, 0), how, fixed=False)
    assert made.alignment == alignment
    assert made.compile("sm_90a").lowered


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--m", "8", "--n", "8"), "give --k too"),
        (("--groups", "m", "--n", "8", "--k", "8"), "only one of --groups and --extents is given"),
        (("--extents", "3,4", *BATCH[:6]), "only one of --groups and --extents is given"),
        ((*ALONG_M, "--m", "25"), "leave out --m"),
        ((*ALONG_M, "--batches", "2"), "give one of them"),
        (ALONG_M[:-2], "give --k too"),
        (("--groups", "mnk", "--extents", "3,4"), "'3' of a group along mnk is not m, n and k"),
        (
            ("--groups", "k", "--extents", "3,", *ALONG_K[4:]),
            "'' of a group along k is not a",
        ),
    ],
)
def test_sizes_that_do_not_go_together(words: tuple[str, ...], why: str):
    done = coordgraph("run", *words, *QUICK, "--json")
    assert done.code == 2
    assert why in done.json["error"]["message"]


def problem(*, groups: str = "", transposed: bool = False) -> Problem:
    m, n, k = (None if axis in groups else 8 + i for i, axis in enumerate("mnk"))
    return Problem(m, n, k, "f32", None, transposed, transposed, groups=groups)


def multiplied(products: Products) -> tuple[np.ndarray, Inputs]:
    """(the expected D = A·B + C, computed by NumPy; the inputs)."""
    inputs = make_inputs(products.problem, 1.0, 1.0, 0, products)
    d = poisoned_output(products, "f32")
    for a, b, c, out in products.matrices(inputs.a, inputs.b, inputs.c, d):
        assert (a.shape[0], b.shape[1]) == out.shape
        out[...] = a @ b + c
    return d, inputs


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("groups", "batches", "extents"),
    [
        ("", None, None),
        ("", 3, None),
        ("m", None, "5,0,7"),
        ("k", None, "5,0,7"),
        ("mnk", None, "5x6x7,3x9x4"),
    ],
)
def test_the_check_sees_every_product(
    groups: str, batches: int | None, extents: str | None, transposed: bool
):
    one = problem(groups=groups, transposed=transposed)
    products = Products.of(one, batches, extents)
    d, inputs = multiplied(products)
    steps: list[float] = []
    whole = Check.of(d, inputs, products.problem, products, steps.append)
    assert whole.passed
    assert steps == sorted(steps)
    assert steps[-1] == 1
    for place, shape in enumerate(products.shapes):
        if not shape.m:
            continue
        matrices = list(products.matrices(inputs.a, inputs.b, inputs.c, d))[place]
        kept = matrices.d[-1, -1].copy()
        matrices.d[-1, -1] += 1
        assert Check.of(d, inputs, products.problem, products).wrong == 1
        matrices.d[-1, -1] = poisoned_output(products, "f32").flat[0]
        assert Check.of(d, inputs, products.problem, products).unwritten == 1
        matrices.d[-1, -1] = kept


def test_explain_shows_the_order_of_an_invariant_product():
    words = (
        "explain",
        "--m",
        "16",
        "--n",
        "512",
        "--k",
        "7168",
        "--transpose-b",
        "--device",
        "H200",
    )
    done = coordgraph(*words, "--invariant")
    assert "order    2 segments of k with the borders 0, 3584, 7168" in done.out
    assert "order    " not in coordgraph(*words).out
