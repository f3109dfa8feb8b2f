"""A module for `--import`: importing it registers the architectures from outside."""

from tests.codegen.outside_architecture import register_all

register_all()
