"""The command line and library for NSQ: ``from nsqtools import Consumer, Producer, Message``."""

from typing import TYPE_CHECKING

__version__ = "0.2.0"
__date__ = "2026-11-22"  # of its release

if TYPE_CHECKING:
    from nsqtools.library import *  # noqa: F403
else:  # The library loads asyncio, and the answer to a TAB press must not wait for that.

    def __getattr__(name):
        if name == "__all__":
            return __dir__()
        if name[0].isupper():  # other names are submodules
            from nsqtools import library

            if found := getattr(library, name, None):
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        from nsqtools import library

        return [*(name for name in vars(library) if name[0].isupper()), "__version__"]
