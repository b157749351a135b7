"""A home for Spark whose Python processes import pyspark as it was installed, compiled.

Java puts ``$SPARK_HOME/python/lib/pyspark.zip`` before all else on the path of each Python process
it starts (PythonUtils.scala), one for each query and one for all workers, and these compile what
they import from a zip anew: half a second each. The home here has all but that zip.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sysconfig
from importlib.util import find_spec
from pathlib import Path

_PARTS = ("bin", "conf", "jars")
_PLAIN = re.compile(r"/[\w./+-]+", re.ASCII)
"""A path that neither Spark's scripts, nor a class path, nor Java's locale can stumble on."""


def compiled_home() -> str | None:
    """The path of such a home, made of links in the user's cache; None where there is none.

    It is for workers that are this Python. Its path is the same each time, as archives of classes
    (AppCDS) are only good for jars of the names they were recorded with.
    """
    spec = find_spec("pyspark")
    if "SPARK_HOME" in os.environ or not (spec and spec.origin):
        return None
    home = Path(spec.origin).parent
    if home.parent != Path(sysconfig.get_path("purelib")):
        return None  # perhaps no other process of this Python would find it
    with contextlib.suppress(OSError, RuntimeError):
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        name = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
        made = cache / "nsqtools" / f"spark-{name}"
        if _PLAIN.fullmatch(str(made)) and _link(home, made):
            return str(made)
    return None


def _link(home: Path, made: Path) -> bool:
    """Whether it is as it is to be, and nobody else's, who could have Java run what he likes."""
    made.mkdir(parents=True, exist_ok=True)
    for part in _PARTS:
        with contextlib.suppress(FileExistsError):
            (made / part).symlink_to(home / part)
        if os.readlink(made / part) != str(home / part):
            return False
    return made.stat().st_uid == os.getuid() and (made / "bin" / "spark-submit").is_file()
