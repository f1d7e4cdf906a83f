"""Recipes: TOML files in `benchmarks/recipes`, typed.

A recipe names figures and their bounds. `kind` names the module that measures: `demo` (`benchmarks.demos`), `startup`
(`benchmarks.startup`),
`overlays` (`benchmarks.overlays`), `simulate` (`benchmarks.simulations`), `honest` (`benchmarks.honest`), `tracking`
(`benchmarks.tracking`), `never_worse`
(`benchmarks.never_worse`), `authors` (`benchmarks.authors`), `codec` (`benchmarks.codecs`), `rules` (`benchmarks.rules`), `node_round`
(`benchmarks.scaling`), `large` (`benchmarks.large`), `loop` (`benchmarks.loop`) or `overlap` (`benchmarks.overlap`); the names of the
figures are explained there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

FOLDER = Path(__file__).parent / "recipes"

AtLeastOne = Annotated[int, Meta(ge=1)]
Nodes = Annotated[int, Meta(ge=2)]
Name = Annotated[str, Meta(pattern="^[a-z0-9_]+$")]
Seeds = Annotated[tuple[int, ...], Meta(min_length=1)]


class Common(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of every recipe."""

    title: Annotated[str, Meta(min_length=1)]
    """The question in one line."""
    measures: tuple[str, ...] = ()
    """Paths, as `git log --` takes them, whose change makes a stored result one of older code. Stored results of before have none."""
    at_least: dict[str, float] = {}
    """Figure -> lower bound."""
    at_most: dict[str, float] = {}
    """Figure -> upper bound."""


class Plot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plot of simulations by `benchmarks.plots`: panels side by side, one for each group of cases and each axis."""

    panels: dict[str, tuple[Name, ...]]
    """Title -> cases."""
    axes: tuple[Literal["round", "bytes_per_node", "seconds"], ...] = ("round",)
    log: bool = False
    """Bytes and seconds are on a logarithmic axis; rounds never are."""
    least: float | None = None
    """Where the vertical axis begins."""
    most: float | None = None
    """Where it ends."""
    swept: str = ""
    """What the numbers in `ends` are."""
    ends: dict[str, tuple[tuple[float, Name], ...]] = {}
    """Line -> [number, case] of its points: where each case ends, against that number and against bytes, in two more panels."""


class DemoRecipe(Common, frozen=True, kw_only=True, tag_field="kind", tag="demo"):
    """Run the same swarm of node processes several times, with other settings and seeds."""

    seeds: Seeds = (1, 2, 3)
    nodes: Nodes = 8
    rounds: AtLeastOne | None = None
    """None: the demo's default."""
    set: tuple[str, ...] = ()
    """`--set` of every case."""
    cases: Annotated[dict[Name, tuple[str, ...]], Meta(min_length=1)] = msgspec.field(default_factory=lambda: {"default": ()})
    """Name -> `--set` of this case alone."""
    compare: tuple[Name, Name] | None = None
    """Two cases, of which the first should be better at equal bytes."""
    preset: Literal["", "vouched", "open"] = ""
    """`--preset` of every case."""
    byzantine: dict[Name, str] = {}
    """Name -> `--byzantine` of one more case each, which differs from the first of `cases` in nothing else."""

    def __post_init__(self) -> None:
        """Check that the compared cases exist."""
        if self.compare is not None and not set(self.compare) <= self.cases.keys():
            raise ValueError(f"compare: must name two of {', '.join(self.cases)}, got {', '.join(self.compare)}")
        if both := self.cases.keys() & self.byzantine.keys():
            raise ValueError(f"byzantine: {', '.join(sorted(both))} is in cases too")

    @property
    def all_cases(self) -> dict[Name, tuple[str, ...]]:
        """Return name -> `--set` of each case, also those with Byzantine nodes."""
        honest = next(iter(self.cases.values()))
        return self.cases | dict.fromkeys(self.byzantine, honest)


class StartupRecipe(Common, frozen=True, kw_only=True, tag_field="kind", tag="startup"):
    """Measure how soon a node is ready, and the memory of its daemon."""

    repeats: AtLeastOne = 10
    """Starts of each kind, after one that is not counted."""
    nodes: Nodes = 8
    """Of the swarm in which memory is measured."""
    rounds: AtLeastOne = 200
    """Of that swarm's run."""


