"""The targets for NVIDIA GPUs: compiles graphs to PTX, loads them by the driver, and launches."""

from codegen.targets.nvptx.cuda_kernel import CudaKernel
from codegen.targets.nvptx.program import CudaProgram

__all__ = ["CudaKernel", "CudaProgram"]
