"""Emitters of the instructions of sm_80 and later: cp.async, ldmatrix and mma.sync."""
