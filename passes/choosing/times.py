"""Reading files of measured times: JSON, optionally compressed by gzip."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

__all__ = ["read_json"]


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
