"""The targets for NVIDIA GPUs: compile graphs to PTX, load the PTX, and launch kernels."""

from codegen.targets.nvptx.cuda_kernel import CudaKernel
from codegen.targets.nvptx.program import CudaProgram

__all__ = ["CudaKernel", "CudaProgram"]
