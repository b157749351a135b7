"""Variables with our prefix that nobody has set for us."""

import pytest

from nsqtools.cli import cli, environment
from nsqtools.cli.resolver import is_set
from nsqtools.cli.tree import contexts
from tests.support.process import Called


def service_links(name: str) -> dict[str, str]:
    """What a kubelet sets for a Service with two ports (pkg/kubelet/envvars)."""
    prefix, host = name.replace("-", "_").upper(), "10.96.0.7"
    found = {f"{prefix}_SERVICE_HOST": host, f"{prefix}_SERVICE_PORT": "4150"}
    found[f"{prefix}_PORT"] = f"tcp://{host}:4150"
    for port, protocol, named in ((4150, "tcp", "nsqd"), (4151, "udp", "")):
        if named:
            found[f"{prefix}_SERVICE_PORT_{named.upper()}"] = str(port)
        link = f"{prefix}_PORT_{port}_{protocol.upper()}"
        found[link] = f"{protocol}://{host}:{port}"
        found |= {f"{link}_PROTO": protocol, f"{link}_PORT": str(port), f"{link}_ADDR": host}
    return found


@pytest.mark.parametrize("command", ["sandbox", "tail"])
@pytest.mark.parametrize("service", ["nsqtools", "nsqtools-sandbox", "nsqtools-tail", "nsqtools-x"])
def test_the_variables_of_kubernetes_services_set_no_option_and_cause_no_warning(
    service: str, command: str, nsqtools: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = nsqtools("config", "show", command)
    for name, text in service_links(service).items():
        monkeypatch.setenv(name, text)
    assert nsqtools("config", "show", command) == usual
    assert (usual[0], usual[2]) == (0, "")


def test_no_variable_of_an_option_is_taken_for_that_of_a_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with cli.make_context("nsqtools", [], resilient_parsing=True) as root:
        names = environment._variables_of(contexts(root))
    assert "NSQTOOLS_SANDBOX_PORT" in names
    for name in names:
        monkeypatch.setenv(name, "4150")
        assert is_set(name)
