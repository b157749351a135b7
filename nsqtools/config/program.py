"""Options of every command: logging and the configuration file."""

from __future__ import annotations

from nsqtools.config.option import Options, choice, flag, option, path, text

JSON = flag("Print JSON.", own=True)
LOCK = path(
    "File to lock; while it is locked, other commands with this file exit with 75.", metavar="FILE"
)


class LogOptions(Options):
    """Log level and format; logs go to stderr."""

    title = "Logging"
    shared = True

    verbose: int = option("count", "Log progress; -vv logs everything.", 0, short="v")
    quiet: bool = flag("Log errors only.", short="q", outranks=("verbose",))
    log_format: str = choice("Format of log lines on standard error.", "text", "json")


class ConfigFileOptions(Options):
    """The configuration file and the profile in it."""

    title = "Configuration"
    shared = True

    config: str = path(
        "Configuration file, or none to read no file.",
        default_note="$XDG_CONFIG_HOME/nsqtools/config.toml or /etc/nsqtools/config.toml",
        in_file=False,
    )
    profile: str = text(
        "Profile in the configuration file, or none to use no profile.",
        metavar="NAME",
        default_note="default_profile of the file",
        values="profile",
        in_file=False,
    )


class ShowOptions(Options):
    """Output format of settings."""

    title = "Output"

    changed: bool = flag("Print only values other than the default.", in_file=False)
    json: bool = JSON
