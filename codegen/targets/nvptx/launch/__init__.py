"""Launching kernels: loaded functions, arguments, tensor maps, workspaces, checked calls."""
