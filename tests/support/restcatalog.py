"""REST catalogs of Iceberg on loopback: those with which Iceberg tests clients of its protocol."""

from pathlib import Path
from typing import Any, Self

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tests.support.binaries import needs_iceberg
from tests.support.spark import QUICK_JVM, needs_spark


class RestCatalogs:
    """A JVM for catalogs that forget their tables when it ends; a context manager."""

    def __init__(self, tests: str) -> None:
        needs_spark(tests)
        self._classpath = needs_iceberg(tests)

    def serve(self, warehouse: Path) -> str:
        """Serve a new catalog, whose tables are in a directory; return its URL."""
        java: Any = self._gateway.jvm
        properties = {
            "warehouse": f"file://{warehouse}",
            "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
        }
        catalog = java.org.apache.iceberg.CatalogUtil.loadCatalog(
            "org.apache.iceberg.inmemory.InMemoryCatalog",
            *("tests", properties, java.org.apache.hadoop.conf.Configuration()),
        )
        rest, jetty = java.org.apache.iceberg.rest, java.org.eclipse.jetty
        servlet = rest.RESTCatalogServlet(rest.RESTCatalogAdapter(catalog))
        handler = jetty.servlet.ServletContextHandler()
        handler.addServlet(jetty.servlet.ServletHolder(servlet), "/*")
        server = jetty.server.Server(java.java.net.InetSocketAddress("127.0.0.1", 0))
        server.setHandler(handler)
        server.start()
        return f"http://127.0.0.1:{server.getConnectors()[0].getLocalPort()}"

    def __enter__(self) -> Self:
        port, token, self._process = launch_gateway(
            classpath=self._classpath,
            javaopts=QUICK_JVM.split(),
            enable_auth=True,
            die_on_exit=True,
            return_proc=True,
        )
        parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True)
        self._gateway = JavaGateway(gateway_parameters=parameters)
        return self

    def __exit__(self, *_: object) -> None:
        self._gateway.close()
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()  # py4j closes its stdout, in a thread
