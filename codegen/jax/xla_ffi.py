"""The C interface of XLA's foreign functions (XLA FFI), for handlers that are Python functions.

XLA calls a handler with a *call frame*: the buffers of its arguments and results, the attributes of
the call, and a table of functions of XLA's runtime. The structures follow
`xla/ffi/api/c_api.h`, which jaxlib contains (`jax.ffi.include_dir()`). Only fields that exist since
version 0.1 of the interface are read, with one exception: the newer function `device_ordinal` is
used if the table of functions is large enough to contain it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from coordgraph import LaunchError
from coordgraph.elements import DTYPES

__all__ = ["TYPES", "Buffer", "Call", "address_of_handler"]

API_VERSION = (0, 1)
"""The version (major, minor) of XLA FFI that the structures of this module follow.

XLA refuses a handler whose version is older than the oldest version that XLA still supports."""
METADATA = 1
"""XLA_FFI_Extension_Metadata: the type number of the extension of a call frame by which XLA asks a
handler for its version and traits. Such a call runs nothing."""
EXECUTE = 3
"""XLA_FFI_ExecutionStage_EXECUTE: the stage in which a handler launches its work."""
SCALAR, STRING = 3, 4
"""XLA_FFI_AttrType_SCALAR and XLA_FFI_AttrType_STRING: the kinds of attributes that are read."""
BOOLEAN = 1
"""XLA_FFI_DataType_PRED: the type of an attribute that is True or False."""
INTERNAL = 13
"""XLA_FFI_Error_Code_INTERNAL: the status of a call whose Python function raised an exception."""
NUMBERS = {"S8": 2, "S32": 4, "U8": 6, "F16": 10, "F32": 11, "F64": 12, "BF16": 16}
"""The numbers of element types in XLA, by the names of XLA_FFI_DataType."""
TYPES = {
    NUMBERS[name]: kind.name
    for kind in DTYPES.values()
    if (name := kind.name.upper().replace("I", "S")) in NUMBERS
}
"""Names of the element types that kernels read, by their numbers in XLA."""


def _structure(name: str, *fields: tuple[str, Any], extensible: bool = True) -> type[Structure]:
    """A C structure with `fields`; if extensible, a size and an extension pointer come first."""
    head: list[tuple[str, Any]] = [("struct_size", c_size_t), ("extension_start", c_void_p)]
    return type(name, (Structure,), {"_fields_": [*(head if extensible else ()), *fields]})


_Extension = _structure(
    "_Extension",
    ("struct_size", c_size_t), ("type", c_int), ("next", c_void_p), ("metadata", c_void_p),
    extensible=False,
)  # fmt: skip
_Version = _structure("_Version", ("major", c_int), ("minor", c_int))
_Metadata = _structure(
    "_Metadata",
    ("struct_size", c_size_t), ("version", _Version), ("traits", ctypes.c_uint32),
    extensible=False,
)  # fmt: skip
_Buffer = _structure(
    "_Buffer", ("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", POINTER(c_int64))
)
_Buffers = _structure("_Buffers", ("size", c_int64), ("types", POINTER(c_int)), ("all", c_void_p))
_Attributes = _structure(
    "_Attributes",
    ("size", c_int64), ("types", POINTER(c_int)), ("names", c_void_p), ("values", c_void_p),
)  # fmt: skip
_Text = _structure("_Text", ("data", c_void_p), ("length", c_size_t), extensible=False)
_Scalar = _structure("_Scalar", ("dtype", c_int), ("value", c_void_p), extensible=False)
_Frame = _structure(
    "_Frame",
    ("api", c_void_p), ("context", c_void_p), ("stage", c_int),
    ("inputs", _Buffers), ("results", _Buffers), ("attributes", _Attributes),
)  # fmt: skip
FUNCTIONS = (
    "error_create", "error_message", "error_destroy", "handler_register", "stream_get",
    "type_register", "context_get", "state_set", "state_get", "memory_allocate", "memory_free",
    "pool_schedule", "pool_threads", "future_create", "future_available", "future_error",
    "run_id", "device_ordinal",
)  # fmt: skip
"""Names for the functions of XLA's runtime, in the order of the fields of `XLA_FFI_Api`."""
_Api = _structure(
    "_Api", ("version", _Version), ("internal", c_void_p), *((name, c_void_p) for name in FUNCTIONS)
)
_NewError = _structure("_NewError", ("message", c_char_p), ("code", c_int))
_Stream = _structure("_Stream", ("context", c_void_p), ("stream", c_void_p))
_Ordinal = _structure("_Ordinal", ("context", c_void_p), ("ordinal", c_int32))
_FUNCTION = ctypes.CFUNCTYPE(c_void_p, c_void_p)
"""The C type of functions of XLA's runtime, and of the functions (handlers) that XLA calls. The
argument is a pointer to a structure. The result is a pointer to an error, or NULL."""


