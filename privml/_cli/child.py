"""Entry of a verb that runs as a child process: reports by JSON lines, ends with its parent.

``python -P -m privml._cli.child FD VERB ...``: the other end of the pipe FD is held by the parent
alone; once it closes, this process removes what the parent kept in private and stops.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from privml._cli import main as cli
from privml._cli import output
from privml._cli.private import PRIVATE_VARIABLE, remove_private

_PATIENCE_S = 5.0


def _watch(fd: int) -> None:
    while os.read(fd, 1):
        continue
    remove_private(os.environ.get(PRIVATE_VARIABLE))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE_S)
    os._exit(cli.EXIT_INTERRUPTED)


def main() -> None:
    """Run the verb named on the command line."""
    output.MODE.events = True
    threading.Thread(target=_watch, args=(int(sys.argv[1]),), daemon=True).start()
    cli.main(sys.argv[2:])


if __name__ == "__main__":
    main()
