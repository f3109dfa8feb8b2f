"""NVIDIA GPUs: lowered operations to PTX, the driver, launching."""

from codegen.nvptx.program import CudaProgram
from codegen.nvptx.runtime import CudaKernel

__all__ = ["CudaKernel", "CudaProgram"]
