"""The targets for NVIDIA GPUs: compiles graphs to PTX, loads the PTX, and launches kernels."""

from codegen.targets.nvptx.cuda_kernel import CudaKernel
from codegen.targets.nvptx.program import CudaProgram

__all__ = ["CudaKernel", "CudaProgram"]
