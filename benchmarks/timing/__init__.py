"""Time kernels: CUDA-graph replays in rounds, time limits, GPU clocks and power, roofline."""
