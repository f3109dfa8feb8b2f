"""Targets that graphs are compiled for: the CPU, NVIDIA GPUs and the Python interpreter."""
