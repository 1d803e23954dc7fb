"""Models brought by Quire and by huggingface_hub, from a server that behaves like the hub, into one cache."""

import hashlib
import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest

from conftest import make_client
from scripted_model import ROOT

ID = "org/name"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {path.name: path.read_bytes() for path in (ROOT / "models" / "toy").iterdir()}


def is_large(name):
    return name.endswith(".safetensors")


def git_hash(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(http.server.BaseHTTPRequestHandler):
    storage = "localhost"  # its host, which is another than the hub's

    def do_GET(self):
        if self.path.startswith(f"/api/models/{ID}/revision/"):
            self.answer_json({"id": ID, "sha": COMMIT, "siblings": [{"rfilename": name} for name in FILES]})
        elif self.path.startswith(f"/api/models/{ID}/tree/"):
            self.answer_json([self.tree_entry(name) for name in FILES])
        elif self.path.startswith((f"/{ID}/resolve/{COMMIT}/", "/storage/")):
            self.answer_file(self.path.rsplit("/", 1)[1])
        else:
            self.answer(404, {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def tree_entry(self, name):
        content = FILES[name]
        entry = {"type": "file", "path": name, "size": len(content), "oid": git_hash(content)}
        if is_large(name):
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        return entry

    def answer_file(self, name):
        content = FILES[name]
        about = {"X-Repo-Commit": COMMIT, "ETag": f'"{git_hash(content)}"'}
        if is_large(name) and not self.path.startswith("/storage/"):
            about["X-Linked-Etag"] = f'"{hashlib.sha256(content).hexdigest()}"'
            about["X-Linked-Size"] = str(len(content))
            port = self.server.server_address[1]
            self.answer(302, about | {"Location": f"http://{self.storage}:{port}/storage/{name}"})
        else:
            self.answer(200, about, content)

    def answer_json(self, value):
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def answer(self, status, headers, content=b""):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.send_content(content)

    def send_content(self, content):
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def hub():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.fixture
def environment(hub, tmp_path):
    mine = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return mine | {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}


def snapshot_download(environment, **options):
    """In a process of its own: huggingface_hub reads its variables when it is imported."""
    code = f"import huggingface_hub; print(huggingface_hub.snapshot_download({ID!r}, **{options!r}))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return pathlib.Path(done.stdout.strip())


def generate(binary, environment, *arguments):
    command = [str(binary), "generate", *arguments, "-p", "What is Quire?", "--temperature", "0", "--max-tokens", "8"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_huggingface_hub_finds_what_quire_brought(binary, environment):
    assert generate(binary, environment, ID) == generate(binary, environment)  # the bundled model
    snapshot = snapshot_download(environment, local_files_only=True)
    assert {path.name: path.read_bytes() for path in snapshot.iterdir()} == FILES
    blobs = set((snapshot.parent.parent / "blobs").iterdir())
    # Online it takes everything for its own, too.
    assert snapshot_download(environment) == snapshot
    assert set((snapshot.parent.parent / "blobs").iterdir()) == blobs


def test_quire_finds_what_huggingface_hub_brought(binary, environment):
    snapshot = snapshot_download(environment)
    blobs = set((snapshot.parent.parent / "blobs").iterdir())
    assert generate(binary, environment, ID, "--offline") == generate(binary, environment)
    assert generate(binary, environment, ID) == generate(binary, environment)
    assert set((snapshot.parent.parent / "blobs").iterdir()) == blobs


def test_quire_completes_what_huggingface_hub_left(binary, environment):
    snapshot = snapshot_download(environment)
    (snapshot / "tokenizer.json").unlink()
    refused = subprocess.run([str(binary), "generate", ID, "--offline", "-p", "hi"], env=environment, capture_output=True)
    assert refused.returncode == 2 and b"no tokenizer.json in" in refused.stderr
    assert generate(binary, environment, ID) == generate(binary, environment)
    assert (snapshot / "tokenizer.json").read_bytes() == FILES["tokenizer.json"]


def test_a_server_calls_the_model_by_its_id(start, environment):
    server = start(ID, env=environment)
    with make_client(server) as client:
        assert [model.id for model in client.models.list().data] == [ID]
        client.completions.create(model=ID, prompt="What is Quire?", max_tokens=2)
