"""The version number of this distribution, which the build reads from this module."""

__all__ = ["__version__"]

__version__ = "0.1.0"
