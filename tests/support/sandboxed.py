"""One server of the sandbox as a process of its own, with the flags of the real program.

``python -m tests.support.sandboxed nsqd -tcp-address=127.0.0.1:4150 ...``; SIGTERM ends it. Flags
that are about disks, logs and HTTPS are taken and mean nothing.
"""

import asyncio
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from nsqtools.config.option import flag_name
from nsqtools.config.sandbox import NsqdOptions
from nsqtools.config.units import parse_duration
from nsqtools.names import Address
from nsqtools.sandbox.lookupd import Nsqlookupd
from nsqtools.sandbox.nsqd import Nsqd

OUT_OF_SCOPE = {
    "authd": "the sandbox knows one secret and asks no auth server",
    "nsqd-tcp-go": "numbers and JSON as Go reads them, names as it quotes them, cut commands",
}
"""Why fixtures, tests and dialogues want the real nsqd, by their names."""

WITHOUT_MEANING = ("log-level", "data-path", "https-address")
WHERE = ("tcp-address", "http-address", "lookupd-tcp-address", "broadcast-address")
LOOKUPD = ("inactive-producer-timeout", "tombstone-lifetime")


def split_flags(args: Iterable[str], known: Sequence[str]) -> dict[str, list[str]]:
    """Values of each flag, by its name; exits as Go does for one that is not known."""
    found: dict[str, list[str]] = {}
    for arg in args:
        name, equals, value = arg.lstrip("-").partition("=")
        if name not in known:
            print(f"flag provided but not defined: -{name}", file=sys.stderr)
            sys.exit(2)
        found.setdefault(name, []).append(value if equals else "true")
    return found


async def start(program: str, args: Sequence[str]) -> None:
    declared = NsqdOptions.declared()
    own = [*map(flag_name, declared)] if program == "nsqd" else LOOKUPD
    flags = split_flags(args, (*WITHOUT_MEANING, *WHERE, *own))
    tcp, http = (Address.parse(flags[f"{kind}-address"][-1]) for kind in ("tcp", "http"))
    values = {name: flags[flag_name(name)][-1] for name in declared if flag_name(name) in flags}
    where: dict[str, Any] = {"broadcast_address": flags["broadcast-address"][-1]}
    if program == "nsqd":
        nsqd = Nsqd(NsqdOptions(**{name: declared[name].parse(values[name]) for name in values}))
        lookupds = [Address.parse(each) for each in flags.get("lookupd-tcp-address", ())]
        await nsqd.start(tcp.host, tcp.port, http.port, lookupd_tcp_addresses=lookupds, **where)
    else:
        periods = {name: parse_duration(flags[name][-1]) for name in LOOKUPD if name in flags}
        where |= {name.replace("-", "_"): seconds for name, seconds in periods.items()}
        await Nsqlookupd(**where).start(tcp.host, tcp.port, http.port)


async def main(program: str, args: Sequence[str]) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    try:
        await start(program, args)
    except OSError as error:
        sys.exit(f"{error.filename}: {str(error.strerror).lower()}")
    print(f"{program}: listening on all ports", flush=True)
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
