"""The command line and library for NSQ: ``from nsqtools import Consumer, Producer, Message``."""

from typing import TYPE_CHECKING

__version__ = "0.3.0"
__date__ = "2026-11-26"  # of its release

if TYPE_CHECKING:
    from nsqtools.public import *  # noqa: F403
else:  # The library loads asyncio, which would delay the answer to a TAB press.

    def __getattr__(name):
        if name == "__all__":
            return __dir__()
        if name[0].isupper():  # other names are submodules
            from nsqtools import public

            if found := getattr(public, name, None):
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        from nsqtools import public

        return [*(name for name in vars(public) if name[0].isupper()), "__version__"]
