"""A module for `--import`: importing it registers the architectures of `outside_architecture`."""

from tests.codegen.outside_architecture import register_all

register_all()
