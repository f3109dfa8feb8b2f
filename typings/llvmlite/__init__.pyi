# The part of llvmlite in use here; the library comes without types.
