"""Compare a random call of coordgraph with PyTorch's: results, types, strides and gradients."""

from __future__ import annotations

import re
import traceback
import warnings
from contextlib import ExitStack
from enum import StrEnum
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import codegen.torch as cgt
from coordgraph import CoordGraphError
from tests.fuzz_torch.cases import Case
from tests.fuzz_torch.tensors import DTYPES
from tests.fuzz_torch.transforms import transformed

__all__ = ["FINDINGS", "Outcome", "Result", "attempt"]


class Outcome(StrEnum):
    """What a comparison of a call of `codegen.torch` with the same call of PyTorch found."""

    SAME = "the same result and gradients"
    BOTH_REFUSED = "both refuse"
    REFUSED = "refused, as documented, while PyTorch computes it"
    ACCEPTED = "computed, as documented, while PyTorch refuses it"
    UNCOMPARED = "not compared, because PyTorch cannot compute it"
    WRONG = "another result"
    GRADIENT = "another gradient"
    UNLIKE = "another shape, type, device, layout or requires_grad"
    FOREIGN = "an exception that is not the library's"
    WORDLESS = "refused without advice"
    TOO_STRICT = "refused, while PyTorch computes it"
    TOO_LAX = "computed, while PyTorch refuses it"
    CHANGED = "an argument was changed"
    BROKEN = "an exception in the fuzzer"


FINDINGS = tuple(Outcome)[5:]
"""The outcomes of a comparison that show a defect of coordgraph or of the fuzzer."""
ADVICE = re.compile(r"\b(use|pass|convert|move|leave|call|make|give|join|compute|multiply)\b")
"""Each error message has one of these words, because the message must say what to do instead."""


DEFECT = "has_fw_view() INTERNAL ASSERT FAILED"
"""Text of an error of PyTorch's forward mode, for some views of tensors that are lazily negated. It
is raised by a view before or after a call of this library."""
NO_FLOAT8 = re.compile("not implemented for 'Float8|Promotion for Float8 Types is not supported")
"""Text in the error of a PyTorch function that is not implemented for float8, such as a sum."""


class Result(NamedTuple):
    """The outcome of one compared call, with details for the fuzzer's report."""

    outcome: Outcome
    detail: str = ""


class Ran(NamedTuple):
    """What one call returned or raised.

    Args:
        d: the result, or None.
        gradients: the gradients of the leaves that require one; None if the result has no gradient.
        error: the exception that the call raised, or None.
        changed: whether the call changed one of its arguments.
    """

    d: Tensor | None
    gradients: tuple[Tensor, ...] | None = None
    error: Exception | None = None
    changed: bool = False


class _Arguments(NamedTuple):
    leaves: list[Tensor]
    views: list[Tensor]
    options: dict[str, Any]


