"""MinIO on loopback, an object store with the interface of S3."""

import http.client
import re
import subprocess
from pathlib import Path
from typing import Self

import httpx
from pyarrow import fs

import nsqtools
from tests.support.binaries import needs_minio
from tests.support.eventually import eventually
from tests.support.killing import Place
from tests.support.servers import free_port
from tests.support.spark import needs_artifact

USER, PASSWORD = "minioadmin", "minioadmin"

MANUAL = Path(nsqtools.__file__).with_name("cli") / "docs/guides/clusters.md"


class Minio:
    """One server; a context manager. It keeps its port and its objects over ``kill``."""

    def __init__(self, folder: Path, tests: str) -> None:
        self._program = needs_minio(tests)
        self._folder = folder
        self._buckets = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs."""
        return {
            "AWS_ACCESS_KEY_ID": USER,
            "AWS_SECRET_ACCESS_KEY": PASSWORD,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
        }

    def bucket(self) -> str:
        """Make a bucket; return its URL."""
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        (self._folder / "data" / name).mkdir(parents=True)
        return f"s3a://{name}"

    def place(self) -> Place:
        """A directory in a new bucket, that Spark can reach too."""
        url = f"{self.bucket()}/lake"
        server = f"127.0.0.1:{self.port}"
        keys = {"access_key": USER, "secret_key": PASSWORD, "region": "us-east-1"}
        reader = fs.S3FileSystem(**keys, scheme="http", endpoint_override=server)
        conf = properties_of_s3a("a pipeline on s3a")
        return Place(url, url.removeprefix("s3a://"), reader, self.environment, conf)

    def start(self) -> None:
        data = self._folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [self._program, "server", "--quiet", f"--address=127.0.0.1:{self.port}", data],
                env={
                    "MINIO_ROOT_USER": USER,
                    "MINIO_ROOT_PASSWORD": PASSWORD,
                    "MINIO_PROMETHEUS_AUTH_TYPE": "public",
                    "HOME": str(data),
                },
                stdout=log,
                stderr=log,
            )
        eventually(self._is_up)

    def _is_up(self) -> bool:
        if not self._process or self._process.poll() is not None:
            raise RuntimeError((self._folder / "log").read_text())
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/minio/health/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def requests(self) -> int:
        """The number of requests so far, by its own count."""
        url = f"http://127.0.0.1:{self.port}/minio/metrics/v3/api/requests"
        found = re.findall(
            r'^minio_api_requests_total\{.*type="s3".*\} (\S+)$', httpx.get(url).text, re.MULTILINE
        )
        return round(sum(map(float, found)))

    def kill(self) -> None:
        """As kill -9 does."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def properties_of_s3a(tests: str) -> list[str]:
    """Properties that let Spark use s3a, as the manual has them, or else the test ends here.

    Spark downloads what they name from Maven Central, and keeps it.
    """
    found = re.findall(r'"(spark\.jars\..+)"', MANUAL.read_text())
    assert found, MANUAL
    (hadoop,) = re.findall(r"org\.apache\.hadoop:hadoop-aws:[\d.]+", found[0])
    needs_artifact(hadoop, tests)
    return found
