"""Archives as the options of ``to-file`` describe them."""

from __future__ import annotations

import logging
import os
import re
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError
from nsqtools.policy.filenames import NamePattern
from nsqtools.policy.matcher import NameMatcher
from nsqtools.policy.retention import Retention
from nsqtools.records.compression import METHODS, make_encoder
from nsqtools.records.layout import Layout
from nsqtools.sinks.files.aftercare import Care
from nsqtools.sinks.files.hooks import Hook
from nsqtools.sinks.files.journal import Journal
from nsqtools.sinks.files.listing import find
from nsqtools.sinks.files.manifest import LatestLink, Manifest
from nsqtools.sinks.files.rules import Rules
from nsqtools.sinks.files.sink import FileSink
from nsqtools.sinks.files.store import Archives

if TYPE_CHECKING:
    from nsqtools.config import ArchiveOptions, ArchiveSourceOptions, ConsumerConfig

log = logging.getLogger(__name__)


def file_sink(
    source: ArchiveSourceOptions, options: ArchiveOptions, config: ConsumerConfig
) -> FileSink:
    """The sink that archives these topics; raises ConfigError, having touched nothing."""
    rules = _rules(options, config.max_msg_size)
    several = bool(source.topic_pattern) or len(set(source.topic)) > 1
    _check_topics(source, options, several)
    rules.rotation()
    topics = re.compile(source.topic_pattern) if source.topic_pattern else source.topic
    matcher = NameMatcher(rules.pattern, hostname=rules.hostname, topics=topics)
    journal = Journal(rules.output_dir, rules.host)
    hook = None
    if options.on_rotate:
        hook = Hook(options.on_rotate, timeout=options.on_rotate_timeout)
    care = Care(
        manifest=Manifest(_beside(rules, options.manifest)) if options.manifest else None,
        link=partial(_latest_link, rules, options.latest_link) if options.latest_link else None,
        retention=Retention(
            keep=options.keep, max_age=options.max_age, max_total=options.max_total
        ),
        hook=hook,
        journal=journal,
        found=partial(find, rules.output_dir, matcher),
    )
    archives = Archives(
        rules,
        matcher.accepts,
        journal,
        care,
        hook=hook,
        lock_file=os.path.abspath(options.lock) if options.lock else "",
        wait_lock=options.wait_lock,
    )
    return FileSink(
        archives,
        window=config.max_in_flight,
        sync_interval=options.sync_interval,
        fail_fast=options.fail_fast,
    )


def _rules(options: ArchiveOptions, max_msg_size: int) -> Rules:
    from socket import gethostname

    output_dir = os.path.abspath(options.output_dir)
    work_dir = os.path.abspath(options.work_dir) if options.work_dir else output_dir
    compression = options.compression
    level = {"gzip": options.gzip_level, "zstd": options.zstd_level}.get(compression)
    make_encoder(compression, level)  # its library may be missing
    return Rules(
        output_dir=output_dir,
        work_dir=work_dir,
        pattern=NamePattern(
            filename_format=options.filename_format,
            datetime_format=options.datetime_format,
            host_identifier=options.host_identifier,
            suffix=METHODS[compression].suffix,
            repeated_by=_repeated_by(options, same_place=work_dir == output_dir),
        ),
        hostname=gethostname(),
        pid=os.getpid(),
        zone=UTC if options.utc else None,
        layout=Layout.parse(options.format, options.delimiter),
        delimiter_text=options.delimiter if options.format == "raw" else "",
        compression=compression,
        level=level,
        by_message=options.name_by == "message",
        max_open_files=options.max_open_files,
        close_idle=options.close_idle,
        skip_empty=options.skip_empty_files,
        empty_after=options.sync_interval,
        rotate_size=options.rotate_size,
        rotate_compressed_size=options.rotate_compressed_size,
        rotate_interval=options.rotate_interval,
        rotate_boundary=options.rotate_boundary,
        digest=bool(options.manifest),
        max_msg_size=max_msg_size,
    )


def _repeated_by(options: ArchiveOptions, *, same_place: bool) -> str:
    """The flag because of which several files may have one name, if there is one."""
    if options.compression != "none":
        return "--gzip" if options.gzip else "--compress"
    for flag, given in (
        ("--rotate-size", options.rotate_size),
        ("--rotate-compressed-size", options.rotate_compressed_size),
        ("--rotate-interval", options.rotate_interval),
        ("--rotate-boundary", options.rotate_boundary),
        ("--name-by message", options.name_by == "message"),
        ("--work-dir", not same_place),
    ):
        if given:
            return flag
    return ""


def _check_topics(source: ArchiveSourceOptions, options: ArchiveOptions, several: bool) -> None:
    for unknown in set(re.findall("<[^<>/]*>", options.latest_link)) - {"<TOPIC>"}:
        raise ConfigError(f"--latest-link: unknown token {unknown}; there is <TOPIC>")
    if not several:
        return
    if "<TOPIC>" not in options.filename_format:
        limits = options.keep or options.max_age or options.max_total
        if limits or "<REV>" not in options.filename_format:
            raise ConfigError(
                f"--filename-format {options.filename_format!r}: the files of several topics "
                f"{'could not be told apart' if limits else 'would have one name'}: add <TOPIC>"
            )
    if options.latest_link and "<TOPIC>" not in options.latest_link:
        raise ConfigError(
            f"--latest-link {options.latest_link}: several topics have a newest file each: "
            "add <TOPIC>"
        )


def _beside(rules: Rules, path: str) -> str:
    """A path that is relative to the output directory."""
    return os.path.join(rules.output_dir, path)


def _latest_link(rules: Rules, path: str, topic: str) -> LatestLink:
    return LatestLink(_beside(rules, path.replace("<TOPIC>", topic)))
