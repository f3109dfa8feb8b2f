"""Names of launch parameters that belong to a tensor, such as `stride_a` for the tensor A."""

from __future__ import annotations

__all__ = ["elements_of", "ld_of", "read_of", "step_of", "stride_of", "tensor_of"]


def tensor_of(operand: str) -> str:
    """The name of the tensor of an epilogue operand: `C` for `c`, else the operand's own name."""
    return "C" if operand == "c" else operand


def read_of(tensor: str) -> str:
    """The name of the launch parameter that is 1 if the kernel reads an epilogue operand, else 0.

    The name is `read_c` for the tensor C, and `read_NAME` for other tensors. Only optional operands
    have such a parameter.

    Args:
        tensor: the name of the operand's tensor.
    """
    return f"read_{'c' if tensor == 'C' else tensor}"


def stride_of(tensor: str) -> str:
    """The name of the launch parameter with the stride between matrices of a batch.

    The parameter counts the elements from the start of one matrix to the start of the next.
    """
    return f"stride_{_suffix(tensor)}"


def ld_of(tensor: str) -> str:
    """The name of the launch parameter with the leading dimension of a tensor's matrices.

    The parameter counts the elements from the start of one row in memory to the start of the next.
    The tensors in `GemmProblem.leading_dimensions` have such a parameter.
    """
    return f"ld_{_suffix(tensor)}"


def step_of(tensor: str) -> str:
    """The name of the launch parameter with the distance between adjacent elements of a tensor.

    The parameter counts the elements from one element of a row, or of a vector, to the next. The
    tensors in `GemmProblem.element_steps` have such a parameter.
    """
    return f"step_{_suffix(tensor)}"


def _suffix(tensor: str) -> str:
    """The last part of a launch parameter's name: `a` for the tensor A, `bias` for `bias`."""
    return tensor.lower() if tensor in ("A", "B", "C", "D") else tensor


def elements_of(tensor: str) -> str:
    """The name of the launch parameter with the number of elements of a tensor.

    The parameter exists only with `group_axis="mnk"`, where a tensor is a vector that holds the
    matrices of all groups. C and other epilogue operands have as many elements as D.
    """
    return f"elements_{tensor.lower() if tensor in ('A', 'B') else 'd'}"
