"""The CPU target: compiles graphs to the host's machine code, which a pool of threads runs."""

from codegen.targets.cpu.runtime import HostKernel, compile_host

__all__ = ["HostKernel", "compile_host"]
