"""Judges servers: whether they answer, know each other, and accept the consumer."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nsqtools.config.units import counted, enumerated
from nsqtools.engine.doctor.findings import fault, passed
from nsqtools.errors import AuthError, RefusedError
from nsqtools.names import LOOKUPD_HTTP_PORT, NSQD_HTTP_PORT, NSQD_TCP_PORT, Address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqtools.engine.doctor.facts import Facts, LookupdFacts, NsqdFacts
    from nsqtools.engine.doctor.findings import Finding
    from nsqtools.net.http.replies import ChannelStats, NsqdStats, TopicStats

_SKEW = 5.0
"""Seconds by which a clock may be off; the Date header has whole seconds."""

_SOON = 30 * 86400.0
"""Seconds before the end of a certificate at which it should be renewed."""

_MANY, _NEARLY_ALL = 1000, 0.9  # waiting messages of a cluster, and the part of one nsqd
_GROWN = 1000  # messages more on a disk after MOMENT

_SECRET = "--auth-secret-file FILE"  # noqa: S105 - the name of an option
_CA = "unless a CA of this system signed its certificate"
_HANDSHAKE = (
    "correct the address, or the options of TLS: --tls-root-ca-file, --tls-cert, --tls-min-version"
)


def judge_lookupds(facts: Facts) -> Iterator[Finding]:
    """Judge whether each nsqlookupd answers, and whether its address is right."""
    alone = all(each.error for each in facts.lookupds)
    for each in facts.lookupds:
        name = f"nsqlookupd {each.address}"
        if each.error is None:
            yield passed("nsqlookupd", f"{name} answers{_version(each.version)}")
            continue
        wrong = _wrong_lookupd_port(each)
        text = f"{name} {wrong[0]}" if wrong else f"nsqlookupd {each.error}"
        fix = "start it, or give the address of one that runs"
        if each.error.reason == "tls":
            fix = _HANDSHAKE
        if wrong:
            fix = wrong[1]
        yield fault("NSQ001", text, fix, error=alone, server=each.address)


def _wrong_lookupd_port(each: LookupdFacts) -> tuple[str, str] | None:
    host = each.address.host
    usual = f"--lookupd-http-address {Address(host, LOOKUPD_HTTP_PORT)}"
    if each.is_nsqd:
        fix = f"give the HTTP port of an nsqlookupd, as in {usual}, or use --nsqd-tcp-address"
        return "is the HTTP port of an nsqd", fix
    match each.speaks:
        case "nsqlookupd":
            return "is its TCP port, which is for nsqds", f"give its HTTP port, as in {usual}"
        case "nsqd":
            return "is the TCP port of an nsqd", f"use --nsqd-tcp-address {each.address}"
        case "tls" if each.error and each.error.reason != "tls":
            return "requires TLS", f"use --lookupd-http-address https://{each.address}"
    return None


def judge_clocks(facts: Facts) -> Iterator[Finding]:
    """Judge whether the servers' clocks agree with this host's; nsqd sets messages' timestamps."""
    clocks = [("nsqlookupd", str(each.address), each.skew) for each in facts.lookupds]
    clocks += [("nsqd", each.name, each.skew) for each in facts.nsqds]
    skews = [(kind, name, skew) for kind, name, skew in clocks if skew is not None]
    wrong = [each for each in skews if abs(each[2]) > _SKEW]
    for kind, name, skew in wrong:
        how = "ahead of" if skew > 0 else "behind"
        off = f"{abs(skew):.0f} s {how} this host's"
        text = f"the clock of {kind} {name} is {off}, and so are timestamps"
        yield fault("NSQ011", text, "synchronise the clocks of both hosts", server=name)
    if skews and not wrong:
        yield passed("clock", f"clocks agree: {counted(len(skews), 'server')}")


