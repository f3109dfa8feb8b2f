"""Reading files of measured times: JSON, optionally compressed by gzip, and their device."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from passes.choosing.constants import MEASURED, known_devices
from passes.choosing.device_names import matching

__all__ = ["device_of", "read_json"]


def read_json(path: Path) -> Any:
    """The JSON value in a file, which is decompressed if its name ends in `.gz`.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file has no JSON, or its name ends in `.gz` but it is not compressed.
    """
    data = path.read_bytes()
    try:
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        return json.loads(data)
    except (EOFError, gzip.BadGzipFile, ValueError, zlib.error) as error:
        raise ValueError(
            f"{path} is no JSON: {error}; give a JSON file, or one compressed as .json.gz"
        ) from error


def device_of(records: Iterable[Mapping[str, Any]], asked: str | None) -> str:
    """The name of the device whose constants suit records of measured times.

    Args:
        records: the contents of files of measured times. A record names its device in the entry
            `device`.
        asked: the name that the user gave, which may be short, such as `H100`; None for the device
            that the records name, or for the H200 if they name none.

    Raises:
        ValueError: `asked` is None, and the records name several devices.
    """
    if asked is not None:
        return matching(asked, known_devices()) or asked
    named = {str(found["device"]) for found in records if "device" in found}
    if len(named) > 1:
        raise ValueError(
            f"the files are of several devices ({', '.join(sorted(named))}); give the files of "
            "one, or a device by --device"
        )
    return named.pop() if named else MEASURED
