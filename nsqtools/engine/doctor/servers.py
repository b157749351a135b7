"""Judges servers: whether they answer, know each other, and accept the consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqtools.config.units import counted, nearest
from nsqtools.engine.doctor.findings import fault, passed
from nsqtools.errors import AuthError, RefusedError
from nsqtools.names import LOOKUPD_HTTP_PORT, NSQD_HTTP_PORT, NSQD_TCP_PORT, Address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqtools.engine.doctor.facts import Facts, LookupdFacts, NsqdFacts
    from nsqtools.engine.doctor.findings import Finding

_SKEW = 5.0
"""Seconds by which a clock may be off; the Date header has whole seconds."""

_SECRET = "--auth-secret-file FILE"  # noqa: S105 - the name of an option
_CA = "unless a CA of this system signed its certificate"


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
        fix = wrong[1] if wrong else "start it, or give the address of one that runs"
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
        case "tls":
            return "requires TLS", f"use --lookupd-http-address https://{each.address}"
    return None


def judge_clocks(facts: Facts) -> Iterator[Finding]:
    """Judge whether the servers' clocks agree with this host's; nsqd sets messages' timestamps."""
    skews = [(f"nsqlookupd {each.address}", each.skew) for each in facts.lookupds if not each.error]
    skews += [(f"nsqd {each.name}", each.skew) for each in facts.nsqds if not each.http_error]
    wrong = [(name, skew) for name, skew in skews if abs(skew) > _SKEW]
    for name, skew in wrong:
        how = "ahead of" if skew > 0 else "behind"
        text = f"the clock of {name} is {abs(skew):.0f} s {how} this host's, and so are timestamps"
        yield fault("NSQ011", text, "synchronise the clocks of both hosts", server=name)
    if skews and not wrong:
        yield passed("clock", f"clocks agree: {counted(len(skews), 'server')}")


def judge_listing(facts: Facts) -> Iterator[Finding]:
    """Judge whether nsqlookupds return all nsqds with the topic."""
    answering = [each for each in facts.lookupds if not each.error]
    if not answering:
        return
    having = [nsqd for nsqd, _ in facts.having()]
    lost = False  # whether nsqds of the topic are registered with unusable addresses
    for each in answering:
        for text, is_of_topic in each.left_out.items():
            lost = lost or is_of_topic
            fix = "start that nsqd with --broadcast-address=HOST and ports that consumers can reach"
            text = f"nsqlookupd {each.address} lists a server with an unusable address: {text}"
            yield fault("NSQ020", text, fix, error=is_of_topic, server=each.address)
    if facts.found:
        names = ", ".join(sorted(map(str, facts.found)))
        text = (
            f"nsqlookupd lists topic {facts.topic} on {counted(len(facts.found), 'nsqd')}: {names}"
        )
        yield passed("listing", text)
    elif not lost and not having and not any(map(facts.hidden_by, facts.nsqds)):
        yield _unlisted(facts, answering)
    for nsqd in facts.nsqds:
        yield from _judge_tombstones(facts, nsqd, answering)
    for nsqd in facts.nsqds:
        if nsqd.tcp in facts.found and nsqd.topic is None and not nsqd.http_error:
            text = (
                f"nsqlookupd lists topic {facts.topic} at {nsqd.tcp}, but that nsqd does not "
                "have it"
            )
            fix = "check --broadcast-address and the ports of the nsqd that has the topic"
            yield fault("NSQ025", text, fix, error=True, topic=facts.topic, server=nsqd.name)
    for nsqd in having:
        if nsqd.tcp not in facts.found and not facts.hidden_by(nsqd):
            text = f"nsqd {nsqd.name} has topic {facts.topic}, but no nsqlookupd lists it there"
            fix = (
                "restart that nsqd: it then registers its topics with nsqlookupd"
                if nsqd.producer
                else "start that nsqd with --lookupd-tcp-address for each nsqlookupd"
            )
            yield fault("NSQ026", text, fix, topic=facts.topic, server=nsqd.name)
    for each in answering:
        missing = facts.found - {producer.tcp for producer in each.producers}
        hidden = {nsqd.tcp for nsqd in facts.nsqds if each in facts.hidden_by(nsqd)}
        if missing - hidden:
            names = ", ".join(sorted(map(str, missing - hidden)))
            text = f"nsqlookupd {each.address} does not list topic {facts.topic} on {names}"
            fix = "start those nsqds with --lookupd-tcp-address for it too"
            yield fault("NSQ023", text, fix, topic=facts.topic, server=each.address)