def judge_nsqds(facts: Facts) -> Iterator[Finding]:
    """Judge whether each nsqd answers over TCP and HTTP, and accepts the consumer."""
    for nsqd in facts.concerned:
        if nsqd.tcp is not None:
            yield _judge_tcp(facts, nsqd, nsqd.tcp)
        if (codec := facts.compression) and nsqd.features and not getattr(nsqd.features, codec):
            text = f"nsqd {nsqd.name} does not offer --{codec}: the connection is not compressed"
            yield fault("NSQ009", text, f"start that nsqd with --{codec}", server=nsqd.name)
        yield from _judge_http(nsqd)


def judge_versions(facts: Facts) -> Iterator[Finding]:
    """Judge whether all servers run one version."""
    servers: dict[str, list[str]] = {}
    for lookupd in facts.lookupds:
        servers.setdefault(lookupd.version, []).append(f"nsqlookupd {lookupd.address}")
    for nsqd in facts.concerned:
        servers.setdefault(nsqd.version, []).append(f"nsqd {nsqd.name}")
    servers.pop("", None)  # of silent servers
    if len(servers) > 1:
        each = (f"{version} ({enumerated(servers[version])})" for version in sorted(servers))
        text = f"servers run different versions: {', '.join(each)}"
        versions = " ".join(sorted(servers))
        yield fault("NSQ010", text, "upgrade all to one version", subject=versions)


def judge_health(facts: Facts) -> Iterator[Finding]:
    """Judge whether nsqds could write to their disks; nsqd's health is its last error there."""
    for nsqd in facts.concerned:
        if nsqd.stats and nsqd.stats.health not in ("", "OK"):
            text = f"nsqd {nsqd.name} is unhealthy: {nsqd.stats.health}"
            yield fault("NSQ004", text, "see its log, and the space on its disk", server=nsqd.name)


def judge_tls(facts: Facts) -> Iterator[Finding]:
    """Judge whether all nsqds offer TLS or none, and whether their certificates last."""
    offering = [nsqd.name for nsqd in facts.nsqds if nsqd.offers_tls]
    lacking = [nsqd.name for nsqd in facts.nsqds if nsqd.offers_tls is False]
    if offering and lacking:
        offer = "offers" if len(offering) == 1 else "offer"
        do = "does" if len(lacking) == 1 else "do"
        text = f"nsqd {enumerated(offering)} {offer} TLS, and nsqd {enumerated(lacking)} {do} not"
        yield fault("NSQ006", text, "start all nsqds with --tls-cert and --tls-key")
    for nsqd in facts.nsqds:
        if nsqd.expiry and nsqd.expiry < facts.at + _SOON:
            day = datetime.fromtimestamp(nsqd.expiry, UTC).strftime("%Y-%m-%d")
            verb = "expires" if nsqd.expiry > facts.at else "has expired"
            text = f"the certificate of nsqd {nsqd.name} {verb} on {day}"
            yield fault("NSQ007", text, "renew it, and restart that nsqd", server=nsqd.name)


def judge_balance(facts: Facts) -> Iterator[Finding]:
    """Judge whether the messages of a whole cluster wait on one nsqd, and grow on a disk."""
    depths = [(nsqd, *_waiting(nsqd.stats)) for nsqd in facts.nsqds if nsqd.stats]
    total = sum(depth for _, depth, _ in depths)
    for nsqd, depth, disk in depths:
        if len(depths) > 1 and total >= _MANY and depth >= _NEARLY_ALL * total:
            text = f"nsqd {nsqd.name} has {depth} of {total} messages waiting on all nsqds"
            fix = (
                "see why its consumers lag or miss it, and whether all publishers use only it: "
                f"{facts.command('stats', '--once', '--clients', nsqds=(nsqd,))}"
            )
            yield fault("NSQ050", text, fix, server=nsqd.name)
        grown = _waiting(nsqd.later_stats)[1] - disk
        if grown >= _GROWN:
            text = f"the messages on the disk of nsqd {nsqd.name} grew by {grown} to {disk + grown}"
            fix = "see the space on its disk, and start more consumers"
            yield fault("NSQ051", text, fix, server=nsqd.name)


