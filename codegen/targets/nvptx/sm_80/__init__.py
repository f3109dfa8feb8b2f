"""What emits sm_80's instructions: cp.async, ldmatrix and mma.sync."""
