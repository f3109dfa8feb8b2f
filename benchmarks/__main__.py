"""Speed measures: `python -m benchmarks NAME …`; gemm where none is named."""

from __future__ import annotations

import importlib
import sys

MEASURES = {
    "gemm": ("benchmarks.gemm", "our kernels against cuBLAS, cuBLASLt and Triton, on a GPU"),
    "waves": ("benchmarks.waves", "what schedules make of a last wave that is not full, on a GPU"),
    "schedules": ("benchmarks.schedules", "all schedules, counted, and measured where a GPU is"),
    "sweep": ("benchmarks.sweep", "many of our plans on many problems, for the model, on a GPU"),
    "groups": (
        "benchmarks.groups",
        "many products in a launch against a cuBLAS call for each, on a GPU",
    ),
    "traffic": ("benchmarks.traffic", "orders of tiles: memory traffic, modelled and measured"),
    "counters": ("benchmarks.counters", "what keeps kernels busy, ours and cuBLAS's, by ncu"),
    "calls": ("benchmarks.calls", "what a call costs on the host, and compiling, on a GPU"),
    "plot": ("benchmarks.plots", "pictures of what these wrote; no GPU"),
    "chosen": ("benchmarks.chosen", "what the model chooses among plans that were measured"),
    "residuals": ("benchmarks.residuals", "what the model misses in times that were measured"),
    "graph": ("benchmarks.graph_scaling", "how graphs of many edges scale"),
    "cpu": ("benchmarks.cpu_vs_numpy", "the CPU target against numpy"),
}
HELPERS = {"torch": "a GPU build of PyTorch", "matplotlib": "pip install 'coordgraph[bench]'"}


def main() -> None:
    """Give the rest of the command line to a measure."""
    words = sys.argv[1:]
    if words and words[0] in ("-h", "--help"):
        listing = "\n".join(f"  {name:9} {what}" for name, (_, what) in MEASURES.items())
        print(f"{__doc__}\n\n{listing}\n\nEach takes --help.")
        return
    name = words[0] if words and not words[0].startswith("-") else "gemm"
    if name not in MEASURES:
        sys.exit(f"there is no measure '{name}'; there are {', '.join(MEASURES)}")
    module, _ = MEASURES[name]
    sys.argv = [f"python -m benchmarks {name}", *(words[1:] if words[:1] == [name] else words)]
    try:
        importlib.import_module(module).main()
    except ModuleNotFoundError as error:
        if error.name not in HELPERS:
            raise
        sys.exit(f"'{name}' needs {error.name}: {HELPERS[error.name]}")


if __name__ == "__main__":
    main()