class LargeRecipe(Common, frozen=True, kw_only=True, tag_field="kind", tag="large"):
    """Two nodes train a model that is large for their machine; one is killed and resumes, a third joins late."""

    set: tuple[str, ...] = ()
    """`--set` of the manifest, in addition to a small text and batches of one."""
    node: tuple[str, ...] = ()
    """`--set` of every node's own settings."""
    mbit: Annotated[float, Meta(gt=0)] = 100.0
    """Cap of each node's line, in each direction."""
    local_steps: AtLeastOne = 2
    """As in `set`; of a round."""
    before: Annotated[int, Meta(ge=2)] = 4
    """Rounds before one is killed."""
    after: AtLeastOne = 2
    """Rounds of the late joiner."""
    text_bytes: AtLeastOne = 8000
    """Of each of three texts."""
    checkpoint_s: Annotated[float, Meta(gt=0)] = 30.0
    patience_s: Annotated[float, Meta(gt=0)] = 3600.0
    """Of the whole run."""


class LoopRecipe(Common, frozen=True, kw_only=True, tag_field="kind", tag="loop"):
    """Measure the speed of local steps relative to a plain loop."""

    cases: Annotated[tuple[str, ...], Meta(min_length=1)] = ("*",)
    """Patterns of MODEL/OPTIMIZER/MIX."""
    repeat: AtLeastOne = 9
    """Pairs of slices."""
    seconds: Annotated[float, Meta(ge=0.001)] = 0.3
    """Of a slice, about."""


class OverlapRecipe(Common, frozen=True, kw_only=True, tag_field="kind", tag="overlap"):
    """Measure the speed of a node that exchanges, relative to a plain loop and to itself alone."""

    models: Annotated[dict[Literal["cnn", "gpt"], AtLeastOne], Meta(min_length=1)]
    """Name -> about how many parameters."""
    mbit: Annotated[tuple[float, ...], Meta(min_length=1)] = (20.0, 1000.0)
    """Lines."""
    paces: Annotated[tuple[Literal["steps", "clock"], ...], Meta(min_length=1)] = ("steps", "clock")
    drivers: Annotated[tuple[Literal["task", "script"], ...], Meta(min_length=1)] = ("task", "script")
    """Of what does the local steps."""
    seconds: Annotated[float, Meta(ge=1)] = 20.0
    """Training time of each measurement, at least."""
    repeat: AtLeastOne = 1
    """Of which the median ratio counts."""


class OverlayCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An overlay to compare."""

    kind: str
    """As in overlay.kind."""
    k: AtLeastOne = 1
    """As in overlay.k."""


class OverlaysRecipe(Common, frozen=True, kw_only=True, tag_field="kind", tag="overlays"):
    """Compute how fast overlays average."""

    sizes: Annotated[tuple[Nodes, ...], Meta(min_length=1)]
    """Numbers of members."""
    rounds: AtLeastOne = 60
    """How long to mix."""
    seeds: Seeds = (1, 2, 3)
    cases: Annotated[dict[Name, OverlayCase], Meta(min_length=1)]


class SimulateRecipe(Common, frozen=True, kw_only=True, tag_field="kind", tag="simulate"):
    """A scenario file with other settings and seeds, in the simulator."""

    scenario: Annotated[str, Meta(min_length=1)]
    """Path of the file, from the root of the checkout. Its own sweep has no grid: the cases are."""
    data: str = ""
    """What of the folder named by STARLING_DATA the task learns from; a hash of it is stored. "": the task needs no files."""
    seeds: Seeds = (1, 2, 3)
    set: tuple[str, ...] = ()
    """`--set` of every case."""
    cases: dict[Name, tuple[str, ...]] = msgspec.field(default_factory=lambda: {"default": ()})
    """Name -> `--set` of this case alone."""
    warm: tuple[str, ...] = ()
    """`--set` by which one node learns from the data of all beforehand; START in a case is the file of its model. None: there is none."""
    targets: tuple[float, ...] = ()
    """Values of the metric whose first crossing is a figure."""
    compare: tuple[tuple[Name, Name], ...] = ()
    """Pairs of cases of which ratios are figures."""
    ahead: tuple[tuple[Name, Name], ...] = ()
    """Pairs of cases: how far the nodes of one are ahead of the best node of the other."""
    folds: tuple[tuple[Name, ...], tuple[Name, ...]] | None = None
    """Cases tested on what each left out, and others tested on all that they did: how far the first's mean is ahead of the best."""
    all_reduce: tuple[Nodes, AtLeastOne] | None = None
    """Members and steps of an all-reduce of float32 gradients in each step, with whose bytes those of the cases are compared."""
    named: bool = False
    """Whether it is a figure which Byzantine nodes were refused."""
    timed: bool = False
    """Whether the time it takes on this machine is a figure."""
    plot: Plot | None = None
    """None: there is nothing to draw."""

    def __post_init__(self) -> None:
        """Check that the named cases exist."""
        named = {name for pair in (*self.compare, *self.ahead, *(self.folds or ())) for name in pair}
        if self.plot is not None:
            named |= {name for cases in self.plot.panels.values() for name in cases}
            named |= {name for points in self.plot.ends.values() for _, name in points}
        if not named <= self.cases.keys():
            raise ValueError(f"compare, ahead, folds, plot: must name {', '.join(self.cases)}, got {', '.join(sorted(named))}")


