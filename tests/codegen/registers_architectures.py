"""What `--import` takes: to import it is to register the architectures from outside."""

from tests.codegen.outside_architecture import register_all

register_all()
