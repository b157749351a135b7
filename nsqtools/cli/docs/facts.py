"""What manual pages and the starting file say about options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from nsqtools.cli.options import ConfigOption
from nsqtools.config.option import flag_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    import click

    from nsqtools.cli.tree import Node


class Facts(NamedTuple):
    """Of one option; empty where there is nothing to say."""

    help: str
    default: str = ""
    is_phrase: bool = False
    """Whether the default is a phrase, not a value."""
    range: str = ""
    required: bool = False


def about(option: click.Option) -> Facts:
    """The facts of an option; of one of click's own the help."""
    if not isinstance(option, ConfigOption):
        return Facts(option.help or "")
    declared = option.declared
    return Facts(
        declared.help,
        option.default_text,
        bool(declared.default_note),
        option.range_text,
        declared.required,
    )


def flagless(node: Node) -> list[ConfigOption]:
    """Options that only variables, --consumer-opt and its like, and the file can set.

    One that means the same in two classes is there once.
    """
    found: dict[Any, ConfigOption] = {}
    for cls, presets in node.groups:
        for name, declared in cls.declared().items():
            if not declared.flag:
                preset = cls.default(name, presets)
                option = ConfigOption(
                    [name, f"--{flag_name(name)}"],
                    declared=declared,
                    section=cls.title,
                    shared=cls.shares(declared),
                    preset=preset,
                )
                found.setdefault((name, declared, preset), option)
    return list(found.values())


def keys(node: Node) -> dict[str, ConfigOption]:
    """What may stand in the table of a command, by parameter."""
    flags = [each for each in node.options if isinstance(each, ConfigOption)]
    found: dict[str, ConfigOption] = {}
    for each in (*flags, *flagless(node)):
        if each.declared.in_file:
            found.setdefault(each.name, each)
    return found


def common_keys(nodes: Iterable[Node]) -> dict[str, ConfigOption]:
    """Keys of [defaults] that mean the same, with the same default, for all commands."""
    found: dict[str, list[ConfigOption]] = {}
    for node in nodes:
        for name, each in keys(node).items():
            if each.shared:
                found.setdefault(name, []).append(each)
    return {
        name: options[0]
        for name, options in found.items()
        if all((o.declared, o.preset) == (options[0].declared, options[0].preset) for o in options)
    }
