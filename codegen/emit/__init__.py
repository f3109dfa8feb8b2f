"""What all code generators share: index expressions, the control-graph walker, arguments, LLVM."""