class HonestRecipe(Common, frozen=True, kw_only=True, tag_field="kind", tag="honest"):
    """Honest swarms in the simulator: what the defence of pairs does to them and costs them."""

    scenario: Annotated[str, Meta(min_length=1)]
    """Path of the file, from the root of the checkout."""
    seeds: Seeds = (0, 1, 2)
    set: tuple[str, ...] = ()
    """`--set` of every case."""
    cases: Annotated[dict[Name, tuple[str, ...]], Meta(min_length=1)]
    """Name -> `--set` of this case alone."""
    sleepers: dict[Name, tuple[float, float, AtLeastOne]] = {}
    """Case of whole nodes -> [fall asleep at this virtual second, wake at this one, how many do]."""
    beside: tuple[Name, ...] = ()
    """Cases that are run without the defence as well."""

    def __post_init__(self) -> None:
        """Check that the named cases exist."""
        if not (named := {*self.sleepers, *self.beside}) <= self.cases.keys():
            raise ValueError(f"sleepers, beside: must name {', '.join(self.cases)}, got {', '.join(sorted(named))}")


class TrackingRecipe(Common, frozen=True, kw_only=True, tag_field="kind", tag="tracking"):
    """A grid of one task in the simulator: every method with every split of the data, optimiser and fault; `--set` each."""

    scenario: Annotated[str, Meta(min_length=1)]
    """Path of the file, from the root of the checkout."""
    data: str = ""
    """As in `SimulateRecipe`."""
    seeds: Seeds = (1, 2, 3)
    rounds: Annotated[int, Meta(ge=4)] = 100
    local_steps: AtLeastOne = 10
    set: tuple[str, ...] = ()
    """Of every run."""
    splits: Annotated[dict[Name, tuple[str, ...]], Meta(min_length=1)]
    optimizers: Annotated[dict[Name, tuple[str, ...]], Meta(min_length=1)]
    methods: Annotated[dict[Name, tuple[str, ...]], Meta(min_length=2)]
    """The first is what the others are compared with."""
    halved: tuple[Name, ...] = ()
    """Methods that send twice as much in a round. They have half the rounds of twice the local steps: bytes and gradients are equal."""
    loss: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """Of a message, in cells with faults. None is sent again."""
    crashes: Annotated[int, Meta(ge=0)] = 2
    """Nodes that crash at half-time in cells with faults, one a round."""

    def __post_init__(self) -> None:
        """Check that the named methods exist."""
        if not set(self.halved) <= self.methods.keys():
            raise ValueError(f"halved: must name some of {', '.join(self.methods)}, got {', '.join(self.halved)}")


class NeverWorseRecipe(Common, frozen=True, kw_only=True, tag_field="kind", tag="never_worse"):
    """Compare the default mix with plain averages, cell by cell."""

    cells: Annotated[tuple[str, ...], Meta(min_length=1)] = ("*",)
    """Patterns of SPLIT/OPTIMIZER/SCHEDULE/RATE/FAULTS."""
    pairs: AtLeastOne = 6
    """Of each cell, a seed each."""
    rounds: Annotated[int, Meta(ge=4)] = 80
    set: tuple[str, ...] = ()
    """`--set` of the default's mix."""
    jobs: AtLeastOne = 2
    """Processes."""


