"""The targets for which graphs are compiled: the CPU, NVIDIA GPUs and the Python interpreter."""
