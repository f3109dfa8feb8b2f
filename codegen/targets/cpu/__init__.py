"""The CPU target: compiles graphs to machine code of this machine, run by a pool of threads."""

from codegen.targets.cpu.runtime import HostKernel, compile_host

__all__ = ["HostKernel", "compile_host"]