def _waiting(stats: NsqdStats | None) -> tuple[int, int]:
    """Return the number of waiting messages of an nsqd, and of those on its disk."""
    parts: list[TopicStats | ChannelStats] = []
    for topic in stats.topics if stats else ():
        parts += (topic, *topic.channels)
    return sum(each.depth for each in parts), sum(each.backend_depth for each in parts)


def _judge_tcp(facts: Facts, nsqd: NsqdFacts, tcp: Address) -> Finding:
    if nsqd.needs_tls:
        fix = f"add --tls-v1, and --tls-root-ca-file FILE {_CA}"
        return fault("NSQ005", f"nsqd {tcp} requires TLS", fix, server=tcp)
    if nsqd.tcp_error is None:
        return passed("tcp", f"nsqd {tcp} answers{_version(nsqd.version)}")
    error = nsqd.tcp_error
    if isinstance(error, AuthError):
        return _judge_auth(facts, tcp, error)
    if wrong := _wrong_tcp_port(nsqd, tcp):
        return fault("NSQ002", f"nsqd {tcp} {wrong[0]}", wrong[1], server=tcp)
    if error.reason == "name":
        return _unresolved(nsqd, tcp)
    if isinstance(error, RefusedError) and not error.reason:
        fix = "change the option that nsqd refuses"
        return fault("NSQ002", f"nsqd {error}", fix, server=tcp)
    if error.reason == "tls":
        fix = _HANDSHAKE
        if "does not offer TLS" in error.text:
            fix = "start it with --tls-cert and --tls-key, or leave --tls-v1 out"
        return fault("NSQ005", f"nsqd {error}", fix, server=tcp)
    if nsqd.producer and not nsqd.given and not nsqd.is_there:
        return fault("NSQ024", f"nsqd {error}, and nsqlookupd lists it", _start(nsqd), server=tcp)
    return fault("NSQ002", f"nsqd {error}", _start(nsqd), server=tcp)


def _judge_auth(facts: Facts, tcp: Address, error: AuthError) -> Finding:
    if facts.has_secret:
        knows = "accepts for this topic" if "E_UNAUTHORIZED" in error.text else "knows"
        fix = (
            f"give {_SECRET} with a secret that its AUTH server {knows} (nsqd --auth-http-address)"
        )
        return fault("NSQ008", f"nsqd {tcp}: {error.text}", fix, server=tcp)
    return fault("NSQ008", f"nsqd {tcp} requires AUTH", f"add {_SECRET}", server=tcp)


def _wrong_tcp_port(nsqd: NsqdFacts, tcp: Address) -> tuple[str, str] | None:
    if nsqd.is_lookupd:
        fix = _broadcast(nsqd) or f"use --lookupd-http-address {tcp}"
        return "is the HTTP port of an nsqlookupd", fix
    if nsqd.tcp_speaks == "http":
        fix = f"give its TCP port, {NSQD_TCP_PORT} by default"
        if nsqd.tcp_port:
            fix = f"use --nsqd-tcp-address {nsqd.right_tcp}"
        return "is its HTTP port", _broadcast(nsqd) or fix
    if nsqd.tcp_speaks == "nsqlookupd":
        usual = Address(tcp.host, LOOKUPD_HTTP_PORT)
        fix = _broadcast(nsqd) or f"use --lookupd-http-address {usual}"
        return "is the TCP port of an nsqlookupd", fix
    return None


def _broadcast(nsqd: NsqdFacts) -> str:
    """Return the advice to restart a listed nsqd with options; empty for a given nsqd."""
    if nsqd.given or not nsqd.producer:
        return ""
    options = f"--broadcast-tcp-port={nsqd.tcp_port or 'PORT'}"
    if nsqd.tcp and nsqd.http == nsqd.tcp:  # its HTTP API is at its listed TCP address
        options += f" --broadcast-http-port={nsqd.tcp.port}"
    return f"start that nsqd with {options}"


