"""`python -m codegen.cli` runs the command line `coordgraph`."""

from codegen.cli import main

if __name__ == "__main__":
    main()
