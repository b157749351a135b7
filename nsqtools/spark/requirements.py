"""Checks of Spark's requirements on this machine, without starting or importing them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from nsqtools.errors import ConfigError

OLDEST_PYSPARK = (4, 2)
"""The first version with admission control for Python sources (SPARK-55304)."""
OLDEST_JAVA = 17
_PACKAGES = ("pyspark", "pyarrow", "javaproperties")


def require_spark() -> None:
    """Raise ConfigError, with the command to run, if a package or Java is missing."""
    require_pyspark()
    _require_java()
    _require_same_spark()


def require_pyspark() -> None:
    """Raise ConfigError, with the command to run, if a package is missing or too old."""
    wanted = [name for name in _PACKAGES if find_spec(name) is None]
    install = f"{sys.executable} -m pip install 'nsqtools[spark]'"
    if wanted:
        verb = "are" if len(wanted) > 1 else "is"
        raise ConfigError(f"{' and '.join(wanted)} {verb} not installed: run {install}")
    version = metadata.version("pyspark")
    if tuple(map(int, version.split(".")[:2])) < OLDEST_PYSPARK:
        raise ConfigError(f"pyspark {version} is too old: run {install}")


def _require_java() -> None:
    """Look for Java as ``spark-class`` does: in JAVA_HOME if set, else on PATH."""
    home = os.environ.get("JAVA_HOME", "")
    found = shutil.which(Path(home, "bin", "java") if home else "java")
    install = f"sudo apt-get install openjdk-{OLDEST_JAVA}-jre-headless"
    if not found:
        where = f"JAVA_HOME {home} has no bin/java" if home else "PATH has no java"
        raise ConfigError(f"Spark needs Java {OLDEST_JAVA} or later, but {where}: run {install}")
    # Reading this file is faster than running `java -version`.
    with contextlib.suppress(OSError):
        release = Path(found).resolve().parents[1].joinpath("release").read_text()
        version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
        if version and int(version[1]) < OLDEST_JAVA:
            raise ConfigError(
                f"Spark needs Java {OLDEST_JAVA} or later, but {found} is Java {version[1]}: run "
                f"{install}, or set JAVA_HOME"
            )


def _require_same_spark() -> None:
    """Raise ConfigError if SPARK_HOME, which replaces pyspark's JVM part, is another version."""
    home, version = os.environ.get("SPARK_HOME", ""), metadata.version("pyspark")
    for jar in Path(home, "jars").glob("spark-core_*.jar") if home else ():
        other = jar.stem.partition("-core_")[2].partition("-")[2]
        if other != version:
            raise ConfigError(
                f"SPARK_HOME {home} is Spark {other}, but pyspark is {version}: unset SPARK_HOME, "
                f"or install pyspark=={other}"
            )
