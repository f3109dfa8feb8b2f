"""The epilogue operation `quantize`: rounding to an 8-bit integer or float with saturation."""

from __future__ import annotations

from typing import Any

from coordgraph.elements import dtype
from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import NUMPY_KINDS, QUANTIZED, Array, Elementwise

__all__ = ["Quantize", "quantize"]


class Quantize(Elementwise):
    """Round a float to the nearest i8, u8, e4m3 or e5m2; ties go to the even number.

    A number outside the type's range becomes the nearest finite number in it (saturation). NaN
    becomes 0 in i8 and u8, and stays NaN in e4m3 and e5m2. The operation does not scale:
    `quantize(x / scale)` is `torch.round(x / scale).clamp(-128, 127).to(torch.int8)`, where `scale`
    is an operand of axes '', 'm' or 'n'. The result is the value of D or of another output with
    elements of this type; only `cast` takes it as an argument. GPUs older than compute capability
    8.9 have no e4m3 and e5m2.

    Options:
        to: `i8`, `u8`, `e4m3` or `e5m2`.
    """

    name = "quantize"
    options = {"to": QUANTIZED[0]}  # noqa: RUF012 - never changed

    def refused(self, **constants: Any) -> str:
        """The reason why the option `to` is invalid, or '' if it is valid."""
        if constants["to"] in QUANTIZED:
            return ""
        return f"to={constants['to']!r} is none of {', '.join(QUANTIZED)}"

    def kind(self, kinds: tuple[str, ...], **constants: Any) -> str:
        """The kind of the result, which the option `to` names, such as i8."""
        super().kind(kinds)
        return constants["to"]

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """Whether the argument of `quantize` is known to be 0, and so the result as well."""
        return zeros[0]

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `quantize` on NumPy arrays; generated code is tested against the result."""
        import numpy as np

        if (most := dtype(constants["to"]).most) > 0:
            import ml_dtypes

            # Kernels round f64 to f32 first, as GPUs do.
            single = np.asarray(arguments[0], np.float32)
            with np.errstate(invalid="ignore"):  # NumPy warns where it converts some NaNs
                found = getattr(ml_dtypes, NUMPY_KINDS[constants["to"]])
                return np.clip(single, -most, most).astype(found)
        kind = np.dtype(NUMPY_KINDS[constants["to"]])
        range_of = np.iinfo(kind)
        whole = np.clip(np.rint(arguments[0]), range_of.min, range_of.max)
        return np.where(np.isnan(whole), 0, whole).astype(kind)

    def text(self, *arguments: str, **constants: Any) -> str:
        """The C-like expression of `quantize`, from the text of its argument."""
        return f"quantize<{constants.get('to', self.options['to'])}>({arguments[0]})"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit the rounding and the saturation of a value of kind `kind`."""
        return emit.saturate(arguments[0], kind, constants["to"])


quantize = Quantize()
