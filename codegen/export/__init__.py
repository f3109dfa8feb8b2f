"""`export`: writes a compiled kernel as a folder of files that a C or C++ program can use.

The folder needs neither Python nor coordgraph, only the CUDA driver:

- `NAME.cubin`: the kernel's machine code for one GPU architecture;
- `NAME.h`, `NAME.c`: C functions that load the kernel, give its workspace size, and launch it;
- `example.cpp`: a program that runs the kernel on random matrices, and checks and times it;
- `launch.json`: the same launch recipe as data, for programs in other languages;
- `Makefile`: compiles the example.
"""

from codegen.export.folder import Exported, export

__all__ = ["Exported", "export"]
