"""httpx without its command line, whose libraries take longer to load than all else of it.

httpx loads them where they are installed, and click and rich are, for ours.
"""

from __future__ import annotations

import sys

__all__ = ["httpx"]

_COMMAND_LINE = "httpx._main"

_hidden = _COMMAND_LINE not in sys.modules
if _hidden:
    sys.modules[_COMMAND_LINE] = None  # type: ignore[assignment] # so its import is an ImportError
import httpx  # noqa: E402

if _hidden:
    del sys.modules[_COMMAND_LINE]
