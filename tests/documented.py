"""Every command of README.md and docs/, and how it is known to work: one table. tests/test_documented.py holds both together.

A page says a command in a fenced block (bash, sh, console, or no language) or between words in backticks. For each there is an entry here:

    BLOCKS     "page.md#name" -> the test that runs the lines of that block: "```bash name"
    LINES      a command as it stands -> Run: it is run as it stands, or By: the test that runs it
    FAMILIES   a pattern of whole commands -> By, for programs that this machine may not have
    MENTIONS   the name of a command of ours, where a page says no more than that -> By

So a new page needs an entry for what is new on it. `Run` is for what ends within seconds; `smaller` shortens it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<language>\w*)(?: (?P<name>\w+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SHELLS = {"bash", "sh", "shell", "console"}
INLINE = re.compile(r"`((?:starling|make|pip|python|docker|docker-compose|kubectl|systemctl|journalctl) [^`]+)`")
PROGRAM = re.compile(
    r"(?:\$ )?(?:\w+=\S+ )*"
    r"(?:starling|make|pip|python3?|docker|docker-compose|kubectl|systemctl|loginctl|journalctl|sudo|source|export|mkdir|install|sed|cp|curl|eval|"
    r"docker/\S+\.sh)\b"
)
PLACEHOLDER = re.compile(r"^[A-Z][A-Z_|]*(\.\w+)?$|^…$")


@dataclass(frozen=True)
class Run:
    """Run it in a folder with the examples of the checkout.

    Args:
        smaller: options added to it, for a shorter run.
        given: placeholder -> what a reader would put there.
        makes: files that must be there, and not empty, afterwards.
    """

    smaller: str = ""
    given: Mapping[str, str] = field(default_factory=dict)
    makes: tuple[str, ...] = ()


@dataclass(frozen=True)
class By:
    """Another test runs it, or all of it that can be run where tests are.

    Args:
        test: file::function.
        why: it is not run as it stands; "" if it is.
    """

    test: str
    why: str = ""


@dataclass(frozen=True)
class Command:
    """One command of a page.

    Args:
        page: its file, from the root.
        block: name of its block, "" without.
        line: as typed, comment and line breaks taken away.
        inline: it stands between words.
    """

    page: str
    block: str
    line: str
    inline: bool


def commands() -> Iterator[Command]:
    """All of all pages, in order."""
    for path in PAGES:
        page, text = str(path.relative_to(ROOT)), path.read_text()
        for fence in FENCE.finditer(text):
            if fence["language"] in SHELLS or not fence["language"]:
                for line in _lines(fence["text"]):
                    if fence["language"] or PROGRAM.match(line):
                        yield Command(page, fence["name"] or "", line, inline=False)
        for found in INLINE.finditer(FENCE.sub("", text)):
            yield Command(page, "", " ".join(found[1].split()), inline=True)


def _lines(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        bare = " ".join(re.sub(r"(^|\s)#.*$", "", line).split())
        if bare:
            yield bare.removeprefix("$ ")


def bare(line: str) -> str:
    """A command without words that stand for something: `starling ban PEER` -> `starling ban`."""
    return " ".join(word for word in line.split() if not PLACEHOLDER.match(word))


def how(command: Command) -> Run | By | None:
    """What the table says of a command; None: nothing yet."""
    block = f"{Path(command.page).name}#{command.block}"
    if command.block and block in BLOCKS:
        return BLOCKS[block]
    if command.line in LINES:
        return LINES[command.line]
    if command.inline and bare(command.line) in MENTIONS:
        return MENTIONS[bare(command.line)]
    return next((by for pattern, by in FAMILIES.items() if re.fullmatch(pattern, command.line)), None)


README, BY_HAND, ASKED = "tests/real/test_readme.py", "tests/real/test_by_hand.py", "tests/real/test_commands.py"
DEMO, DOCKER, HERE = "tests/real/test_demo.py", "tests/real/test_docker.py", "tests/test_documented.py"
FOUR_NODES = f"{README}::test_four_nodes_by_hand_do_what_the_readme_says"
FOUNDER = f"{ASKED}::test_a_founder_looks_judges_invites_and_revokes"
SHOWS = f"{README}::test_the_readme_s_way_to_look_at_settings_works"
COMPARES = f"{README}::test_the_readme_s_way_to_compare_works"
A_LIAR = f"{DEMO}::test_a_liar_is_named_shut_out_and_not_waited_for"
A_FOUNDED_SWARM = f"{README}::test_every_swarm_a_page_founds_demonstrates_or_simulates_passes_its_check"
RECIPES = f"{HERE}::test_make_knows_how"
TARGETS = f"{README}::test_every_extra_and_make_target_a_page_names_is_there"
TUI = f"{HERE}::test_starling_tui_opens_in_a_terminal"
UNIT = f"{DOCKER}::test_the_systemd_unit_is_valid"
CLUSTER = f"{DOCKER}::test_the_kubernetes_manifest_has_what_a_node_needs"

REPLAYED = "tests/tui/test_replay.py::test_all_nodes_stand_at_the_same_moment_and_who_was_not_there_is_said_to_come"
SCHEMAS = "tests/node/cli/test_schemas.py::test_the_published_schema_is_that_of_the_types"
IN_BASH = "tests/node/cli/test_completion.py::test_bash_completes_with_the_script_words_with_colons_and_equals_too"
STILL = "tests/tools/test_stills.py::test_a_record_becomes_pictures_of_every_screen"
SCRAPED = "tests/real/test_observed.py::test_a_node_is_scraped_recorded_and_logged_while_it_trains"
RECORDED = "tests/real/test_observed.py::test_a_recorded_demo_is_read_by_whatever_reads_records"
IN_COMPOSE = f"{DOCKER}::test_every_container_becomes_healthy"

TINY = "--set simulate.nodes=4 --set pace.rounds=2 --set pace.evaluate_every=1 --set sweep.seeds=[0]"
STRANGERS = "--set pace.rounds=2 --set pace.evaluate_every=1"
CHURN = "--set pace.rounds=20 --set pace.evaluate_every=10 --set faults.churn_from=2 --set faults.churn_until=10"

BLOCKS: Mapping[str, Run | By] = {
    "README.md#found": By(FOUR_NODES),
    "README.md#join": By(FOUR_NODES),
    "README.md#look": By(FOUR_NODES),
    "README.md#compare": By(COMPARES),
    "README.md#show": By(SHOWS),
    "README.md#development": By(RECIPES, "a test that runs all tests never ends: the recipes are printed, not run"),
    "README.md#system": By(
        f"{HERE}::test_the_system_packages_are_known_to_apt", "they need root: apt is asked whether it has them"
    ),
    "operating.md#completion": By(IN_BASH, "bash is asked; of zsh and fish the script is looked at"),
    "operating.md#logs": By(FOUR_NODES),
    "observing.md#serve": By(SCRAPED, "with a free port, and an end"),
    "observing.md#scrape": By(SCRAPED, "with that port"),
    "observing.md#record": By(RECORDED),
    "containers.md#start": By(f"{DOCKER}::test_every_container_becomes_healthy"),
    "containers.md#look": By(f"{DOCKER}::test_a_running_swarm_can_be_looked_at"),
    "containers.md#change": By(f"{DOCKER}::test_a_running_swarm_can_be_changed"),
    "containers.md#scenarios": By(f"{DOCKER}::test_the_swarm_heals"),
    "containers.md#profiles": By(f"{DOCKER}::test_a_swarm_learns_among_liars"),
}

LINES: Mapping[str, Run | By] = {
    "make demo": By(f"{README}::test_what_make_demo_runs_is_a_command"),
    "make check": By(RECIPES, "a test that runs all tests never ends: the recipe is printed, not run"),
    "make test": By(RECIPES, "as above"),
    "make acceptance": By(RECIPES, "as above"),
    "make bench": By(RECIPES, "as above; it takes hours"),
    "make fuzz": By(RECIPES, "as above"),
    "make mutants": By(RECIPES, "as above"),
    "make docker": By(
        f"{DOCKER}::test_every_container_becomes_healthy", "with its recipe's compose file, in the background"
    ),
    "pip install ./starling-every-nth": By(
        "tests/node/test_plugins.py::test_the_documented_selector_and_quantizer_are_used_by_name_and_cross_the_wire",
        "the page's package, as pip leaves it; no index is asked",
    ),
    "starling demo --nodes 16 --preset open --byzantine 3:sign_flip --json": By(
        A_LIAR, "fewer nodes and rounds: sixteen take minutes"
    ),
    "starling demo --nodes 16 --preset open --byzantine 2:alie --byzantine 1:nan": By(A_LIAR, "as above"),
    "starling demo --preset open": By(A_LIAR, "as above"),
    "starling demo --nodes 8 --rounds 100 --seed 1 --preset vouched --byzantine 1:sign_flip --ban-at 0.4": By(
        f"{DEMO}::test_a_vouched_member_that_lies_is_banned_by_command_and_the_others_recover", "with another attack"
    ),
    "starling join INVITE --set attack=foe --set attack_params.epsilon=2.0 --set attack_agreed=true": By(
        A_LIAR, "there the settings are written into node.toml"
    ),
    "starling found --preset open": By(
        A_FOUNDED_SWARM, "it never ends; a founder with a preset runs in tests/real/test_commands.py"
    ),
    "starling run --dir starling-2": By(
        f"{BY_HAND}::test_whoever_is_killed_comes_back_as_the_same_node_and_nobody_else_stops"
    ),
    "starling run --dir DIR": By(
        f"{BY_HAND}::test_whoever_is_killed_comes_back_as_the_same_node_and_nobody_else_stops"
    ),
    "starling tui starling-2": By(TUI),
    "starling status --json": By(FOUNDER),
    "starling status starling-2": By(
        "tests/node/cli/test_look.py::test_peers_and_json_of_an_ended_node_come_from_its_last_status"
    ),
    "starling help status": Run(),
    "starling found --example digits": By("tests/node/cli/test_examples.py::test_found_takes_an_example_by_name"),
    "starling examples": Run(),
    "starling status --help": Run(),
    "starling logs -f --dir starling-2": By(FOUR_NODES),
    "starling invite --for PEER": By("tests/node/cli/test_schemas.py::test_an_invitation_fits"),
    "starling demo --dir FOLDER": By(f"{DEMO}::test_ctrl_c_in_the_middle_leaves_nothing_behind"),
    "starling demo --record --dir FOLDER": By(RECORDED),
    "starling tui FOLDER/node-0/record.jsonl": By(REPLAYED, "the program that `starling tui` starts"),
    "starling config show scenario": Run(),
    "starling config show manifest": Run(),
    "starling config show manifest --preset open > m.toml": Run(makes=("m.toml",)),
    "starling manifest show MANIFEST.toml": Run(given={"MANIFEST.toml": "examples/digits.toml"}),
    "starling overlay compare -n 33 --kinds sticky,base_k": Run(),
    "starling overlay compare -n 33 --kinds ring,one_peer_exponential,base_k": By(COMPARES),
    "starling overlay compare -n 33 --rounds 2000 --kinds …": Run(given={"…": "ring,base_k"}),
    "starling overlay show KIND -n 33": Run(given={"KIND": "torus"}),
    "starling overlay sampling -n 64 --bad 13 --k 6": Run(),
    "starling simulate examples/simulate-digits.toml": Run(smaller=TINY),
    "starling simulate examples/simulate-churn.toml --json > churn.json": Run(smaller=CHURN, makes=("churn.json",)),
    "starling simulate examples/simulate-churn.toml --csv churn.csv --plot churn.png --jobs 2": Run(
        smaller=CHURN, makes=("churn.csv", "churn.png")
    ),
    "starling simulate examples/simulate-digits.toml --set mix.kappa=0.05 --set simulate.engine=virtual --set sweep.grid={}": Run(
        smaller=TINY
    ),
    "starling simulate examples/simulate-digits.toml --preset open --set sweep.grid={}": Run(
        smaller="--set pace.rounds=2 --set pace.evaluate_every=1 --set sweep.seeds=[0]"
    ),
    "starling simulate examples/simulate-strangers.toml": Run(smaller=STRANGERS),
    "starling simulate benchmarks/scenarios/strangers.toml --set attack.kind=alie": Run(smaller=STRANGERS),
    "starling simulate benchmarks/scenarios/strangers.toml --set attack.kind=dissensus": Run(smaller=STRANGERS),
    "starling simulate benchmarks/scenarios/strangers.toml --set robust.rule=mean --set attack.kind=foe": Run(
        smaller=STRANGERS
    ),
}

FAMILIES: Mapping[str, By] = {
    r"python -m starling\.node\.cli\.schemas docs/schemas": By(SCHEMAS, "it would write what is compared there"),
    r"python tools/stills\.py .*": By(STILL),
    r"python tools/tensorboard_export\.py RECORD … LOGDIR": By(RECORDED),
    r"starling tui my-demo\S+ \S+": By(REPLAYED, "the program that `starling tui` starts"),
    r"docker build -t starling(:cuda --build-arg TORCH=cu126)? -f docker/Dockerfile \.": By(
        f"{DOCKER}::test_the_image_is_small_and_not_root",
        "the image for CUDA by the same file; it needs gigabytes and another index",
    ),
    r"docker run -d --init .* starling join INVITE .*": By(
        IN_COMPOSE, "with the options that compose.yaml gives; not with a public address"
    ),
    r"docker run --gpus all …|docker compose -f \S+ -f docker/compose\.cuda\.yaml .*": By(
        f"{DOCKER}::test_either_compose_accepts_the_file", "they need a GPU in an engine: the file is checked"
    ),
    r"docker run --rm starling demo --no-tui --rounds 60": By(f"{DOCKER}::test_a_demo_learns_in_the_image"),
    r"docker (compose )?logs( -f volunteer| founder)?": By(
        f"{DOCKER}::test_the_log_of_a_node_is_the_log_of_its_container"
    ),
    r"docker (stop|compose down( -v)?)": By(
        f"{DOCKER}::test_a_stopped_container_leaves_in_order_and_comes_back_as_itself"
    ),
    r"docker (compose|build)|docker compose up -d (founder|--scale volunteer=5)": By(IN_COMPOSE),
    r"docker (compose )?exec (volunteer|founder) starling (invite --dir|tui) /data": By(
        f"{DOCKER}::test_a_running_swarm_can_be_looked_at", "other commands of the same program in the same container"
    ),
    r"docker (build -t|push) REGISTRY.*|sed -i \S+image: .* deploy/kubernetes\.yaml|kubectl .*": By(
        CLUSTER, "they need a registry and a cluster: what is applied there is checked"
    ),
    r"(systemctl|loginctl|journalctl) .*|install -D .*starling\.service": By(
        UNIT, "they need a user's systemd and change it: the unit is checked by systemd-analyze"
    ),
    r"python3 -m venv ~\S+ && .*|mkdir -p ~/\.local/bin && ln -s .*": By(
        RECIPES, "what `make` does for its own folder"
    ),
    r"starling (join INVITE|status) --dir ~/starling-node": By(FOUR_NODES, "in another directory"),
    r"starling tui ~/starling-node": By(TUI, "in another directory"),
    r"pip install 'starling-swarm\[\w+\]'": By(TARGETS, "no index is asked; the extra is there"),
}

MENTIONS: Mapping[str, By] = {
    "starling demo": By(f"{DEMO}::test_four_nodes_agree_on_a_good_model_for_a_fraction_of_the_bytes"),
    "starling found": By(FOUR_NODES),
    "starling join": By(FOUR_NODES),
    "starling run": By(f"{BY_HAND}::test_whoever_is_killed_comes_back_as_the_same_node_and_nobody_else_stops"),
    "starling leave": By(FOUNDER),
    "starling export": By(FOUNDER),
    "starling status": By(FOUNDER),
    "starling peers": By(FOUNDER),
    "starling tui": By(TUI),
    "starling logs": By(FOUNDER),
    "starling eval": By(FOUNDER),
    "starling invite": By(FOUNDER),
    "starling revoke": By(FOUNDER),
    "starling manifest": By(FOUNDER),
    "starling manifest check": By(SHOWS),
    "starling config": By(FOUNDER),
    "starling ban": By(FOUNDER),
    "starling unban": By(FOUNDER),
    "starling trust": By(FOUNDER),
    "starling simulate": By("tests/node/cli/test_schemas.py::test_what_a_simulation_prints_fits"),
    "starling overlay": By(COMPARES),
    "starling bench": By(COMPARES),
    "starling bench codec": By(COMPARES),
    "starling bench rules": By(
        "tests/node/cli/research/test_bench.py::test_a_rule_is_measured_beside_byzfl_in_a_process_of_its_own"
    ),
    "starling completion": By(IN_BASH),
}
