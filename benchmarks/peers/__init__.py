"""What competes in a measure: cuBLAS, cuBLASLt, Triton kernels, PyTorch, and our own kernels."""