def attempt(case: Case, device: str = "cpu") -> Result:
    """Call coordgraph and PyTorch; compare their results with each other and with float64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # No operator has to be called in a loop by vmap itself, which is slow.
        slow = "There is a performance drop .* coordgraph::"
        warnings.filterwarnings("error", slow, UserWarning)
        if case.elsewhere:
            return _refused(_run(case, device, ours=True))
        theirs, ours = _run(case, device, ours=False), _run(case, device, ours=True)
        if ours.changed:
            return Result(Outcome.CHANGED)
        if any(DEFECT in str(x.error) for x in (ours, theirs)):
            return Result(Outcome.BOTH_REFUSED, DEFECT)
        if ours.error is not None or theirs.error is not None:
            return _compare_errors(case, device, ours, theirs)
        return _compare(case, device, ours, theirs)


def _refused(ours: Ran) -> Result:
    """Judge a call with tensors on several devices, which must be refused with advice."""
    if ours.error is None:
        return Result(Outcome.TOO_LAX, "tensors on several devices")
    if not isinstance(ours.error, CoordGraphError):
        return Result(Outcome.FOREIGN, "".join(traceback.format_exception(ours.error)[-6:]))
    advised = ADVICE.search(str(ours.error))
    return Result(Outcome.BOTH_REFUSED if advised else Outcome.WORDLESS, str(ours.error))


def _compare_errors(case: Case, device: str, ours: Ran, theirs: Ran) -> Result:
    if ours.error is None:
        # PyTorch refuses some calls that coordgraph accepts: grouped products with strides that
        # are no multiples of 16 bytes, and `linear` of a vector weight with a bias.
        vector = case.name == "linear" and len(case.tensors[1].shape) == 1
        # Under autocast, coordgraph casts float8 before it computes. PyTorch's run must add float8,
        # which PyTorch cannot: gradients of the calls in a loop over groups or over the axis of
        # vmap, and the bias of `linear` in vjp.
        uncast = case.way.autocast and NO_FLOAT8.search(str(theirs.error))
        if case.name == "grouped_mm" or vector or uncast:
            return _compare(case, device, ours, None)
        return Result(Outcome.TOO_LAX, f"PyTorch: {theirs.error!r}")
    if not isinstance(ours.error, CoordGraphError):
        # `_run` does not call PyTorch's product if it would end the process. So an error that
        # PyTorch raises in coordgraph's run, outside of coordgraph's functions, is no finding.
        # Nor is the error of a view that repeats elements of float8, whose gradient PyTorch would
        # have to add: its run ends before that, since PyTorch refuses the product.
        repeats = any(x.gradient and x.kind in ("expanded", "windows") for x in case.tensors)
        unadded = theirs.error and repeats and NO_FLOAT8.search(str(ours.error))
        skipped = (_asserts(case, device) or unadded) and not _passes_library(ours.error)
        if type(ours.error) is type(theirs.error) or skipped:
            return Result(Outcome.BOTH_REFUSED)
        text = "".join(traceback.format_exception(ours.error)[-6:])
        return Result(Outcome.FOREIGN, f"{text}\nPyTorch: {theirs.error!r}")
    if not ADVICE.search(str(ours.error)):
        return Result(Outcome.WORDLESS, str(ours.error))
    if theirs.error is not None:
        return Result(Outcome.BOTH_REFUSED)
    # If beta is 0, torch.addmm on GPUs does not read `input`, and accepts any shape of it.
    unread = device == "cuda" and case.name == "addmm" and case.options.get("beta") == 0
    # PyTorch accepts some calls with unlike types if a tensor has no elements.
    unlike = len({x.dtype for x in case.tensors}) > 1
    no_tangent = case.name == "cross_entropy" and case.way.transform == "jvp"
    known = (
        no_tangent
        or any(x.dtype not in DTYPES or x.kind == "sparse" for x in case.tensors)
        or (
            device == "cuda"
            and any(x.dtype in (torch.float32, torch.float64) for x in case.tensors)
        )
    )
    return Result(
        Outcome.REFUSED if known or unlike or unread else Outcome.TOO_STRICT, str(ours.error)
    )


def _passes_library(error: Exception) -> bool:
    """Whether the traceback of `error` contains a function of coordgraph.

    The method of `use_kernels` that passes calls on to PyTorch does not count.
    """
    root = str(Path(cgt.__file__).parents[1])
    frames = [x for x in traceback.extract_tb(error.__traceback__) if x.filename.startswith(root)]
    return any(x.name != cgt.use_kernels.__torch_function__.__name__ for x in frames)


def _arguments(case: Case, device: str) -> _Arguments:
    leaves = [x.leaf(device) for x in case.tensors]
    views = [x.view(leaf) for x, leaf in zip(case.tensors, leaves, strict=True)]
    options = dict(case.options)
    if case.ends is not None:
        options["offs"] = torch.tensor(case.ends, dtype=torch.int32, device=device)
    if case.targets is not None:
        rows = case.tensors[0].shape[:-1]
        targets = torch.tensor(case.targets, dtype=torch.int64, device=device)
        fits = prod(rows) == len(case.targets)
        options["targets"] = targets.reshape(rows) if fits else targets
    return _Arguments(leaves, views, options)


def _run(case: Case, device: str, *, ours: bool) -> Ran:
    try:
        given = _arguments(case, device)
    except RuntimeError as error:
        return Ran(None, error=error)  # PyTorch cannot make one of the argument tensors
    if not ours and _asserts(case, device):
        return Ran(None, error=RuntimeError("PyTorch would end the process"))
    before = [leaf.detach().clone() for leaf in given.leaves]
    function = case.ours if ours and not case.way.kernels else case.theirs
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(case.way.recorded))
        if case.way.autocast:
            stack.enter_context(torch.autocast(device, case.way.autocast))
        if ours and case.way.kernels:
            stack.enter_context(cgt.use_kernels(DTYPES, (device,)))
        try:
            if case.way.out:
                shape = _result_shape(case, device)
                kind = given.views[-1].dtype
                given.options["out"] = torch.full(shape, 7, dtype=kind, device=device)
            d = _call(case, function, given.views, given.options, peer=not ours)
            if case.way.out and d is not given.options["out"]:
                return Ran(None, error=AssertionError("the result is not `out`"))
        except Exception as error:
            return Ran(None, error=error)
    changed = not case.elsewhere and any(
        not torch.equal(*(z.detach().reshape(-1).view(torch.uint8) for z in (x, y)))
        for x, y in zip(given.leaves, before, strict=True)
    )
    try:
        return Ran(d.detach(), _gradients(case, d, given.leaves), None, changed)
    except Exception as error:
        return Ran(None, error=error)


def _call(
    case: Case, function: Any, views: list[Tensor], options: dict[str, Any], *, peer: bool
) -> Tensor:
    """Call a function, PyTorch's if `peer` is true, in the transform of the case.

    Where kernels replace functions of PyTorch, calls with other types are left to PyTorch.
    """
    loop = peer and not _left_to_pytorch(case)
    seed = case.tensors[0].seed
    return transformed(case.way.transform, function, views, seed, loop=loop, **options)


def _left_to_pytorch(case: Case) -> bool:
    """Whether kernels replace functions of PyTorch, but leave tensors of these types to PyTorch."""
    types = {x.dtype for x in case.tensors}
    ours = len(types) == 1 and types < {*DTYPES} and all(x.kind != "sparse" for x in case.tensors)
    return case.way.kernels and not ours


def _uninitialized(case: Case) -> bool:
    """Whether the result has elements that PyTorch's `grouped_mm` does not write.

    These are the rows or columns that belong to no group. PyTorch refuses unlike types only if
    there is a group, so without groups no element of the result is written.
    """
    if case.name != "grouped_mm" or case.ends is None or not _left_to_pytorch(case):
        return False
    a, b = (x.shape for x in case.tensors)
    divided = a[0] if len(a) < len(b) else b[-1]
    return len(a) != len(b) and (case.ends or (0,))[-1] < divided


def _asserts(case: Case, device: str) -> bool:
    """Whether an assertion in PyTorch's kernel of `grouped_mm` would end the process.

    The kernel asserts that the bytes of each group's rows or columns are a multiple of 16, and it
    divides by the number of groups.
    """
    if device != "cuda" or case.ends is None or case.name != "grouped_mm":
        return False
    sizes = [end - first for first, end in pairwise((0, *case.ends))]
    bits = torch.finfo(case.tensors[0].dtype).bits if case.tensors[0].dtype.is_floating_point else 8
    return not sizes or any(size * bits % 128 for size in sizes)


def _result_shape(case: Case, device: str) -> Any:
    """The shape of PyTorch's result, for `out`; (1,) if PyTorch refuses the arguments."""
    given = _arguments(case, "cpu")
    try:
        return case.theirs(*(x.detach().double() for x in given.views), **given.options).shape
    except Exception:
        return (1,)


