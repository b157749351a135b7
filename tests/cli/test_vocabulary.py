"""The vocabulary of options: a name means the same in all commands."""

from collections import defaultdict

from nsqtools.cli import cli
from nsqtools.cli.tree import CommandOption, command_options, walk

SERVER = ("sandbox",)
"""Commands with options of nsqd itself, under nsqd's names."""

STREAM = "tail and queue cat print this format, pub and queue push read it"
OBJECT = "the object of the command: consumed, published to, reported or examined"
EXCEPTIONS = {
    "batch": "to-http puts messages in a request, bench in a command of nsqd",
    "channel": OBJECT,
    "check": "a plugin's check of thresholds, or of a pipeline before it starts",
    "compress": "to-file compresses files, to-http bodies of requests",
    "count": "stats counts reports, as nsq_stat does; all others count messages",
    "dead_letter_dir": "to-http and relay write it, ui reads it",
    "decode": "tail prints the JSON, relay applies rules to it, ui shows it, Spark adds a column",
    "delimiter": STREAM,
    "dry_run": "redrive receives messages to make its plan, which costs them an attempt",
    "format": "records of archives have few formats, tail has a template, Spark has its own",
    "http_client_request_timeout": "nsq_to_http and nsq_stat have this name; to-http includes "
    "the connecting",
    "interval": "stats repeats reports, ui asks servers",
    "json": STREAM,
    "length_prefix": STREAM,
    "max_in_flight": "Spark counts per nsqd, topic and task instead of per topic",
    "max_msg_size": "consumers refuse a larger message, queue calls it damage, pub follows nsqd",
    "nsqd_http_address": "its purpose: depths, the topic of a bench, or the query itself",
    "null": STREAM,
    "older_than": "channel trim judges messages, pipeline compact files",
    "rate": "to-http counts requests, which may hold many messages",
    "since": "queue cat has times of messages, pipeline compact hours of files",
    "staging": "pipeline replay stages its selection, other pipelines what they receive",
    "status_every": "to-http counts requests, relay messages",
    "timeout": "stats and prune repeat their queries, and channel trim continues after its search",
    "topic": OBJECT,
    "topic_pattern": OBJECT,
    "until": "as --since",
    "where": "tail, relay and redrive have jq for JSON in a stream, Spark has SQL",
}


def _declarations() -> dict[str, list[tuple[str, CommandOption]]]:
    found = defaultdict(list)
    for node in walk(cli):
        if not node.command_path.endswith(SERVER):
            for each in command_options(node.groups):
                found[each.name].append((node.command_path, each))
    return found


def test_an_option_has_the_same_kind_placeholder_and_help_in_all_commands() -> None:
    different = {
        name
        for name, uses in _declarations().items()
        if len({(o.declared.kind, o.declared.placeholder, o.declared.help) for _, o in uses}) > 1
    }
    assert different == EXCEPTIONS.keys()


def test_a_number_without_effect_is_said_in_the_same_few_words() -> None:
    notes = {
        each.declared.default_note
        for uses in _declarations().values()
        for _, each in uses
        if each.declared.kind in ("integer", "number", "duration", "size")
    }
    known = ("no limit", "all", "never", "not checked", "0s, nsqd's own default")
    assert {note for note in notes if not note.endswith(known)} == {
        "",
        "never, but at the end with --until-empty",
        "10s, or no limit with --count",
    }
    helps = [each.declared.help for uses in _declarations().values() for _, each in uses]
    assert not [text for text in helps if "no limit" in text]


def test_no_help_lists_what_is_there_for_old_scripts() -> None:
    for node in walk(cli):
        shown = node.command.get_help(node.ctx)
        for each in command_options(node.groups):
            if not each.declared.is_listed and each.declared.flag:
                assert f"--{each.key} " not in shown
            for word in each.declared.other_choices:
                assert word not in shown
