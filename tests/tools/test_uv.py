"""`make` installs from the index that pip is configured for, unless uv is configured, and gets a small build of PyTorch if possible."""

import json
import os
import subprocess
import sys
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tests.harness.processes import ROOT
from tools import uv

LISTED = """\
:env:.cert='/etc/ssl/own.crt'
:env:.find-links='/wheels'
global.extra-index-url='file:///one/simple\\nfile:///two/simple'
global.find-links='/other'
global.index-url='https://a.example/simple'
install.index-url='https://b.example/simple'
list.format='columns'
""".splitlines()


def test_uv_gets_the_indexes_of_pip():
    """A variable overrides a file, and settings of `pip install` override those of all commands."""
    pip = uv.configured(LISTED)
    assert uv.variables(pip, {}, alone=False) == {
        "UV_DEFAULT_INDEX": "https://b.example/simple",
        "UV_INDEX": "file:///one/simple file:///two/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/wheels",
        "SSL_CERT_FILE": "/etc/ssl/own.crt",
    }


def test_settings_of_uv_come_first():
    """Under its former variable names too."""
    given = {"UV_INDEX_URL": "x", "UV_EXTRA_INDEX_URL": "y", "UV_FIND_LINKS": "", "SSL_CERT_FILE": "z"}
    assert uv.variables(uv.configured(LISTED), given, alone=False) == {}


@pytest.mark.parametrize("words", [["pip", "compile", "pyproject.toml"], ["pip", "install", "--require-hashes", "-r", "f"]])
def test_hashes_are_from_the_default_index_only(words):
    """A build of the same version from elsewhere has another hash, and a lock made here must be valid there."""
    assert uv.hashes(words)
    told = uv.variables(uv.configured(LISTED), {}, alone=uv.hashes(words))
    assert told == {"UV_DEFAULT_INDEX": "https://b.example/simple", "SSL_CERT_FILE": "/etc/ssl/own.crt"}
    assert not uv.asks_torch(words, {}, "linux")


def test_pytorch_s_index_is_used_only_if_no_other_is_configured():
    install = ["pip", "install", "-e", "."]
    assert uv.asks_torch(install, {"UV_DEFAULT_INDEX": "https://a.example/simple"}, "linux")
    assert not uv.asks_torch(install, {}, "darwin")
    assert not uv.asks_torch(["venv", ".venv"], {}, "linux")
    for name in ("UV_TORCH_BACKEND", "UV_INDEX", "UV_FIND_LINKS"):
        assert not uv.asks_torch(install, {name: "x"}, "linux")


class Answers(BaseHTTPRequestHandler):
    def __init__(self, *arguments, status):
        self.status = status
        super().__init__(*arguments)

    def do_HEAD(self):
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("status", [200, 403])
def test_an_index_that_fails_is_skipped(status):
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Answers, status=status)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/whl/"
        assert uv.answers(url) == (status == 200)
        server.shutdown()
    assert not uv.answers(url)


def test_uv_receives_the_arguments_and_variables(tmp_path):
    """A stand-in program beside the interpreter is run; its exit code is the tool's."""
    home = tmp_path / "tools"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    program = home / "bin" / "uv"
    program.write_text(f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\nsys.exit(3)\n")
    program.chmod(0o755)
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_"))}
    given = {"PIP_INDEX_URL": "https://c.example/simple", "PIP_FIND_LINKS": "/a /b", "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(
        [home / "bin" / "python", ROOT / "tools" / "uv.py", "pip", "install", "numpy"],
        env=plain | given,
        capture_output=True,
        text=True,
        check=False,
    )
    words, environment = json.loads(done.stdout)
    assert (done.returncode, words) == (3, ["pip", "install", "numpy"])
    assert environment["UV_DEFAULT_INDEX"] == "https://c.example/simple"
    assert environment["UV_FIND_LINKS"] == "/a,/b"
    assert environment["UV_PYTHON_DOWNLOADS"] == "never"
    assert "UV_TORCH_BACKEND" not in environment
