"""The commands of ``pipeline`` within the process of the tests, with the session that they share.

All but the start of Spark is as in a process of their own.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from nsqtools.cli import cli
from nsqtools.cli.exits import run
from tests.support.eventually import eventually
from tests.support.spark import START

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession


class Pipelines:
    """Runs commands in ``folder``, with no configuration file and no ``NSQTOOLS_*`` variables.

    Nothing is registered in their session but what they register themselves.
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        self._captured = capfd

        @contextmanager
        def opened(*_: object, **__: object) -> Iterator[SparkSession]:
            session = spark.newSession()
            session.createDataFrame([], "n INT")  # which makes it the one of this thread
            yield session

        monkeypatch.setattr("nsqtools.cli.commands.pipeline.run.open_session", opened)
        for name in [name for name in os.environ if name.startswith("NSQTOOLS_")]:
            monkeypatch.delenv(name)
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            monkeypatch.setenv(name, str(folder / "no-such"))
        monkeypatch.chdir(folder)

    def __call__(self, *args: str, until: Callable[[], object] | None = None) -> str:
        """What it prints; it succeeds and says nothing else.

        SIGTERM ends it once ``until`` holds.
        """
        ended = threading.Event()

        def stop() -> None:
            with suppress(AssertionError):
                eventually(lambda: ended.is_set() or (until and until()), START)
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

        stopper = threading.Thread(target=stop)
        if until:
            stopper.start()
        try:
            code = run(cli, ("pipeline", *args))
        finally:
            ended.set()
            if until:
                stopper.join()
        printed, said = self._captured.readouterr()
        assert (code, said) == (0, ""), (code, said, args)
        return printed