def _unlisted(facts: Facts, answering: list[LookupdFacts]) -> Finding:
    topic = facts.topic
    if not any(each.nodes for each in answering):
        answering_only = "" if len(answering) == len(facts.lookupds) else " that answers"
        text = f"no nsqd is registered with any nsqlookupd{answering_only}"
        fix = "start nsqd with --lookupd-tcp-address for each nsqlookupd"
        return fault("NSQ021", text, fix)
    if any(topic in each.topics for each in answering):
        text = f"nsqlookupd knows topic {topic}, but no nsqd has it"
        fix = f"start the nsqd that had it, or publish, which creates it: {facts.publish()}"
        return fault("NSQ025", text, fix, error=True, topic=topic)
    near = nearest(topic, sorted(facts.known_topics - {topic}))
    text = f"no nsqlookupd lists topic {topic}{near}"
    fix = (
        "check the name, or publish to it; if its nsqd runs without --lookupd-tcp-address, give "
        f"its --nsqd-http-address; this lists all topics: {facts.command('lookup', 'topics')}"
    )
    return fault("NSQ028", text, fix, topic=topic)


def _judge_tombstones(
    facts: Facts, nsqd: NsqdFacts, answering: list[LookupdFacts]
) -> Iterator[Finding]:
    by = facts.hidden_by(nsqd)
    if not by:
        return
    everywhere = nsqd.tcp not in facts.found
    who = "all nsqlookupds" if len(by) == len(answering) else ", ".join(str(b.address) for b in by)
    text = f"topic {facts.topic} of nsqd {nsqd.name} is tombstoned at {who}"
    if everywhere:
        text += ": consumers do not find it"
    fix = "wait until it expires, after 45 s or nsqlookupd's --tombstone-lifetime"
    yield fault("NSQ027", text, fix, error=everywhere, topic=facts.topic, server=nsqd.name)


def judge_nsqds(facts: Facts) -> Iterator[Finding]:
    """Judge whether each nsqd answers over TCP and HTTP, and accepts the consumer."""
    for nsqd in facts.concerned:
        if nsqd.tcp is not None:
            yield _judge_tcp(facts, nsqd, nsqd.tcp)
        if (codec := facts.compression) and nsqd.features and not getattr(nsqd.features, codec):
            text = f"nsqd {nsqd.name} does not offer --{codec}: the connection is not compressed"
            yield fault("NSQ009", text, f"start that nsqd with --{codec}", server=nsqd.name)
        yield from _judge_http(nsqd)
    versions = sorted({nsqd.version for nsqd in facts.concerned if nsqd.version})
    if len(versions) > 1:
        text = f"nsqds run different versions: {', '.join(versions)}"
        yield fault("NSQ010", text, "upgrade all to one version")


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
        return fault("NSQ005", f"nsqd {error}", "", server=tcp)
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
    if nsqd.given or not nsqd.producer:
        return "start it, or give the address of one that runs"
    return "start it; if it runs, check its --broadcast-address, and firewalls on the way"


def _judge_http(nsqd: NsqdFacts) -> Iterator[Finding]:
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
    elif nsqd.http_speaks == "tls":
        fix = f"use --nsqd-http-address https://{nsqd.http}"
        yield fault("NSQ003", f"{name} requires TLS: {unknown}", fix, server=nsqd.name)
    elif nsqd.answers:
        fix = "give the address of its HTTP API with --nsqd-http-address"
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
