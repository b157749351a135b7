"""Another wall clock and host name, in every Python that has this folder on its path.

``--date`` of the tests is for what runs in Python; NSQ's servers, Java and MinIO have the host's
clock all the same.
"""

import os
import socket
import time

_AHEAD = int(os.environ.get("TESTS_AHEAD_NS", "0"))
_HOST = os.environ.get("TESTS_HOST") or socket.gethostname()
_real = time.time_ns

setattr(time, "time_ns", lambda: _real() + _AHEAD)  # noqa: B010 - mypy knows them as functions
setattr(time, "time", lambda: (_real() + _AHEAD) / 1e9)  # noqa: B010
setattr(socket, "gethostname", lambda: _HOST)  # noqa: B010