def _gradients(case: Case, d: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...] | None:
    wanting = [leaf for leaf in leaves if leaf.requires_grad]
    if not d.requires_grad:
        # Tangents of PyTorch also have gradients with respect to what they do not depend on.
        of_transform = case.way.transform is not None and case.way.recorded
        return tuple(map(torch.zeros_like, wanting)) if of_transform else None
    random = torch.Generator().manual_seed(case.tensors[0].seed)
    grad = torch.randn(d.shape, generator=random, dtype=torch.float64).to(d.dtype).to(d.device)
    if case.tensors[0].seed % 3 == 0:
        grad = grad.mT.contiguous().mT if d.dim() > 1 else grad
    unused = {"materialize_grads": True} if case.way.transform else {}
    return torch.autograd.grad(d, wanting, grad, **unused)


def _compare(case: Case, device: str, ours: Ran, theirs: Ran | None) -> Result:
    """Compare coordgraph's result with PyTorch's, if PyTorch has one, and with float64."""
    assert ours.d is not None
    if theirs is not None:
        assert theirs.d is not None
        pairs = [
            (ours.d, theirs.d),
            *zip(ours.gradients or (), theirs.gradients or (), strict=False),
        ]
        # Under autocast, coordgraph's `grouped_mm` casts its factors, as documented, and PyTorch's
        # does not, so the types of the results differ.
        if case.name == "grouped_mm" and case.way.autocast and ours.d.dtype != theirs.d.dtype:
            pairs = pairs[1:]
        for one, other in pairs:
            if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
                return Result(
                    Outcome.UNLIKE, f"{one.shape} {one.dtype}; {other.shape} {other.dtype}"
                )
        if (ours.gradients is None) != (theirs.gradients is None):
            return Result(Outcome.UNLIKE, f"has gradients: {ours.gradients is not None}")
        plain = case.way.transform is None
        if plain and theirs.d.is_contiguous() and not ours.d.is_contiguous():
            return Result(Outcome.UNLIKE, f"strides {ours.d.stride()}, not {theirs.d.stride()}")
    if _uninitialized(case):
        return Result(Outcome.UNCOMPARED, "PyTorch leaves elements uninitialized")
    if not ours.d.is_floating_point() or any(x.kind == "sparse" for x in case.tensors):
        return _compare_foreign(ours, theirs)
    found = _compare_exact(case, ours)
    return Result(Outcome.ACCEPTED) if found.outcome is Outcome.SAME and theirs is None else found


