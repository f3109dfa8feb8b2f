"""The contenders that are timed: cuBLAS, cuBLASLt, Triton, PyTorch and coordgraph's kernels."""
