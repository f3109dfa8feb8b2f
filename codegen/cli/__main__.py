"""`python -m codegen.cli` is `coordgraph`."""

from codegen.cli import main

if __name__ == "__main__":
    main()
