"""Code shared by all targets: index expressions, the control-graph walker, arguments and LLVM."""