def _compare_exact(case: Case, ours: Ran) -> Result:
    """Compare coordgraph's result and gradients with a reference computed in float64."""
    assert ours.d is not None
    try:
        exact, size = (_exact(case, ours.d.dtype, absolute=x) for x in (False, True))
    except Exception as error:
        return Result(Outcome.UNCOMPARED, repr(error))
    types = [ours.d.dtype, *(x.dtype for x in case.tensors)]
    types += [case.way.autocast] if case.way.autocast else []
    eps = max(torch.finfo(x).eps for x in types if x.is_floating_point)
    found = _first_wrong(ours.d, exact.d, size.d, eps)
    if found:
        return Result(Outcome.WRONG, found)
    if ours.gradients is not None:
        assert exact.gradients is not None
        assert size.gradients is not None
        for one, right, scale in zip(ours.gradients, exact.gradients, size.gradients, strict=True):
            found = _first_wrong(one, right, scale, eps)
            if found:
                return Result(Outcome.GRADIENT, found)
    return Result(Outcome.SAME)


def _compare_foreign(ours: Ran, theirs: Ran | None) -> Result:
    """Compare results of types and layouts that coordgraph leaves to PyTorch.

    Sums of complex numbers may be in another order.
    """
    if theirs is None or theirs.d is None or ours.d is None:
        return Result(Outcome.WRONG)
    one, other = _dense(ours.d, theirs.d)
    same = torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)
    return Result(Outcome.SAME if same else Outcome.WRONG)


