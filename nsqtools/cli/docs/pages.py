"""The pages of commands, from the click tree, and of guides, from their text."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import click

from nsqtools.cli.docs import guide_summaries, guides, sections
from nsqtools.cli.docs.blocks import (
    Heading,
    ItemList,
    ListItem,
    Page,
    Paragraph,
    Span,
    Verbatim,
    paragraphs,
    parse,
    plain,
)
from nsqtools.cli.exits import Exit
from nsqtools.cli.options import DeclaredFlag, by_section
from nsqtools.cli.resolver import variables
from nsqtools.cli.tree import CommandNode, CommandOption, command_options, contexts
from nsqtools.config.option import NO_LIMIT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from nsqtools.cli.docs.blocks import Block, Spans

_EXIT_STATUS = "Exit status"
_SEE_ALSO = "See also"


def command_page(node: CommandNode, nodes: Sequence[CommandNode]) -> Page:
    """The page of a command; ``nodes`` are all commands, for cross references."""
    texts = dict(getattr(node.command, "notes", {}) if node.ctx.parent else sections("program"))
    notes = {title: parse(text) for title, text in texts.items() if title}
    about_exits = notes.pop(_EXIT_STATUS, [])
    return Page(
        node.page,
        1,
        node.summary,
        {
            "Synopsis": [_synopsis(node)],
            "Description": paragraphs(node.help),
            "Commands": _commands(node, nodes),
            "Arguments": _arguments(node),
            "Options": _options(node),
            "Signals": notes.pop("Signals", []),
            **notes,
            "Environment": _environment(node, notes),
            _EXIT_STATUS: [*_exits(node), *about_exits],
            "Examples": list(_examples(node, nodes)),
            _SEE_ALSO: [_see_also(node, nodes)],
        },
    )


def page(root: click.Context, topic: Sequence[str]) -> Page | None:
    """The page of a guide, the exit codes, or the command with these words; None if unknown."""
    topic = topic[topic[:1] == ["nsqtools"] :]
    name = " ".join(topic)
    if name in guides():
        return guide_page(name)
    if name == "exit-codes":
        return Page("nsqtools", 1, "Exit codes of all commands", {_EXIT_STATUS: _exit_codes()})
    nodes = [CommandNode(each) for each in contexts(root)]
    path = " ".join(["nsqtools", *topic])
    return next((command_page(each, nodes) for each in nodes if each.command_path == path), None)


def guide_page(name: str) -> Page:
    """The page of a guide, ``nsqtools-NAME(7)``; for the file format ``nsqtools.toml(5)``."""
    page, number = ("nsqtools.toml", 5) if name == "toml" else (f"nsqtools-{name}", 7)
    texts = sections(name, "guides")
    summary = guide_summaries()[name].removesuffix(".")
    found = {title: parse(text) for title, text in texts.items() if title}
    return Page(page, number, summary, found)


def _synopsis(node: CommandNode) -> Paragraph:
    spans = [Span(node.command_path, "code"), Span(" ["), Span("OPTION", "value"), Span(" ...]")]
    if isinstance(node.command, click.Group):
        spans += [Span(" "), Span("COMMAND", "value")]
        spans += [Span(" ["), Span("ARGUMENT", "value"), Span(" ...]")]
    for each in node.arguments:
        metavar = each.make_metavar(node.ctx)
        dots = " ..." if metavar.endswith("...") else ""
        before, after = ("", dots) if each.required else ("[", f"{dots}]")
        spans += [Span(f" {before}"), *_values(metavar), Span(after)]
    return Paragraph(tuple(span for span in spans if span.text))


def _values(metavar: str) -> Spans:
    """The value NAME for ``[NAME]...``, or for ``[a|b]`` the words to type."""
    metavar = metavar.removesuffix("...")
    if metavar[:1] in "[{" and metavar[-1:] in "]}":
        metavar = metavar[1:-1]
    choices = [choice for choice in metavar.split("|") if choice]
    if len(choices) == 1:
        return (Span(metavar, "value"),)
    spans: list[Span] = []
    for choice in choices:
        spans += [*([Span("|")] if spans else []), Span(choice, "code")]
    return tuple(spans)


def _commands(node: CommandNode, nodes: Sequence[CommandNode]) -> list[Block]:
    below = [each for each in nodes if each.ctx.parent is node.ctx]
    titles = dict.fromkeys(each.section for each in below)
    blocks: list[Block] = []
    for title in titles:
        blocks += [Heading(title)] if len(titles) > 1 else []
        entries = (
            ListItem((Span(f"{each.page}(1)"),), (plain(f"{each.summary}."),))
            for each in below
            if each.section == title
        )
        blocks.append(ItemList(tuple(entries)))
    return blocks


def _arguments(node: CommandNode) -> list[Block]:
    entries = (
        ListItem(_values(each.make_metavar(node.ctx)), (plain(str(getattr(each, "help", ""))),))
        for each in node.arguments
    )
    return _listed(entries)


def _listed(entries: Any) -> list[Block]:
    found = tuple(entries)
    return [ItemList(found)] if found else []


def _options(node: CommandNode) -> list[Block]:
    """The notation of values, flags under the headings of help, then options without a flag."""
    found = by_section(node.options)
    blocks = _units(node)
    for title, options in found.items():
        blocks += [Heading(title)] if len(found) > 1 else []
        blocks += _listed(ListItem(_flags(each, node.ctx), _described(each)) for each in options)
    return [*blocks, *_without_flags(node)]


def _without_flags(node: CommandNode) -> list[Block]:
    """Options without a flag. Where relay's two sides differ, each side has its own title.

    An option with the same declaration in two classes is listed once.
    """
    found: dict[Any, CommandOption] = {}
    for each in command_options(node.groups):
        if not each.declared.flag and each.declared.is_listed:
            found.setdefault((each.name, each.declared), each)
    times = Counter(each.name for each in found.values())
    titles: dict[str, list[CommandOption]] = {}
    for each in found.values():
        whose = f"{each.section} without" if times[each.name] > 1 else "Options without"
        titles.setdefault(f"{whose} a flag", []).append(each)
    blocks: list[Block] = []
    for number, (title, options) in enumerate(titles.items()):
        blocks += [Heading(title), *([] if number else [_about_flagless(node)])]
        blocks += _listed(ListItem(_flagless(each), _option(each)) for each in options)
    return blocks


def _units(node: CommandNode) -> list[Block]:
    known = [each for each in node.options if isinstance(each, DeclaredFlag)]
    kinds = {each.command_option.declared.kind for each in known}
    text = "--no-OPTION turns off what --OPTION turns on. " if "flag" in kinds else ""
    if "duration" in kinds:
        text += "A DURATION is written 500ms, 30s or 1h30m. "
    if "size" in kinds:
        text += "A SIZE is written 65536, 64KiB or 5MB. "
    if any(each.command_option.default_text.endswith(NO_LIMIT) for each in known):
        text += "0 sets no limit where the default is no limit. "
    return [plain(text)] if text else []


def _flags(option: click.Option, ctx: click.Context) -> Spans:
    """The short name first, and the value."""
    spans: list[Span] = []
    names = option.listed_names if isinstance(option, DeclaredFlag) else option.opts
    for name in (*sorted(names, key=len), *option.secondary_opts):
        spans += [*([Span(", ")] if spans else []), Span(name, "code")]
    if option.is_flag or option.count:
        return tuple(spans)
    return (*spans, Span(" "), *_values(option.make_metavar(ctx)))


def _flagless(option: CommandOption) -> Spans:
    flag = option.declared.kind == "flag"
    return (
        Span(option.name, "code"),
        Span(" "),
        *_values("true|false" if flag else option.declared.placeholder),
    )


def _about_flagless(node: CommandNode) -> Paragraph:
    takers = [f"--{cls.opt_flag}" for cls in node.groups.values() if cls.opt_flag]
    by = f"{' or '.join(takers)}, by " if takers else ""
    text = f"These are set by {by}an environment variable or the configuration file."
    if len(takers) > 1:
        text += " The latter two apply to both sides."
    return plain(text)


def _described(option: click.Option) -> tuple[Block, ...]:
    if isinstance(option, DeclaredFlag):
        return _option(option.command_option)
    return (plain(option.help or ""),)


def _option(option: CommandOption) -> tuple[Block, ...]:
    """Help, then a line with default, range, and exceptions to the rule of variables and keys."""
    declared, default = option.declared, option.default_text
    spans: list[Span] = []
    if declared.required and not declared.instead:
        spans.append(Span("Required. "))
    if default:
        shown = Span(default, "prose" if declared.default_note else "code")
        spans += [Span("Default: "), shown, Span(". ")]
    rest = f"Range: {option.range_text}. " if option.range_text else ""
    rest += "Shared. " if option.shared else ""
    rest += "Not in the configuration file." if not declared.in_file else ""
    spans.append(Span(rest))
    if not any(each.text for each in spans):
        return (plain(declared.help),)
    return (plain(declared.help), Paragraph(tuple(each for each in spans if each.text)))


def _environment(node: CommandNode, notes: dict[str, list[Block]]) -> list[Block]:
    """The rule for variables and keys; on the page of nsqtools, all other variables."""
    if not node.ctx.parent:
        return notes["Environment"]
    known = [each.command_option for each in node.options if isinstance(each, DeclaredFlag)]
    if not known:
        return []
    example = min(known, key=lambda each: (not each.declared.in_file, each.shared))
    own = variables(node.ctx, example.name, shared=False)[0]
    return [
        plain(
            f"The variable of --{example.key} is {own}, and its key is {example.key} in the table "
            f"[{node.table}] of nsqtools.toml(5); all other options follow this rule. A shared "
            "option also has a variable without the command's name, and is allowed in [defaults]. "
            "nsqtools(1) describes the format of variables, and other variables."
        )
    ]


def _exits(node: CommandNode) -> list[Block]:
    """The table of codes on the page of nsqtools, and a reference to it on other pages."""
    if node.ctx.parent:
        return [plain("nsqtools(1) lists the codes.")]
    return _exit_codes()


def _exit_codes() -> list[Block]:
    """The table of codes."""
    return _listed(
        ListItem((Span(str(int(code)), "code"),), (plain(code.meaning),)) for code in Exit
    )


def _examples(node: CommandNode, nodes: Sequence[CommandNode]) -> Sequence[Block]:
    """The command's examples, or for a group the first example of each of its commands."""
    shown = list(node.examples)
    for child in (each for each in nodes if each.ctx.parent is node.ctx):
        below = [
            each for each in nodes if f"{each.command_path} ".startswith(f"{child.command_path} ")
        ]
        shown += next(([each.examples[0]] for each in below if each.examples), [])
    return [
        block for sentence, line in shown for block in (plain(f"{sentence}:"), Verbatim((line,)))
    ]


def _see_also(node: CommandNode, nodes: Sequence[CommandNode]) -> Paragraph:
    related = {each.page for each in nodes if _related(node, each) or _related(each, node)}
    pages = [f"{name}(1)" for name in sorted(related - {node.page})]
    return plain(", ".join([*pages, "nsqtools.toml(5)"]))


def _related(node: CommandNode, other: CommandNode) -> bool:
    """Whether the other command is below this command, in its section, or named in its text."""
    if other.ctx.parent is node.ctx:
        return True
    if not other.ctx.parent:
        return False
    if node.ctx.parent and node.ctx.parent is other.ctx.parent and node.section == other.section:
        return True
    texts = [node.help, *(line for _, line in node.examples)]
    return any(re.search(rf"\b{re.escape(other.command_path)}\b(?! [a-z])", text) for text in texts)
