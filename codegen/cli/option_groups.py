"""Lets a command take a group of options as one parameter: a dataclass, each field an option.

An option is declared once, as the annotation of a field. A command takes the dataclass as a
parameter, and may leave options out, require them, or give them other defaults:

    @dataclass(frozen=True)
    class Size:
        m: Annotated[int | None, typer.Option("--m")] = None
        n: Annotated[int | None, typer.Option("--n")] = None

    @takes_groups(required=("m",), n=1)
    def area(*, size: Size) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

__all__ = ["takes_groups"]


def takes_groups(
    *, required: Collection[str] = (), without: Collection[str] = (), **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameters of a command that are dataclasses by their fields, for typer.

    Args:
        required: names of the fields whose options must be given on the command line.
        without: names of the fields that are not options of this command; such a field keeps the
            default that the dataclass gives it.
        defaults: by name of the field, a default that replaces the one in the dataclass.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        groups: dict[str, tuple[type[Any], list[str]]] = {}
        parameters: list[Parameter] = []
        for parameter in signature(command).parameters.values():
            kind = hints[parameter.name]
            if not (isinstance(kind, type) and is_dataclass(kind)):
                parameters.append(parameter.replace(annotation=kind))
                continue
            options = get_type_hints(kind, include_extras=True)
            kept = [f for f in fields(kind) if f.name not in without]
            groups[parameter.name] = kind, [f.name for f in kept]
            for f in kept:
                default = Parameter.empty if f.name in required else defaults.get(f.name, f.default)
                parameters.append(
                    Parameter(
                        f.name,
                        Parameter.KEYWORD_ONLY,
                        default=default,
                        annotation=options[f.name],
                    )
                )

        @wraps(command)
        def run(**given: Any) -> None:
            records = {
                name: kind(**{field: given.pop(field) for field in kept})
                for name, (kind, kept) in groups.items()
            }
            command(**given, **records)

        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate
