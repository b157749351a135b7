"""Every option, declared once.

Each class of ``Options`` covers one concern, and each option is a field of its class. The field's
name gives the flag (``--max-in-flight``), the TOML key and the environment variable. In classes
mirroring go-nsq's ``Config`` (``config.go``) it is also the name for ``--consumer-opt`` and
``--producer-opt``. Durations are in seconds, sizes in bytes. Import a class from the module of its
concern: a command loads only its own options.
"""

# size: one module per concern

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqtools.config.option import Options


def option_classes() -> list[type[Options]]:
    """Return all classes of options; loads every module of this package."""
    from nsqtools.config import (  # noqa: F401 - each adds its classes to the list
        admin,
        bench,
        connection,
        consuming,
        files,
        http,
        lake,
        option,
        program,
        publishing,
        queue,
        records,
        redrive,
        relay,
        sandbox,
        stats,
        ui,
    )

    return option.CLASSES
