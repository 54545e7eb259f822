"""An S3 server in a thread, with faults: lost responses, slow parts, stale lists, refusals."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs

import pytest
from pyarrow import fs

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "made",
    "AWS_SECRET_ACCESS_KEY": "made",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_DEFAULT_REGION": "us-east-1",
}
BUCKET = "bucket"
Environ = dict[str, Any]


class Faults:
    """Faults of the server; each is a predicate over method and path of a request."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = app
        self.requests: list[tuple[str, str]] = []
        self.clear()

    def clear(self) -> None:
        self.loses: Callable[[str, str], bool] = lambda method, path: False
        """Whether a request takes effect, and its response is lost."""
        self.refuses: Callable[[str, str], bool] = lambda method, path: False
        """Whether a request gets the status 503."""
        self.seconds: Callable[[str, str], float] = lambda method, path: 0.0
        """Delay of a request."""
        self.lists_are_stale = False
        self._lists: dict[str, tuple[str, list[Any], list[bytes]]] = {}

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path))
        time.sleep(self.seconds(method, path))
        if self.refuses(method, path):
            start_response("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        if method == "GET" and "list-type" in parse_qs(environ.get("QUERY_STRING", "")):
            return self._list(environ, start_response)
        if self.loses(method, path):
            for _ in self._app(environ, lambda *args: lambda data: None):
                pass
            raise ConnectionError("lost by the test")
        return self._app(environ, start_response)

    def _list(self, environ: Environ, start_response: Callable[..., Any]) -> Any:
        query, found = environ["QUERY_STRING"], []

        def keep(status: str, headers: list[Any], *_: Any) -> Any:
            found.append((status, headers))
            return lambda data: None

        if not (self.lists_are_stale and query in self._lists):
            body = list(self._app(environ, keep))
            self._lists[query] = (*found[0], body)
        status, headers, body = self._lists[query]
        start_response(status, headers)
        return body


class S3Server:
    """The server's address and faults."""

    def __init__(self, port: int, faults: Faults) -> None:
        self.port, self.faults = port, faults
        self.options = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"

    def url(self, path: str) -> str:
        return f"s3://{BUCKET}/{path}?{self.options}"

    def system(self) -> fs.FileSystem:
        return fs.FileSystem.from_uri(self.url(""))[0]

    def put(self, path: str, data: bytes) -> None:
        with self.system().open_output_stream(f"{BUCKET}/{path}", compression=None) as out:
            out.write(data)


@contextmanager
def s3_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Serve an empty bucket until the block exits."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    faults = Faults(DomainDispatcherApplication(create_backend_app))

    class Quiet(WSGIRequestHandler):
        def log(self, *args: object) -> None:
            pass

    server = make_server("127.0.0.1", 0, faults, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        made = S3Server(server.server_port, faults)
        fs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{made.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        ).create_dir(BUCKET)
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
