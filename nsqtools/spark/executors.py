"""Installation of this package on the executors of a cluster, and checks of executors.

pyspark is imported inside functions: executors import this module before they are checked.
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsqtools import __version__
from nsqtools.errors import ConfigError, NSQError
from nsqtools.records.compression import method_of
from nsqtools.spark.properties import is_local
from nsqtools.spark.sparksession import explain
from nsqtools.stores.places import in_object_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

_PACKAGE = Path(__file__).parents[1]
_STAYS = ("cli", "sandbox")
"""Parts not needed by executors."""

_ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"

_INSTALLED_BY = {"google.protobuf": "protobuf", "snappy": "python-snappy"}
"""Package names by module, where the two names differ."""


def ship(spark: SparkSession) -> None:
    """Send executors a zip of the driver's copy of this package, to import instead of their own.

    Does nothing with a local master. The driver keeps using its installed package.
    """
    if is_local(spark.sparkContext.master or ""):
        return
    from pyspark import SparkFiles

    # Executors fetch the zip throughout the session. Spark removes this directory at the end.
    folder = Path(SparkFiles.getRootDirectory(), "nsqtools")
    folder.mkdir(exist_ok=True)
    archive = make_zip(folder / f"nsqtools-{__version__}.zip")
    path = sys.path.copy()
    spark.sparkContext.addPyFile(str(archive))
    sys.path[:] = path


def make_zip(target: Path) -> Path:
    """Write the package as a zip for executors to import."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(_PACKAGE.rglob("*.py")):
            inside = file.relative_to(_PACKAGE)
            if inside.parts[0] not in _STAYS:
                archive.write(file, Path(_PACKAGE.name, inside))
    return target


def check_executors(spark: SparkSession, packages: Iterable[str] = ("pyarrow",)) -> None:
    """Raise ConfigError unless executors have the driver's Python and the packages.

    ``packages`` are names of modules. Checks all current executors. A local master runs the
    driver's own Python, so nothing is checked.
    """
    context = spark.sparkContext
    if is_local(context.master or ""):
        return
    count = max(context.defaultParallelism, 1)
    try:
        found = context.parallelize(range(count), count).mapPartitions(_probe(packages)).collect()
    except Exception as error:
        raise _diagnosed(explain(error), context.pythonExec) from error
    for host, python, lacking, version in found:
        if lacking:
            names = " ".join(_INSTALLED_BY.get(name, name) for name in lacking)
            raise ConfigError(
                f"executor {host} lacks {', '.join(lacking)}: run {python} -m pip install {names} "
                "there, or choose another Python with --conf spark.pyspark.python=PATH"
            )
        if version != __version__:
            raise ConfigError(
                f"executor {host} imports nsqtools {version}, but the driver has {__version__}: "
                "remove nsqtools there"
            )


def packages_of(*connections: Mapping[str, str], places: Iterable[str] = ()) -> Sequence[str]:
    """Return the modules needed by executors.

    ``connections`` are the options of their sources and sinks, ``places`` the locations of their
    files.
    """
    found = ["pyarrow"]
    if any("nsq.snappy" in options for options in connections):
        found.append("snappy")
    return found + _clients_of(places)


def readers_of(paths: Iterable[str]) -> Sequence[str]:
    """Return the modules, besides pyarrow, needed by executors to read these record files."""
    paths = list(paths)
    found = [_ZSTD] if any(method_of(path) == "zstd" for path in paths) else []
    return found + _clients_of(paths)


def _clients_of(places: Iterable[str]) -> list[str]:
    return ["opendal"] if any(map(in_object_store, places)) else []


def _probe(packages: Iterable[str]) -> Callable[[Iterable[int]], Iterator[Sequence[Any]]]:
    """Return the function to run on executors.

    Spark sends a nested function as code; it would send any other by name.
    """
    wanted = tuple(packages)

    def probe(_: Iterable[int]) -> Iterator[Sequence[Any]]:
        import importlib
        import sys
        from socket import gethostname

        lacking = []
        for name in wanted:
            try:
                importlib.import_module(name)
            except ImportError:
                lacking.append(name)
        from nsqtools import __version__ as version

        yield gethostname(), sys.executable, lacking, version

    return probe


def _diagnosed(error: NSQError, python: str) -> ConfigError:
    """Return an error with instructions for an error of the check itself."""
    text = str(error)
    name = "choose it with --conf spark.pyspark.python=PATH"
    if "PYTHON_VERSION_MISMATCH" in text:
        theirs, ours = [*re.findall(r"\d+\.\d+", text), "another", "the same"][:2]
        return ConfigError(
            f"executors run Python {theirs}, but the driver runs {ours}: install {ours} there "
            f"and {name}"
        )
    if "Cannot run program" in text:
        return ConfigError(f"executors have no {python}: install it there, or {name}")
    return ConfigError(f"executors: {text}")
