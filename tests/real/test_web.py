"""`starling web` in a real browser, with nodes that are killed and return."""

import json
import signal
import subprocess
import time
import urllib.request
from contextlib import closing, contextmanager

import psutil
import pytest

from starling.tui.web.pages import PAGES
from tests.harness.browser import PROGRAM, Browser, needs_browser
from tests.harness.processes import ENVIRONMENT, status_of, terminals
from tests.harness.tui.fake_node import node

pytestmark = [pytest.mark.real, pytest.mark.slow]
MEASURED_S, SETTLE_S, POLL_S = 20.0, 3.0, 2.0  # POLL_S: as page.js polls


@contextmanager
def web(*arguments):
    """Start the process; return it and the address that it prints."""
    process = subprocess.Popen(
        ["starling", "web", *map(str, arguments)], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@needs_browser
def test_every_web_page_is_drawn_while_a_node_is_killed_and_restarted(tmp_path):
    demo = tmp_path / "demo"
    for name in ("node-0", "node-1"):
        (demo / name).mkdir(parents=True)
    with web(demo) as (_, address), closing(Browser(tmp_path / "profile")) as browser:
        with node(demo / "node-0", 100), node(demo / "node-1", 500):
            browser.open(address)
            assert "● training" in browser.shows("round 10")
            assert browser.value("document.title").startswith("● node-0, round 10")
            browser.press("n")
            browser.shows("round 50")
            browser.press("p")
            browser.shows("round 10")
            pages = {
                "2": "members",
                "3": "! quarantined",
                "4": "bad_frame",
                "5": "exchanges with all peers",
                "o": "nodes 2",
                "m": "what this swarm agreed on",
                "d": "doctor node-0",
                "?": "consensus distance: root mean square",
                "1": "speed and cost",
            }
            for key, words in pages.items():
                browser.press(key)
                browser.shows(words)
            assert len(pages) == len(PAGES)
            browser.press("3")
            browser.click("…alive01")
            browser.shows("round trip")
            browser.click("sent")
            browser.shows("by sent")
        browser.shows("attaching again")
        with node(demo / "node-0", 150):
            browser.shows("attaching again", present=False)
            browser.press("1")
            browser.shows("round 15")
            for width in (1400, 400):
                browser.resize(width, 900)
                assert browser.value("document.documentElement.scrollWidth <= innerWidth")
        assert browser.errors == []


class Poller:
    """Polls as the page does, where no browser is installed."""

    def __init__(self, address):
        self._address = address

    def look(self, page, duration_s):
        """Show `page` for this long; return the title at the end."""
        end = time.monotonic() + duration_s
        while True:
            with urllib.request.urlopen(f"{self._address}view.json?page={page}") as answer:
                title = json.load(answer)["title"]
            if time.monotonic() + POLL_S > end:
                return title
            time.sleep(POLL_S)

    def close(self):
        pass


class Looker(Browser):
    """Opens the page itself in a browser."""

    def __init__(self, address, folder):
        super().__init__(folder)
        self._address = address
        self.open(address)
        self.shows("● training")

    def look(self, page, duration_s):
        """Do the same as Poller.look."""
        self.value(f"location.hash = 'page={page}'")
        time.sleep(duration_s)
        return self.value("document.title")


@pytest.mark.acceptance
def test_an_open_page_costs_the_server_at_most_three_hundredths_of_a_core(tmp_path):
    """Processor seconds of `starling web`, over twenty seconds of each page that changes, on a demo of eight nodes."""
    with terminals() as terminal:
        demo = terminal("starling demo --seconds 600 --no-tui --dir kept", tmp_path, "demo")
        demo.until(lambda: (now := status_of(tmp_path / "kept" / "node-7")) and now.round > 2)
        with web(tmp_path / "kept") as (process, address):
            server, cores = psutil.Process(process.pid), {}
            with closing(Poller(address) if PROGRAM is None else Looker(address, tmp_path / "profile")) as page:
                for name in ("node", "swarm", "peers", "events", "edge", "nodes"):
                    before = page.look(name, SETTLE_S)
                    spent, began = sum(server.cpu_times()[:2]), time.monotonic()
                    assert page.look(name, MEASURED_S) != before, "the page stands still"
                    cores[name] = (sum(server.cpu_times()[:2]) - spent) / (time.monotonic() - began)
        assert demo.ctrl_c() == 130
    assert 0.0 < max(cores.values()) <= 0.03, cores


def test_standard_output_is_the_address_only_and_a_signal_ends_the_server(tmp_path):
    (tmp_path / "node.toml").touch()
    for number in (signal.SIGINT, signal.SIGTERM):
        with web(tmp_path) as (process, address):
            assert address.startswith("http://127.0.0.1:")
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
            assert (process.returncode, out) == (0, "")
            assert err.count("\n") == 1


def test_a_port_in_use_gives_one_line(tmp_path):
    (tmp_path / "node.toml").touch()
    with web(tmp_path) as (_, address):
        port = address.split(":")[2].split("/")[0]
        with web("--port", port, tmp_path) as (second, nothing):
            _, err = second.communicate(timeout=60)
            assert (second.returncode, nothing) == (1, "")
            assert err == (
                f"starling: --port: 127.0.0.1:{port} cannot be listened on (Address already in use); leave it out for a free one\n"
            )
