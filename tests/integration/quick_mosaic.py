"""`mosaic` for a test that runs many commands: each is a copy of a process that has imported it, not a new one.

    python quick_mosaic.py serve SOCKET           imports `mosaic`, says that it is ready, runs command after command
    python quick_mosaic.py run SOCKET [WORD]...   has one run, with the environment, the directory and the files of this

A command has its own process, and differs in nothing else but `PYTHONPATH`, which is that of the first.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence


def serve(path: str) -> None:
    """Runs one command at a time; returns in the process of a command, for which it is over."""
    from mosaic_tasks import app, cli, client  # noqa: F401  # what nearly all commands need

    sys.path.pop(0)  # the directory of this script
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        while True:
            asking, _ = listener.accept()
            with asking:
                _, files, _, _ = socket.recv_fds(asking, 1, 3)
                asked = json.loads(asking.makefile().readline())
                if not (child := os.fork()):
                    break
                for file in files:
                    os.close(file)
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                asking.sendall(b"%d\n" % (code if code >= 0 else 128 - code))
    _become(asked, files)
    cli.main()


def _become(asked: dict[str, object], files: Sequence[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(str(asked["directory"]))
    os.environ.clear()
    os.environ.update(asked["environment"])  # type: ignore[call-overload]
    sys.argv = ["mosaic", *asked["words"]]  # type: ignore[misc]


def run(path: str, words: Sequence[str]) -> int:
    """The exit code of a command."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(path)
        socket.send_fds(asking, [b"!"], [0, 1, 2])
        asked = {"words": words, "directory": os.getcwd(), "environment": dict(os.environ)}
        asking.sendall(json.dumps(asked).encode() + b"\n")
        return int(asking.makefile().readline())


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(run(sys.argv[2], sys.argv[3:]))
