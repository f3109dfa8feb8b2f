"""One file for each command `python -m benchmarks NAME`; each has a `main` that reads `sys.argv`.

To add a measure, write a module here with `parser` and `main`, and add a line to `MEASURES`.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MEASURES", "Measure"]


@dataclass(frozen=True)
class Measure:
    """A measure: a command of `python -m benchmarks`.

    Args:
        module: the module below `benchmarks.measures` whose `main` is called.
        summary: one line of help, printed by `python -m benchmarks --help`.
        gpu: True if the measure needs a GPU.
    """

    module: str
    summary: str
    gpu: bool = False


MEASURES = {
    "gemm": Measure(
        "gemm", "six groups of layer shapes against cuBLAS, cuBLASLt, Triton", gpu=True
    ),
    "random": Measure("random_sizes", "random sizes against cuBLAS and cuBLASLt", gpu=True),
    "epilogue": Measure(
        "epilogue", "a fused epilogue against PyTorch's separate kernels", gpu=True
    ),
    "groups": Measure("groups", "grouped products against one cuBLAS call a group", gpu=True),
    "experts": Measure("experts", "a mixture-of-experts layer against PyTorch", gpu=True),
    "gated": Measure("gated", "SwiGLU layers against PyTorch", gpu=True),
    "losses": Measure("losses", "cross entropy without stored logits against PyTorch", gpu=True),
    "invariant": Measure(
        "invariant", "batch-invariant products against the default and Triton", gpu=True
    ),
    "waves": Measure("waves", "utilisation where the last wave is not full", gpu=True),
    "sweep": Measure("sweep", "many plans on many problems, to fit the cost model", gpu=True),
    "timeline": Measure("overhead", "how much slower kernels are that record a timeline", gpu=True),
    "counters": Measure("counters", "hardware counters of our kernels and cuBLAS's", gpu=True),
    "calls": Measure("calls", "host time of a call, and of compiling a kernel", gpu=True),
    "driver": Measure("driver_calls", "driver functions through cuda-python and ctypes", gpu=True),
    "paper": Measure("paper", "the Stream-K paper's experiment, simulated and measured"),
    "schedules": Measure("schedules", "all schedules: counted, and timed where there is a GPU"),
    "traffic": Measure("traffic", "tile orders: memory traffic, simulated and measured"),
    "chosen": Measure("chosen", "the cost model's choice among the plans of a sweep"),
    "tuning": Measure("tuning", "the search of tune=True, replayed on the plans of a sweep"),
    "family": Measure("family", "few kernels for all sizes, against the best of all kernels"),
    "simulated": Measure("simulated", "simulated times against measured ones and the cost model's"),
    "residuals": Measure("residuals", "where the cost model errs on the times of a sweep"),
    "graph": Measure("graph_scaling", "seconds to handle graphs of many edges"),
    "checking": Measure("checking", "what checks of a graph add to its first build"),
    "generation": Measure("generation", "CPU time to generate a kernel, and to choose a plan"),
    "cpu": Measure("cpu_vs_numpy", "the CPU target against NumPy's BLAS"),
    "gantt": Measure("gantt", "what every SM does when: traced launches, simulated and measured"),
    "plot": Measure("plot", "plots of the records that the other measures wrote"),
}
"""All measures: the commands of `python -m benchmarks`, by their names on the command line."""
