"""Which properties a session starts with, and whose value of a property counts."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest

from nsqtools.errors import ConfigError
from nsqtools.spark.properties import (
    check_variables,
    default_master,
    is_local,
    properties,
    refuse_speculative_task,
)

S3A = "spark.hadoop.fs.s3a."
ZONE = "spark.sql.session.timeZone"


@pytest.fixture(autouse=True)
def conf_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of Spark; nothing else gives properties."""
    for name in ("ENDPOINT_URL", "ENDPOINT_URL_S3", "REGION", "DEFAULT_REGION"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("master", "given", "local", "loopback"),
    [
        ("local", "local[1,4]", True, True),
        ("local[*]", "local[*,4]", True, True),
        ("local[2,1]", "local[2,1]", True, True),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]", False, False),
        ("spark://127.0.0.1:7077", "spark://127.0.0.1:7077", False, True),
        ("spark://10.0.0.1:7077", "spark://10.0.0.1:7077", False, False),
        ("yarn", "yarn", False, False),
    ],
)
def test_a_local_master_tries_tasks_as_often_as_a_cluster_and_has_ports_on_loopback_alone(
    master: str, given: str, local: bool, loopback: bool
) -> None:
    found = properties(master, {})
    assert found["spark.master"] == given
    assert ("spark.driver.bindAddress" in found) is loopback
    assert is_local(master) is local


def test_the_master_is_that_of_the_submission_then_of_the_file_then_this_machine(
    conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("'", "--master", "--conf"):  # which Spark will refuse
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", text)
        assert default_master() == "local[*]"
    (conf_dir / "spark-defaults.conf").write_text("# a comment\n\nspark.master   yarn\n")
    assert default_master() == "yarn"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf 'spark.master=local[7]' pyspark-shell")
    assert default_master() == "local[7]"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--name n --master spark://h:7077 pyspark-shell")
    assert default_master() == "spark://h:7077"


def test_defaults_yield_to_what_the_session_inherits_and_that_is_not_repeated(
    conf_dir: Path,
) -> None:
    assert properties("yarn", {})[ZONE] == "UTC"
    lines = [f"{ZONE}=Asia/Tokyo", f"{S3A}secret.key: s3cret", f"{S3A}endpoint.region\teu-west-1"]
    (conf_dir / "spark-defaults.conf").write_text("\n".join(lines))
    found = properties("yarn", {})
    assert ZONE not in found
    assert "s3cret" not in found.values()
    assert properties("yarn", {ZONE: "Europe/Rome"})[ZONE] == "Europe/Rome"


def test_s3a_is_told_what_the_variables_of_aws_say_unless_a_property_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def s3a(**conf: str) -> dict[str, str]:
        given = {S3A + name: value for name, value in conf.items()}
        found = properties("yarn", given).items()
        return {name.removeprefix(S3A): value for name, value in found if name.startswith(S3A)}

    chain = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
    assert s3a() == {"aws.credentials.provider": chain}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    assert s3a() == {}
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert s3a() == {"endpoint.region": "eu-west-1"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://any:9000")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://minio:9000")
    assert s3a() == {
        "endpoint": "http://minio:9000",
        "endpoint.region": "eu-west-1",
        "path.style.access": "true",
    }
    assert s3a(endpoint="http://other")["endpoint"] == "http://other"
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert s3a()["endpoint.region"] == "us-east-1"  # S3A has no default for an endpoint


def test_access_to_s3_by_properties_alone_is_refused_where_nsqtools_needs_it(
    conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [f"{S3A}endpoint=http://minio:9000"]
    check_variables(given, ["/lake", "hdfs://n/lake"])
    with pytest.raises(ConfigError, match=r"s3a\.endpoint is set, but AWS_ENDPOINT_URL is not"):
        check_variables(given, ["/lake", "s3a://b/lake"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    check_variables(given, ["s3://b/lake"])
    (conf_dir / "spark-defaults.conf").write_text(f"{S3A}secret.key s3cret\n")
    with pytest.raises(ConfigError, match="AWS_SECRET_ACCESS_KEY") as refused:
        check_variables(given, ["s3://b/lake"])
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(("value", "refused"), [("true", True), ("false", False), (None, False)])
def test_a_task_of_a_session_with_speculation_refuses_to_begin(
    value: str | None, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has registered the format, or nobody."""
    context = SimpleNamespace(getLocalProperty={"spark.speculation": value}.get)
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: context)
    with pytest.raises(ConfigError) if refused else nullcontext():
        refuse_speculative_task()
