"""How kernels are timed: CUDA-graph replays in rounds, time limits, clocks, power, roofline."""
