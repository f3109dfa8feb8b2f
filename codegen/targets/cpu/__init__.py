"""The host: lowered operations to machine code, threads that run workgroups."""

from codegen.targets.cpu.runtime import HostKernel, compile_host

__all__ = ["HostKernel", "compile_host"]
