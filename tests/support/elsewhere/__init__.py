"""The tests on another day, in another zone, on another host."""

import os
import random
import runpy
import time
from datetime import datetime, timedelta

_SETTINGS = "TZ", "TESTS_HOST", "PYTHONHASHSEED"
_ZONES = (
    *("UTC", "Europe/Berlin", "America/St_Johns", "America/Sao_Paulo", "Asia/Kathmandu"),
    *("Australia/Lord_Howe", "Pacific/Kiritimati", "Pacific/Pago_Pago"),
)


def go(date: str, seed: int) -> str:
    """Set the clock of this process and of those that it starts; return when and where they are.

    A date without an offset is that of the local zone. ``any`` draws one of 2001 to 2100, half of
    them close to the end of a day, and a zone, a host name, a umask, and a hash seed, which is for
    the processes started.
    """
    if date == "any":
        rng = random.Random(seed)
        day = datetime(2001, 1, 1) + timedelta(days=rng.randrange(100 * 365))
        date = (day - timedelta(seconds=rng.choice([20, rng.randrange(86_400)]))).isoformat()
        os.environ["TZ"] = rng.choice(_ZONES)
        os.environ["TESTS_HOST"] = rng.choice(["a", "Host-1.example.com", "x" * 63])
        os.environ["PYTHONHASHSEED"] = str(rng.randrange(2**32))
        os.umask(rng.choice([0, 0o022, 0o077]))
        time.tzset()
    os.umask(umask := os.umask(0))
    ahead = int(datetime.fromisoformat(date).timestamp() * 10**9) - time.time_ns()
    os.environ["TESTS_AHEAD_NS"] = str(ahead)
    folder = os.path.dirname(__file__)
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{path}" if path else folder
    runpy.run_path(f"{folder}/sitecustomize.py")
    found = " ".join(f"{name}={os.environ[name]}" for name in _SETTINGS if name in os.environ)
    return f"{date} umask={umask:03o} {found}"
