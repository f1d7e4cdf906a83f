"""Pages whose commands are typed as they stand, by somebody who has read nothing else.

    ```bash type         line by line in one terminal; each ends with exit code 0
    ```bash type node    each line is a node, in a terminal of its own; INVITE is what the page's first node printed
    ```python type FILE  is saved under that name, as is ```toml type FILE

After a block of nodes the reader waits until all of them train, or have ended well; at the end of the page he types
Ctrl-C where a node still runs.
"""

import re
from functools import partial
from pathlib import Path

import pytest

from starling.node.status import final
from tests.harness import pages
from tests.harness.processes import bash, status_of, terminals, until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.usefixtures("warm_engines")]

IN_EVERY_RUN = {"first-swarm", "own-data", "open-swarm", "behind-a-router"}  # tutorials in every run; the others nightly
PAGES = [page for page in pages.PAGES if pages.blocks(page, "type")]


def under_way(shell, run_dir: Path, nodes):
    """Return whether a node trains, waits for nodes that the page starts later, or has ended well."""
    if shell.process.poll() is not None:
        assert shell.process.returncode == 0, shell.err
        return True
    now = status_of(run_dir)
    return now is not None and (now.state in {"training", "finished"} or (now.state == "waiting" and nodes == 1))


def test_tutorials_have_commands_to_type():
    """A change of the markup must not leave this file without pages."""
    typed = {"first-swarm", "own-data", "behind-a-router", "open-swarm", "resume", "caps", "debugging", "key-backup"}
    assert {page.stem for page in PAGES} >= typed


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.stem, marks=() if page.stem in IN_EVERY_RUN else pytest.mark.acceptance) for page in PAGES]
)
def test_typing_a_page_s_commands_works(page, tmp_path):
    invite, nodes = "INVITE", []
    with terminals() as terminal:
        for block in pages.blocks(page, "type"):
            if block.options == "node":
                for line in block.lines:
                    shell = terminal(line.replace("INVITE", invite), tmp_path, f"node-{len(nodes)}")
                    nodes.append((shell, tmp_path / re.search(r"--dir (\S+)", line)[1]))
                    if invite == "INVITE":
                        invite = shell.until(shell.first_line)
                for shell, run_dir in nodes:
                    until(f"{line}: no training", partial(under_way, shell, run_dir, len(nodes)))
            elif block.options:
                (tmp_path / block.options).write_text(block.text)
            else:
                for line in block.lines:
                    bash(line.replace("INVITE", invite), tmp_path)
        for shell, _ in nodes:
            if shell.process.poll() is None:
                assert shell.ctrl_c() == 0, shell.err
            assert "Traceback" not in shell.err
        assert all(final.load(run_dir) is not None for _, run_dir in nodes)
