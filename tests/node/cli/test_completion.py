"""Shell completion: the candidates at a cursor position, and bash itself with the script that is printed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from starling.gossip.overlay.catalogue import OVERLAYS
from starling.node.cli import completion
from starling.node.cli.main import COMMANDS, main, starling
from starling.node.config.presets import PRESETS
from starling.node.status.snapshot import encode
from starling.robust.attacks.catalogue import ATTACKS
from tests.harness.cli_doubles import refused
from tests.harness.control_socket import answering
from tests.harness.snapshots import snapshot

BASH = shutil.which("bash")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Two nodes, one of them in a demo's folder, a recorded run, and an unrelated folder."""
    monkeypatch.chdir(tmp_path)
    for place in ("starling-1", "demo/node-0", "photos"):
        (tmp_path / place).mkdir(parents=True)
    for file in ("starling-1/node.toml", "starling-1/record.jsonl", "demo/node-0/node.toml", "photos/1.png"):
        (tmp_path / file).touch()
    return tmp_path


def offered(line):
    """Return the candidates that click offers at the end of a line."""
    *words, begun = line.split(" ")[1:]
    return [item.value for item in ShellComplete(starling, {}, "starling", completion.VARIABLE).get_completions(words, begun)]


CASES = {
    "starling st": ["status"],
    "starling ": list(COMMANDS),
    "starling overlay s": ["sampling", "show"],
    "starling status --wa": ["--watch"],
    "starling status --dir ": ["demo/node-0", "starling-1"],
    "starling status --dir demo/": ["demo/node-0"],
    "starling join INVITE --dir starling": ["starling-1"],
    "starling tui ": ["demo", "demo/node-0", "starling-1", "starling-1/record.jsonl"],
    "starling create --preset ": sorted(PRESETS),
    "starling demo --byzantine 3:": [f"3:{name}" for name in sorted(ATTACKS)],
    "starling demo --byzantine 3:tracker_o": ["3:tracker_one_shot"],
    "starling demo --byzantine 3": ["3:"],
    "starling demo --set mix.kap": ["mix.kappa="],
    "starling join INVITE --set limits.connections_": ["limits.connections_per_ip="],
    "starling simulate s.toml --set faults.str": ["faults.straggler_factor=", "faults.straggler_share="],
    "starling demo --task di": ["diagonal", "digits"],
    "starling overlay show ": sorted(OVERLAYS),
    "starling config show ": ["manifest", "node", "scenario"],
    "starling logs --level w": ["warning"],
    "starling completion ": ["bash", "zsh", "fish"],
}


@pytest.mark.parametrize("line", CASES)
def test_completion_offers_the_possible_next_words(line):
    assert offered(line) == CASES[line]


def test_without_a_node_any_directory_is_accepted():
    (item,) = completion.RunDirectory().shell_complete(None, None, "ph")
    assert (item.value, item.type) == ("ph", "dir")
    (item,) = completion.Watchable().shell_complete(None, None, "nothing-here/")
    assert (item.value, item.type) == ("nothing-here/", "file")


def a_node(place, *, answers):
    """Accept one request, and stay until the connection is closed."""
    return answering(place, encode(snapshot()) if answers else b"", waits=True)


@pytest.mark.real
@pytest.mark.parametrize(
    ("begun", "expected"),
    [("", ["12D3KooWalive01", "12D3KooWquara03", "12D3KooWunkno02"]), ("12D3KooWq", ["12D3KooWquara03"]), ("…ra03", ["12D3KooWquara03"])],
)
@pytest.mark.parametrize("command", ["ban", "trust"])
def test_peers_are_those_that_the_running_node_knows_by_any_part_of_their_id(command, begun, expected, here):
    with a_node(here / "starling-1", answers=True):
        assert offered(f"starling {command} --dir starling-1 {begun}") == expected


@pytest.mark.real
def test_completion_does_not_wait_for_a_silent_node(here, monkeypatch):
    monkeypatch.setattr(completion, "PEERS_S", 0.01)
    with a_node(here / "starling-1", answers=False):
        assert offered("starling ban --dir starling-1 ") == []
    assert offered("starling unban --dir photos ") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_each_shell_calls_this_program(shell, capsys):
    if shell == "bash" and BASH is None:
        pytest.skip("click asks bash for its version")
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert f"_STARLING_COMPLETE={shell}_complete" in out
    assert "_starling_completion" in out


def test_an_unknown_shell_is_one_line(capsys):
    refused(capsys, ["completion", "tcsh"], "'tcsh'")


IN_BASH = r"""
source <(starling completion bash) || exit 3
compopt() { local IFS=' '; echo "compopt $*"; }
while read -r COMP_LINE; do
    COMP_LINE=${COMP_LINE%|}  # which keeps the blank at the end
    COMP_POINT=${#COMP_LINE}
    $(complete -p starling | sed 's/.*-F \([^ ]*\).*/\1/') starling
    IFS='|'; echo "[${COMPREPLY[*]}]"; unset IFS
done
"""


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_bash_completes_with_the_script_words_with_colons_and_equals_too(here):
    """bash treats `:` and `=` as word breaks, so the text before them is not repeated in the candidates."""
    expected = {
        "starling unb": "[unban]",
        "starling logs --dir ": "[demo/node-0|starling-1]",
        "starling logs --dir=star": "[starling-1]",
        "starling demo --byzantine 3:alie": "[alie]",
        "starling demo --set overlay.ki": "compopt -o nospace\n[overlay.kind=]",
        "starling run --dir ph": "compopt -o dirnames\n[]",
    }
    bin_folder = here / "bin"
    bin_folder.mkdir()
    (bin_folder / "starling").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m starling.node.cli.main "$@"\n')
    (bin_folder / "starling").chmod(0o755)
    environment = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[3])}
    typed = "".join(f"{line}|\n" for line in expected)
    done = subprocess.run(
        [BASH, "--norc", "-c", IN_BASH], input=typed, env=environment, cwd=here, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "".join(f"{said}\n" for said in expected.values())
