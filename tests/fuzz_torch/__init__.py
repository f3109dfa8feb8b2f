"""Random calls of `codegen.torch`, compared with the same calls of PyTorch."""
