"""Files that users name, read whole: regular ones only, and only up to a size."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_MIB = 1024 * 1024


def read_file(path: str | Path, *, most_mib: int) -> bytes:
    """What is in a file.

    Raises:
        OSError: it cannot be read, is larger, or is a device or a pipe, which may have no end.
    """
    with open(path, "rb", opener=_open) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        content = file.read(most_mib * _MIB + 1)
    if len(content) > most_mib * _MIB:
        raise OSError(errno.EFBIG, f"it is larger than {most_mib} MiB", str(path))
    return content


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # else a pipe waits for somebody who writes
