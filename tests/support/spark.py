"""What tests of Spark need besides Spark itself, and what becomes of them where it is missing."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.support import binaries

if TYPE_CHECKING:
    from collections.abc import Iterable

PACKAGES = ("pyspark", "pyarrow")

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Options of Java for JVMs that live for seconds: they start in three quarters of the time."""


def needs_spark(tests: str) -> None:
    """Return where pyspark, pyarrow and Java are, or else the test ends here."""
    for package in PACKAGES:
        if find_spec(package) is None:
            binaries.give_up(package, tests, f"no package {package}", "TOOLS")
    binaries.needs("java", tests)


class SparkModule(pytest.Module):
    """A file of tests that is skipped, or fails, whole where a package of Spark is missing."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            cause = error.__cause__
            package = ((getattr(cause, "name", None) or "").split("."))[0]
            if isinstance(cause, ModuleNotFoundError) and package in PACKAGES:
                binaries.give_up(package, self.path.name, f"no package {package}", "TOOLS")
            raise
