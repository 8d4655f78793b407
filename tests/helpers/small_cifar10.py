"""What the tests of CIFAR-10's files share: a small release of random images, its archive, and a server of it."""

import hashlib
import io
import tarfile
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from asng.experiments.cifar10 import data

RECORD = 3073  # bytes: a label and three planes of 32 x 32


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def random_files(images: int) -> dict[str, bytes]:
    """The files of a release, each with random images."""
    random = np.random.default_rng(0)
    files = {}
    for name in data.RELEASE.files:
        records = random.integers(0, 256, (images, RECORD), dtype=np.uint8)
        records[:, 0] %= 10
        files[name] = records.tobytes()
    return files


def release_of(files: dict[str, bytes]) -> data.Release:
    """These files in place of the official ones; where they could be downloaded, nobody listens."""
    sums = {name: md5(content) for name, content in files.items()}
    images = len(files["test_batch.bin"]) // RECORD
    archive = archive_of(files)
    return data.Release("http://127.0.0.1:9/nobody-listens.tar.gz", md5(archive), len(archive), sums, images)


def archive_of(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for name, content in {"readme.html": b"more than is needed", **files}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    content = packed.getvalue()
    return content[:4] + bytes(4) + content[8:]  # without the time, so that the sum is the same again


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@contextmanager
def server(monkeypatch, content: bytes, *, sent: int | None = None, status: int = 200):
    """Serves an archive, or only the first bytes of it; notes the requests."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(ConnectionError):  # nobody listens any more
                self.wfile.write(content[:sent])

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = False  # so that closing waits for them
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{http.server_port}/cifar-10-binary.tar.gz"
        monkeypatch.setattr(data, "RELEASE", replace(data.RELEASE, url=url))
        try:
            yield requests
        finally:
            http.shutdown()
            thread.join()
