"""The guides are true: recipes and snippets run and print what stands there."""

import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
import yaml
from click.testing import CliRunner

from nsqtools.cli import cli
from nsqtools.cli.docs import guides, sections
from nsqtools.cli.docs.pages import guide_page
from nsqtools.cli.docs.terminal import rendered
from tests.support.examples import Stage, shown
from tests.support.webserver import WebServer


@pytest.mark.parametrize("name", guides())
def test_a_guide_is_wrapped_at_the_width_of_the_terminal_and_what_is_typed_is_left(
    name: str,
) -> None:
    page = guide_page(name)
    narrow, wide = (rendered(page, width) for width in (60, 100))
    typed = [line for line in narrow.splitlines() if line[:4] == "    "]
    assert typed == [line for line in wide.splitlines() if line[:4] == "    "]
    for text, width in ((narrow, 60), (wide, 100)):
        assert max(len(line) for line in text.splitlines() if line[:4] != "    ") <= width
    assert narrow.count("\n") > wide.count("\n")
    assert narrow.split() == wide.split()


def steps(recipe: str) -> Iterator[tuple[str, str]]:
    """Each line that is typed, with what it prints."""
    for block in shown(recipe):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, printed = step.partition("\n")
            yield line, printed.rstrip("\n")


def test_the_recipes_print_what_they_say_from_top_to_bottom(
    stage: Stage, endpoint: WebServer
) -> None:
    real = {
        "127.0.0.1:4150": str(stage.nsqd.tcp),
        "127.0.0.1:4151": str(stage.nsqd.http),
        "127.0.0.1:4161": str(stage.lookupd.http),
        "127.0.0.1:8080": endpoint.url("").removeprefix("http://"),
    }
    recipes = sections("cookbook", "guides")
    for title, (line, expected) in (
        (title, step) for title, text in recipes.items() for step in steps(text)
    ):
        typed, pattern = line, ".*".join(map(re.escape, expected.split("...")))
        for written, address in real.items():
            typed = typed.replace(written, address)
            pattern = pattern.replace(re.escape(written), re.escape(address))
        printed = stage.shell(typed)
        assert re.fullmatch(pattern, printed.rstrip("\n"), re.DOTALL), (title, line, printed)


_MANIFESTS = [
    manifest
    for block in shown(sections("deployment", "guides")["Kubernetes"])
    if (manifest := yaml.safe_load(block))
]


@pytest.mark.parametrize("manifest", _MANIFESTS, ids=lambda found: found["kind"])
def test_a_manifest_keeps_to_the_schema_of_kubernetes(manifest: dict[str, Any]) -> None:
    assert list(violations(model(manifest), manifest, manifest["kind"])) == []
    labels = manifest["spec"]["template"]["metadata"]["labels"]
    assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    shown = CliRunner().invoke(cli, ["config", "show", *container["args"]])
    assert shown.exit_code == 0, shown.output
    volumes = [each["name"] for each in manifest["spec"]["template"]["spec"].get("volumes", [])]
    volumes += [c["metadata"]["name"] for c in manifest["spec"].get("volumeClaimTemplates", [])]
    assert sorted(each["name"] for each in container.get("volumeMounts", [])) == sorted(volumes)
    ports = {each["name"] for each in container["ports"]}
    probes = [container[name] for name in container if name.endswith("Probe")]
    assert {probe["httpGet"]["port"] for probe in probes} <= ports


def model(manifest: dict[str, Any]) -> Any:
    """The dataclass of a kind. Its package has all of the schema, and no need of its client."""
    schema: Any = ModuleType("lightkube.core.schema")
    schema.DictMixin, schema.field, schema.dataclass = object, field, dataclass
    for stub in (ModuleType("lightkube.core"), schema):
        sys.modules.setdefault(stub.__name__, stub)
    module = import_module(f"lightkube.models.{manifest['apiVersion'].replace('/', '_')}")
    return getattr(module, manifest["kind"])


def violations(wanted: Any, found: Any, where: str) -> Iterator[str]:
    """What a value has that its type in the schema of Kubernetes has not, and the reverse."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is Union:
        if all(list(violations(each, found, where)) for each in inner):
            yield f"{where}: not one of {inner}"
    elif origin is list and isinstance(found, list):
        for number, each in enumerate(found):
            yield from violations(inner[0], each, f"{where}[{number}]")
    elif is_dataclass(wanted) and isinstance(found, dict):
        types, known = get_type_hints(wanted), {each.name: each for each in fields(wanted)}
        yield from (f"{where}.{name}: unknown" for name in found.keys() - known.keys())
        for name, each in known.items():
            if name in found:
                yield from violations(types[name], found[name], f"{where}.{name}")
            elif each.default is MISSING and each.default_factory is MISSING:
                yield f"{where}.{name}: missing"
    elif type(found) is not (origin or wanted):
        yield f"{where}: {found!r} is no {wanted}"
