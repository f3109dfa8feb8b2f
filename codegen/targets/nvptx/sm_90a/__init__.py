"""Emitters of the instructions of sm_90a: TMA, mbarrier and wgmma."""
