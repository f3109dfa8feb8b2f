"""Speed measures: `python -m benchmarks [gemm|graph|cpu] …`; `gemm` where none is named."""

from __future__ import annotations

import importlib
import sys

MEASURES = {
    "gemm": ("benchmarks.gemm", "our kernels against cuBLAS, on a GPU"),
    "graph": ("benchmarks.graph_scaling", "how graphs of many edges scale"),
    "cpu": ("benchmarks.cpu_vs_numpy", "the CPU target against numpy"),
}


def main() -> None:
    """Give the rest of the command line to a measure."""
    words = sys.argv[1:]
    if words and words[0] in ("-h", "--help"):
        listing = "\n".join(f"  {name:6} {what}" for name, (_, what) in MEASURES.items())
        print(f"{__doc__}\n\n{listing}\n\nEach takes --help.")
        return
    name = words[0] if words and not words[0].startswith("-") else "gemm"
    if name not in MEASURES:
        sys.exit(f"there is no measure '{name}'; there are {', '.join(MEASURES)}")
    module, _ = MEASURES[name]
    sys.argv = [f"python -m benchmarks {name}", *(words[1:] if words[:1] == [name] else words)]
    try:
        measure = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        sys.exit(f"the measure '{name}' is not part of this version ({module} is missing)")
    measure.main()


if __name__ == "__main__":
    main()
