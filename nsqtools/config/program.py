"""What every command has: its log lines and its configuration file."""

from __future__ import annotations

from typing import ClassVar

from nsqtools.config.option import Options, option, option_class, texts
from nsqtools.errors import ConfigError


@option_class
class LogOptions(Options):
    """What goes to stderr."""

    title: ClassVar[str] = "Logging"
    shared: ClassVar[bool] = True

    verbose: int = option(0, "count", "Say what is going on; -vv says everything.", short="v")
    quiet: bool = option(False, "flag", "Say nothing but errors.", short="q")
    log_format: str = option(
        "text", "choice", "Form of log lines on stderr.", choices=("text", "json")
    )


@option_class
class FileOptions(Options):
    """Which configuration file is read, and which of its profiles."""

    title: ClassVar[str] = "Configuration"
    shared: ClassVar[bool] = True

    config: str = option(
        "",
        "path",
        "Configuration file, or none.",
        default_note="$XDG_CONFIG_HOME/nsqtools/config.toml or /etc/nsqtools/config.toml",
        in_file=False,
    )
    profile: tuple[str, ...] = texts(
        "Profile of that file, or none.",
        metavar="NAME",
        default_note="its default_profile",
        values="profile",
        in_file=False,
    )

    def validate(self) -> None:
        """There is one profile at a time."""
        if len(self.profile) > 1:
            names = " and ".join(map(repr, self.profile))
            raise ConfigError(f"--profile: give one profile, not {names}")


@option_class
class ShowOptions(Options):
    """How settings are printed."""

    title: ClassVar[str] = "Output"

    json: bool = option(False, "flag", "Print JSON.")