def _exact(case: Case, dtype: torch.dtype, *, absolute: bool) -> Ran:
    """The result and the gradients of the call, computed in float64.

    The gradient of the result is rounded to `dtype`, as in the call under test. With `absolute`,
    all arguments are replaced by their absolute values; the results then bound rounding errors.
    """
    given = _arguments(case, "cpu")
    leaves, views = list[Tensor](), list[Tensor]()
    for drawn, leaf in zip(case.tensors, given.leaves, strict=True):
        rounded = leaf.detach()
        # PyTorch casts no arguments of calls with `out`.
        casts = case.way.autocast and not case.way.out and case.name != "grouped_mm"
        if casts and rounded.dtype != torch.float64:
            assert case.way.autocast is not None
            rounded = rounded.to(case.way.autocast)
        wide = rounded.double()
        leaves.append((wide.abs() if absolute else wide).requires_grad_(leaf.requires_grad))
        view = drawn.view(leaves[-1])
        # Not `abs`, whose gradient is 0 at 0. Some views are negated.
        views.append(torch.where(view.lt(0), view.neg(), view) if absolute else view)
    options = {
        name: abs(x) if absolute and name in ("alpha", "beta") else x
        for name, x in given.options.items()
    }
    with torch.set_grad_enabled(case.way.recorded and not case.way.out):
        function = (absolute and case.bound) or case.exact
        d = _call(case, function, views, options, peer=True)
    wanting = [leaf for leaf in leaves if leaf.requires_grad]
    if not d.requires_grad:
        return Ran(d, tuple(torch.zeros_like(leaf) for leaf in wanting))
    random = torch.Generator().manual_seed(case.tensors[0].seed)
    grad = torch.randn(d.shape, generator=random, dtype=torch.float64).to(dtype).double()
    grad = grad.abs() if absolute else grad
    gradients = torch.autograd.grad(d, wanting, grad, materialize_grads=True)
    return Ran(d.detach(), tuple(g.abs() for g in gradients) if absolute else gradients)


def _dense(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The elements of tensors, of which some may be sparse."""
    found = (x.detach() for x in tensors)
    return tuple(x if x.layout == torch.strided else x.to_dense() for x in found)


def _first_wrong(found: Tensor, exact: Tensor | None, size: Tensor | None, eps: float) -> str:
    """Text about the first element whose error is more than rounding explains; '' if there is none.

    Args:
        found: the elements to check.
        exact: the elements in float64.
        size: the elements computed from absolute values of the arguments; rounding errors are
            relative to these elements.
        eps: the distance from 1 to the next number in the coarsest type of the call.
    """
    assert exact is not None
    assert size is not None
    # The gradient of a sparse factor is sparse: only its entries are defined.
    (dense,) = _dense(found)
    wide = dense.cpu().double()
    accumulated = min(eps, torch.finfo(torch.float32).eps)
    # The smallest numbers are rounded to multiples of 2^-9 in float8_e4m3fn, 2^-24 in float16.
    least = 2e-3 if eps > 0.1 else 1e-4 if eps > 1e-6 else 1e-30
    bound = (6 * eps + 400 * accumulated) * size.detach() + least
    bad = (wide - exact).abs() > bound
    bad |= wide.isnan() != exact.isnan()
    bad |= wide.isinf() != exact.isinf()
    if dense.dtype is torch.float8_e4m3fn:
        # This type has no infinite numbers. PyTorch casts what is more than the largest number to
        # that number or to NaN: its versions, and CPUs and GPUs, differ.
        most = torch.finfo(dense.dtype).max
        beyond = exact.abs() + bound.nan_to_num(0, posinf=0) > most
        bad &= ~(beyond & (wide.isnan() | (wide == exact.sign() * most)))
    if not bad.any():
        return ""
    place = tuple(bad.nonzero()[0].tolist())
    count = int(bad.sum())
    return f"{count} of {bad.numel()} elements, [{place}]: {wide[place]:g}, not {exact[place]:g}"
