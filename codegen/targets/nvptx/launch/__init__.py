"""Launches kernels on NVIDIA GPUs: loaded functions, arguments, tensor maps and workspaces."""
