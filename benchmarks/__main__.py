"""Speed measures: `python -m benchmarks NAME …`; without a name it runs `gemm`."""

from __future__ import annotations

import faulthandler
import importlib
import sys

from benchmarks.measures import MEASURES

DEFAULT = "gemm"
OPTIONAL_PACKAGES = {
    "torch": "a GPU build of PyTorch",
    "matplotlib": "'coordgraph[bench]' by pip",
}
"""What to install for each package that only some measures need, by the package's import name."""


def overview() -> str:
    """The help text that `python -m benchmarks --help` prints."""
    width = max(map(len, MEASURES))
    lines = (
        f"  {name:{width}}  {measure.summary}{' (GPU)' if measure.gpu else ''}"
        for name, measure in MEASURES.items()
    )
    return "\n".join(
        (f"{__doc__}\n", *lines, "\n`python -m benchmarks NAME --help` explains a measure.")
    )


def main() -> None:
    """Run the measure named by the first argument, with the remaining arguments."""
    words = sys.argv[1:]
    if words and words[0] in ("-h", "--help"):
        print(overview())
        return
    named = bool(words) and not words[0].startswith("-")
    name = words[0] if named else DEFAULT
    if name not in MEASURES:
        sys.exit(f"there is no measure '{name}'; there are {', '.join(MEASURES)}")
    sys.argv = [f"python -m benchmarks {name}", *words[named:]]
    try:
        importlib.import_module(f"benchmarks.measures.{MEASURES[name].module}").main()
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL_PACKAGES:
            raise
        sys.exit(
            f"the measure '{name}' needs the package {error.name}; install "
            f"{OPTIONAL_PACKAGES[error.name]}"
        )


if __name__ == "__main__":
    faulthandler.enable()  # if a measure hangs, `kill -ABRT` ends it and prints where
    main()
