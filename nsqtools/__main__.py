"""``nsqtools`` and ``python -m nsqtools``."""

import signal
import sys

# Until the program is loaded Ctrl-C just ends it: nobody wants to see a traceback of imports.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _command(words: list[str]) -> str:
    """The name of the command, after options that all commands share."""
    following = iter(words)
    for word in following:
        if word in ("--config", "--profile", "--log-format"):
            next(following, "")
        elif not word.startswith("-"):
            return word
    return ""


# SIGHUP has to-file publish its files: while it has none there is nothing to do.
if _command(sys.argv[1:]) == "to-file" and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
    signal.signal(signal.SIGHUP, lambda *_: None)

from nsqtools.cli import main as run  # noqa: E402 - signals come first


def main() -> None:
    """Run the command line and exit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
