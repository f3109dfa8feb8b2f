"""What emits sm_90a's instructions: TMA, mbarrier and wgmma."""
