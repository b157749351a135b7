"""``nsqtools`` and ``python -m nsqtools``."""

import signal
import sys

# While the program loads, Ctrl-C ends it without a traceback of imports.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _command(words: list[str]) -> str:
    """Return the name of the command, after the options shared by all commands."""
    following = iter(words)
    for word in following:
        if word in ("--config", "--profile", "--log-format"):
            next(following, "")
        elif not word.startswith("-"):
            return word
    return ""


# On SIGHUP to-file publishes its files: until it has opened any, it ignores the signal.
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