@dataclass(frozen=True)
class Buffer:
    """An array that XLA passes to a foreign function, row-major without gaps.

    Args:
        pointer: the address of the first element, in the memory of the call's device.
        shape: the extents of the axes, in elements.
        dtype: the name of the element type, such as `bf16`.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: str


class Call:
    """Reads the buffers and attributes of a call of an XLA FFI handler, while the call runs.

    Args:
        frame: the address of the call frame, which is valid until the handler returns.
    """

    def __init__(self, frame: int) -> None:
        self._frame: Any = _Frame.from_address(frame)
        self._api: Any = _Api.from_address(self._frame.api)

    @cached_property
    def inputs(self) -> tuple[Buffer, ...]:
        """The arrays that XLA passes to the call, in order."""
        return _buffers(self._frame.inputs)

    @cached_property
    def results(self) -> tuple[Buffer, ...]:
        """The arrays that the handler must write, in order."""
        return _buffers(self._frame.results)

    @cached_property
    def attributes(self) -> dict[str, bool | str]:
        """The attributes of the XLA call, by name; only booleans and strings are supported."""
        given, found = self._frame.attributes, dict[str, bool | str]()
        for i in range(given.size):
            name = _text(_item(_Text, given.names, i))
            found[name] = _attribute(given.types[i], given.values, i)
        return found

    @property
    def stream(self) -> int:
        """The CUDA stream (`CUstream`) on which the call's work must be launched."""
        given: Any = _Stream(ctypes.sizeof(_Stream), None, self._frame.context, None)
        self._run("stream_get", given)
        return int(given.stream or 0)

    @property
    def device(self) -> int | None:
        """The ordinal of the call's GPU; None if XLA is too old to report the ordinal."""
        if self._api.struct_size < ctypes.sizeof(_Api):
            return None
        given: Any = _Ordinal(ctypes.sizeof(_Ordinal), None, self._frame.context, 0)
        self._run("device_ordinal", given)
        return int(given.ordinal)

    def _run(self, name: str, given: Structure) -> None:
        """Call the function `name` of XLA's FFI, with the structure `given` as its argument.

        Raises:
            LaunchError: the function returned an error.
        """
        error = _FUNCTION(getattr(self._api, name))(ctypes.addressof(given))
        if error:
            raise LaunchError(f"XLA's function {name} failed; update jax and jaxlib")


def address_of_handler(function: Callable[[Call], None]) -> tuple[Any, int]:
    """A C function that XLA can call, which calls a Python function.

    An exception of the Python function becomes the error of XLA's call, with its text.

    Returns:
        (an object, the address of the C function). The function exists as long as the object.
    """

    def handle(frame: int) -> int | None:
        given: Any = _Frame.from_address(frame)
        if given.extension_start:
            extension: Any = _Extension.from_address(given.extension_start)
            if extension.type == METADATA:
                metadata: Any = _Metadata.from_address(extension.metadata)
                metadata.version = _Version(ctypes.sizeof(_Version), None, *API_VERSION)
                metadata.traits = 0  # no trait: handlers cannot be captured in CUDA graphs
                return None
        if given.stage != EXECUTE:
            return None
        try:
            function(Call(frame))
        except BaseException as error:  # an exception must not leave a C function
            return _error(given.api, f"{type(error).__name__}: {error}")
        return None

    owner = _FUNCTION(handle)
    return owner, ctypes.cast(owner, c_void_p).value or 0


def _error(api: int, message: str) -> int:
    """The address of a new XLA_FFI_Error with the text `message`, which XLA will free."""
    functions: Any = _Api.from_address(api)
    given: Any = _NewError(ctypes.sizeof(_NewError), None, message.encode(), INTERNAL)
    return _FUNCTION(functions.error_create)(ctypes.addressof(given))


def _item(kind: Any, pointers: int, index: int) -> Any:
    """The structure to which entry `index` of an array of pointers points."""
    (pointer,) = (c_void_p * 1).from_address(pointers + index * ctypes.sizeof(c_void_p))
    return kind.from_address(pointer)


def _text(span: Any) -> str:
    """The text of a byte span, which need not end with a zero byte."""
    return ctypes.string_at(span.data, span.length).decode()


def _attribute(kind: int, values: int, index: int) -> bool | str:
    if kind == STRING:
        return _text(_item(_Text, values, index))
    scalar: Any = _item(_Scalar, values, index) if kind == SCALAR else None
    if scalar is None or scalar.dtype != BOOLEAN:
        raise LaunchError(
            "an attribute of the call is neither a boolean nor text; pass one of these"
        )
    return bool(ctypes.c_uint8.from_address(scalar.value).value)


def _buffers(given: Any) -> tuple[Buffer, ...]:
    found = list[Buffer]()
    for i in range(given.size):
        buffer: Any = _item(_Buffer, given.all, i)
        if buffer.dtype not in TYPES:
            known = ", ".join(TYPES.values())
            raise LaunchError(
                f"an array has XLA's element type {buffer.dtype}, which kernels do not read; "
                f"convert it to one of {known}"
            )
        shape = tuple(buffer.dims[axis] for axis in range(buffer.rank))
        found.append(Buffer(int(buffer.data or 0), shape, TYPES[buffer.dtype]))
    return tuple(found)