def _unresolved(nsqd: NsqdFacts, tcp: Address) -> Finding:
    text = f"nsqd {tcp}: cannot resolve {tcp.host!r}"
    if nsqd.given or not nsqd.producer:
        return fault("NSQ002", text, "check the name", server=tcp)
    came = nsqd.producer.remote_address
    text += f", its broadcast address{f'; it registered from {came}' if came else ''}"
    fix = "start that nsqd with a --broadcast-address=ADDRESS that consumers can reach"
    return fault("NSQ002", text, fix, server=tcp)


def _start(nsqd: NsqdFacts) -> str:
    if nsqd.http_error and "--timeout" in nsqd.http_error.text:
        return "give more time with --timeout"
    if nsqd.http_error and nsqd.http_error.reason == "tls":
        return _HANDSHAKE
    if nsqd.given or not nsqd.producer:
        return "start it, or give the address of one that runs"
    return "start it; if it runs, check its --broadcast-address, and firewalls on the way"


def _judge_http(nsqd: NsqdFacts) -> Iterator[Finding]:
    """Judge whether the HTTP API of an nsqd answers, unless TCP has shown that nsqd does not."""
    error = nsqd.http_error
    if error is None:
        return
    unknown = "its depths, pauses and consumers are unknown"
    name = f"nsqd {nsqd.http}"
    if error.code == "TLS_REQUIRED":
        _, _, https = error.text.rpartition(" ")
        fix = f"use --nsqd-http-address {https}"
        yield fault("NSQ003", f"{name} answers only over HTTPS: {unknown}", fix, server=nsqd.name)
    elif nsqd.http_speaks == "nsqd":
        usual = Address(nsqd.http.host, NSQD_HTTP_PORT)
        fix = f"give its HTTP port, as in --nsqd-http-address {usual}"
        if nsqd.producer and nsqd.producer.http == nsqd.http:
            fix = "start that nsqd with --broadcast-http-port=PORT, the port of its HTTP API"
        yield fault(
            "NSQ003",
            f"{name} is its TCP port, not its HTTP port",
            fix,
            error=True,
            server=nsqd.name,
        )
    elif nsqd.http_speaks == "tls" and error.reason != "tls":
        fix = f"use --nsqd-http-address https://{nsqd.http}"
        yield fault("NSQ003", f"{name} requires TLS: {unknown}", fix, server=nsqd.name)
    elif nsqd.answers:
        fix = "give the address of its HTTP API with --nsqd-http-address"
        if error.reason == "tls":
            fix = _HANDSHAKE
        yield fault("NSQ003", f"nsqd {error}: {unknown}", fix, server=nsqd.name)
    elif nsqd.tcp is None:
        yield fault("NSQ003", f"nsqd {error}", _start(nsqd), error=True, server=nsqd.name)


def judge_capacity(facts: Facts) -> Iterator[Finding]:
    """Judge whether --max-in-flight suffices for all nsqds, and whether each allows its RDY."""
    asked = facts.max_in_flight
    peers = [nsqd for nsqd in facts.concerned if nsqd.features]
    if asked == 0:
        text = "--max-in-flight is 0: no message is received"
        yield fault("NSQ012", text, "give --max-in-flight 1 or more", error=True)
    elif asked < len(peers):
        text = f"--max-in-flight {asked} is less than the {len(peers)} nsqds: they take turns"
        yield fault("NSQ012", text, f"give --max-in-flight {len(peers)} or more")
    for nsqd in peers:
        assert nsqd.features
        max_rdy = nsqd.features.max_rdy_count
        if max_rdy < asked // len(peers):
            text = (
                f"nsqd {nsqd.name} allows RDY {max_rdy} at most, less than its share of "
                f"--max-in-flight {asked}"
            )
            fix = (
                f"give --max-in-flight {max_rdy * len(peers)}, or start nsqd with "
                f"--max-rdy-count {asked}"
            )
            yield fault("NSQ012", text, fix, server=nsqd.name)


def _version(version: str) -> str:
    return f", version {version}" if version else ""
