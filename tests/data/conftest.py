import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from tenfold.data import SOURCES, Tensors
from tenfold.data import sources as idx
from tenfold.data import sources as locate
from tenfold.data.sources import Source, SourceFile

CONTENTS = {name: idx.encode(np.arange(n, dtype=np.uint8)) for name, n in (("tiny-x", 40), ("tiny-y", 10))}


def source_file(data: bytes) -> SourceFile:
    """Describe a file of a source by its content."""
    gz = idx.compress(data)
    return SourceFile(
        size=len(data),
        sha256=sha256(data).hexdigest(),
        download_size=len(gz),
        download_sha256=sha256(gz).hexdigest(),
    )


@dataclass
class Mirror:
    """A web server on this machine that serves what `files` holds."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    announce: int = 0
    """Bytes to announce beyond those that are sent."""


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.lstrip("/")
            here.asked.append(name)
            if name not in here.files:
                self.send_error(404)
                return
            body = here.files[name]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) + here.announce))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        files = {f"{name}.gz": idx.compress(data) for name, data in CONTENTS.items()}
        here = Mirror(f"http://127.0.0.1:{server.server_address[1]}/", files)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield here
        server.shutdown()
        thread.join()


@pytest.fixture
def tiny(mirror, monkeypatch) -> Source:
    """A built-in source of two small files that the mirror serves."""

    def load(contents):
        x, y = (torch.from_numpy(idx.decode(contents[name])) for name in CONTENTS)
        part = Tensors(x.reshape(10, 4).float(), y.long())
        return part, part

    source = Source(
        name="tiny",
        description="a tiny set",
        load=load,
        files={name: source_file(data) for name, data in CONTENTS.items()},
        mirrors=(mirror.address,),
    )
    monkeypatch.setitem(SOURCES.built_in, "tiny", source)
    return source


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache, and no other place where data could be found."""
    monkeypatch.setenv("TENFOLD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TENFOLD_DATA", raising=False)
    monkeypatch.setattr(locate, "DEBIAN", tmp_path / "debian")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache" / "data" / "tiny"


@pytest.fixture
def put():
    """Put the tiny source's files into a folder, plain or gzipped."""

    def put_into(folder: Path, *, gz: bool = True, only: tuple[str, ...] = tuple(CONTENTS)) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name in only:
            data = CONTENTS[name]
            (folder / (f"{name}.gz" if gz else name)).write_bytes(idx.compress(data) if gz else data)
        return folder

    return put_into
