"""The page's HTTP: nothing without the token, under another host name or method; bounded headers; no other origins."""

import asyncio
import re

import pytest

from starling.tui.view import View
from starling.tui.web.pages import document
from starling.tui.web.server import FILES, MAX_CONNECTIONS, PageServer
from tests.harness.snapshots import NOW

NOTHING = View(waiting_for="starling-node", now=NOW)
TOKEN = "t" * 32


async def documents(asked):
    return document(asked, NOTHING)


def served(*requests, token=TOKEN):
    """Return the answers (status, headers, body) to raw requests, in which PORT is the port."""

    async def ask():
        async with PageServer(documents, token).listening(0) as address:
            port = int(re.match(r"http://127\.0\.0\.1:(\d+)/", address)[1])
            assert address.endswith(f"/{token}/")
            return [await one(port, each.replace(b"PORT", str(port).encode())) for each in requests]

    async def one(port, request):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return (int(status.split()[1]) if status else None), headers, body

    return asyncio.run(ask())


def get(path, method="GET", host="127.0.0.1:PORT", more=""):
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()


def test_the_page_its_files_and_its_figures_are_served_under_the_token():
    answers = served(*(get(f"/{TOKEN}/{name}") for name in FILES), get(f"/{TOKEN}/view.json?page=swarm&sort="))
    assert [status for status, _, _ in answers] == [200] * 5
    assert [headers["content-type"].split(";")[0] for _, headers, _ in answers] == [
        "text/html",
        "text/javascript",
        "text/javascript",
        "text/css",
        "application/json",
    ]
    assert answers[-1][2].startswith(b'{"page":"swarm"')
    assert all(int(headers["content-length"]) == len(body) for _, headers, body in answers)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/"), 403),
        (get("/view.json"), 403),
        (get(f"/{TOKEN}"), 403),
        (get(f"/{TOKEN[:-1]}/view.json"), 403),
        (get(f"/{TOKEN}x/view.json"), 403),
        (get(f"//{TOKEN}/view.json"), 403),
        (get("/%74ttt/"), 403),
        (get(f"/{TOKEN}/", host="attacker.example:PORT"), 421),
        (get(f"/{TOKEN}/", host="127.0.0.1:1"), 421),
        (get(f"/{TOKEN}/", more="Host: 127.0.0.1:PORT\r\n"), 400),
        (get(f"/{TOKEN}/", host="localhost:PORT"), 200),
        (get(f"/{TOKEN}/nothing"), 404),
        (get(f"/{TOKEN}/../page.html"), 404),
        (get(f"/{TOKEN}/", method="POST"), 405),
        (get(f"/{TOKEN}/view.json", method="DELETE"), 405),
        (get(f"/{TOKEN}/view.json?unknown=1"), 400),
        (get(f"/{TOKEN}/view.json?" + "&".join(["page=node"] * 20)), 400),
        (get(f"/{TOKEN}/view.json?page=%ff"), 200),
        (get(f"/{TOKEN}/", more=f"X: {'x' * 20_000}\r\n"), 431),
        (b"\x16\x03\x01\x00nonsense\r\n\r\n", 400),
        (b"", None),
    ],
)
def test_which_requests_are_refused(request_bytes, status):
    ((found, headers, body),) = served(request_bytes)
    assert found == status
    if status not in (200, None):
        assert body.count(b"\n") == 1
        assert b"problem" not in body
        assert headers["content-type"].startswith("text/plain")


def test_head_has_no_body():
    ((status, headers, body),) = served(get(f"/{TOKEN}/", method="HEAD"))
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 0


def test_every_answer_forbids_other_origins_frames_caches_and_referrers():
    for _, headers, _ in served(get(f"/{TOKEN}/"), get("/"), get(f"/{TOKEN}/view.json")):
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:")
        assert "unsafe" not in policy
        assert (headers["cache-control"], headers["referrer-policy"]) == ("no-store", "no-referrer")
        assert headers["x-content-type-options"] == "nosniff"
        assert not [name for name in headers if name.startswith("access-control")]


def test_the_page_s_files_have_no_other_origin_and_no_inline_script():
    for _, _, body in served(*(get(f"/{TOKEN}/{name}") for name in FILES)):
        assert set(re.findall(rb"https?://[^\s\"']+", body)) <= {b"http://www.w3.org/2000/svg"}
        assert b"innerHTML" not in body
        assert b"style=" not in body


def test_tokens_are_long_and_unique():
    tokens = {PageServer(documents).token for _ in range(8)}
    assert len(tokens) == 8
    assert min(map(len, tokens)) >= 32


def test_silent_connections_of_other_users_do_not_block_the_page():
    async def crowd():
        async with PageServer(documents, TOKEN).listening(0) as address:
            port = int(address.split(":")[2].split("/")[0])
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)]
            for number in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(get(f"/{TOKEN}/").replace(b"PORT", str(port).encode()))
                assert (await reader.read()).startswith(b"HTTP/1.1 200")
                writer.close()
                assert number or await silent[0][0].read() == b"", "the oldest made room"
            silent[-1][1].write(get(f"/{TOKEN}/").replace(b"PORT", str(port).encode()))
            assert (await silent[-1][0].read()).startswith(b"HTTP/1.1 200")
            for _, each in silent:
                each.close()

    asyncio.run(crowd())