class AuthorsRecipe(Common, frozen=True, kw_only=True, tag_field="kind", tag="authors"):
    """A swarm of authors, each author's lone model and a central one, at equal steps; `--set` each."""

    scenario: Annotated[str, Meta(min_length=1)]
    """Path of the file, from the root of the checkout."""
    data: str
    """A folder of texts, as in `SimulateRecipe`; one of each author."""
    text_bytes: AtLeastOne | None = None
    """Of each text, from its beginning; their last tenth is held out. None: all."""
    seed: AtLeastOne = 1
    nodes: Nodes = 8
    steps: AtLeastOne = 1000
    """Local steps of every model."""
    local_steps: AtLeastOne = 10
    """Of a round of the swarm; a divisor of `steps`."""
    batch_size: AtLeastOne = 8
    """Of a node and of a lone model; that of the central model is as large as those of all nodes together."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of all training, as `numerics.precision`; models are measured in float32."""
    set: tuple[str, ...] = ()
    """Of every model."""
    swarm: tuple[str, ...] = ()
    """Of the swarm alone."""
    lone: tuple[str, ...] = ()
    """Of lone models alone."""
    central: tuple[str, ...] = ()
    """Of the central one alone."""

    def __post_init__(self) -> None:
        """Check that all models do the same number of steps."""
        if self.steps % self.local_steps:
            raise ValueError(f"local_steps: must divide steps = {self.steps}, got {self.local_steps}")


class CodecRecipe(Common, frozen=True, kw_only=True, tag_field="kind", tag="codec"):
    """Measure how fast payloads are encoded and decoded on this machine."""

    dims: Annotated[tuple[AtLeastOne, ...], Meta(min_length=1)] = (10_000_000,)
    """Parameters."""
    codecs: tuple[str, ...] = ()
    """SELECTOR[:RATIO]+QUANTIZER; none: those of `starling bench codec`."""
    repeat: AtLeastOne = 5
    """Repetitions, of which the fastest counts; with busy processes the median."""
    beside: tuple[AtLeastOne, ...] = ()
    """Numbers of busy processes in parallel to the measurement."""


class RulesRecipe(Common, frozen=True, kw_only=True, tag_field="kind", tag="rules"):
    """Measure how fast vectors are combined on this machine, compared with another library."""

    dims: Annotated[tuple[AtLeastOne, ...], Meta(min_length=1)] = (1_000_000, 10_000_000)
    """Parameters."""
    vectors: Annotated[int, Meta(ge=8)] = 16
    """Our own included."""
    rules: tuple[Name, ...] = ()
    """None: those of `starling bench rules`."""
    repeat: AtLeastOne = 5
    """Of which the fastest counts."""


class NodeRoundRecipe(Common, frozen=True, kw_only=True, tag_field="kind", tag="node_round"):
    """Measure the cost of a simulated node's round, by number of nodes."""

    nodes: Annotated[tuple[Nodes, ...], Meta(min_length=2)] = (100, 1000, 4000)
    dim: AtLeastOne = 10_000
    """Parameters."""
    rounds: AtLeastOne = 10
    repeats: AtLeastOne = 3
    """Of all numbers of nodes; the least cost counts."""


Recipe = (
    DemoRecipe
    | StartupRecipe
    | LargeRecipe
    | LoopRecipe
    | OverlapRecipe
    | OverlaysRecipe
    | SimulateRecipe
    | HonestRecipe
    | TrackingRecipe
    | NeverWorseRecipe
    | AuthorsRecipe
    | CodecRecipe
    | RulesRecipe
    | NodeRoundRecipe
)


def load(path: Path) -> Recipe:
    """Return the recipe in a file.

    Raises:
        ValueError: it is none; the message names file and key.
    """
    try:
        recipe: Recipe = msgspec.toml.decode(path.read_bytes(), type=Recipe)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    return recipe


def find(name: str) -> Path:
    """Return a recipe's file from its path or bare name.

    Raises:
        ValueError: there is none; the message lists the names.
    """
    for path in (Path(name), FOLDER / f"{name}.toml"):
        if path.is_file():
            return path
    raise ValueError(f"no recipe {name!r}; there are {', '.join(path.stem for path in everything())}")


def everything() -> list[Path]:
    """Return the paths of all recipes, by name."""
    return sorted(FOLDER.glob("*.toml"))
