"""NVIDIA GPUs: lowered operations to PTX, the driver, launching."""

from codegen.targets.nvptx.cuda_kernel import CudaKernel
from codegen.targets.nvptx.program import CudaProgram

__all__ = ["CudaKernel", "CudaProgram"]
