"""Parts from other packages: found by name, imported only when named, and never able to replace a built-in one.

The packages are made from the code blocks of docs/extending.md.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from starling.gossip.catalogue import Catalogue, Entry
from starling.gossip.compress import codec
from starling.gossip.compress.catalogue import PLUGIN_CODES, QUANTIZERS, SELECTORS, by_code, quantizer
from starling.gossip.compress.quantize import Float32, Fp16, Int4
from starling.gossip.compress.select.coordinates import TopK
from starling.gossip.errors import ConfigError
from starling.gossip.rng import generator
from starling.node.config.schema import CompressSection, Manifest
from starling.node.engine.compression import exchange_codec, selection
from tests.harness import packages, pages
from tests.harness.codecs import Chain

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
BLOCKS = [re.match(r"# (\S+)\n(.*)", block.text, re.DOTALL).groups() for block in pages.blocks(PAGE, "package")]
PACKAGES = list(zip(BLOCKS[0::2], BLOCKS[1::2], strict=True))  # a module, then its pyproject.toml


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    with packages.shelf(tmp_path, monkeypatch) as empty:
        yield empty


@pytest.fixture
def documented(shelf):
    """Both packages of the page, installed."""
    for (file, source), (_, pyproject) in PACKAGES:
        shelf.install(pyproject, **{file.removesuffix(".py"): source})
    return shelf


def selector(name, ratio=0.1, **params):
    """Return the selector as the engine makes it from a manifest."""
    section = CompressSection(select=name, ratio=ratio, **params)
    return selection(section, Fp16(), Int4())(0, 1000)


def test_the_documented_selector_and_quantizer_are_used_by_name_and_cross_the_wire(documented):
    """A reader who copies the page gets working code."""
    every_nth = selector("every_nth")
    fp24 = quantizer("fp24", torch.float32)
    x = torch.randn(1000, generator=generator(0))
    support = every_nth.select(x, None, 3, 4)
    payload = codec.encode(support.take(x), support, fp24, 1000, generator(1))
    received, values = codec.decode(payload, 1000, torch.float32, [fp24])
    assert received == support
    assert torch.equal(received.index(1000), torch.arange(7, 1000, 10))
    assert torch.allclose(values, support.take(x), rtol=2**-15, atol=0)
    assert payload[2] == 128 in PLUGIN_CODES


def test_the_documented_selector_takes_twenty_lines():
    lines = [line for line in PACKAGES[0][0][1].splitlines() if line.strip()]
    assert len(lines) <= 20


def test_the_documented_parts_keep_the_contraction_they_promise(documented):
    """Every coordinate is selected in turn: over n exchanges exactly 1/n of ‖x‖² on average."""
    every_nth = selector("every_nth")
    fp24 = quantizer("fp24", torch.float32)
    x = torch.randn(1000, generator=generator(0), dtype=torch.float64)
    shares = [every_nth.select(x, None, 0, turn).take(x).square().sum() / x.square().sum() for turn in range(10)]
    assert sum(shares).item() / 10 == pytest.approx(every_nth.contraction(1000))
    compressor = Chain(every_nth, fp24)
    errors = [(x - compressor.compress(x, generator(seed))).square().sum() for seed in range(60)]
    assert sum(errors) / 60 <= (1 - compressor.contraction(1000) * 0.9) * x.square().sum()


def test_the_documented_quantizer_refuses_invalid_bytes(documented):
    fp24 = quantizer("fp24", torch.float32)
    for data, reason in ((b"\0" * 5, "bad_length"), (b"\0\x80\x7f", "not_finite")):
        with pytest.raises(ValueError, match=reason):
            fp24.decode(data, 1)


def test_bad_parameters_of_a_package_s_part_give_one_line(documented):
    with pytest.raises(ConfigError, match=r"^compress: ratio must be in \(0, 1\], got 2.0$"):
        selector("every_nth", 2.0)
    with pytest.raises(ConfigError, match=r"compress.n: no such key; choose one of .*ratio"):
        selector("every_nth", n=3)


def test_a_catalogue_lists_built_in_and_installed_names_in_order(documented):
    catalogue = SELECTORS
    assert list(catalogue) == [*SELECTORS.built_in, "every_nth"]
    assert len(catalogue) == len(SELECTORS.built_in) + 1
    assert "every_nth" in catalogue
    assert "nothing" not in catalogue
    with pytest.raises(KeyError):
        catalogue["nothing"]


def test_an_argument_that_a_name_fixes_is_no_parameter_of_it():
    with pytest.raises(ConfigError, match=r"compress\.bits: int8 has no such key, it takes bucket, nearest"):
        QUANTIZERS.build("compress", "int8", {"bits": 4})


def test_without_packages_a_catalogue_is_the_built_in_one(shelf):
    assert tuple(SELECTORS) == SELECTORS.built_in


def test_a_package_is_imported_only_when_named(documented):
    """A package that no manifest names costs nothing and can do no harm."""
    catalogue = SELECTORS
    SELECTORS.check("every_nth")
    assert "every_nth" in catalogue
    catalogue.build("compress", "top_k", {"ratio": 0.1})
    assert "every_nth" not in sys.modules
    assert catalogue["every_nth"].__name__ == "EveryNth"
    assert "every_nth" in sys.modules


@pytest.mark.parametrize(
    ("value", "source", "reason"),
    [
        ("broken:Part", "import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("broken:Part", "raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("broken:Part", "def (", "SyntaxError"),
        ("broken:Part", "", "AttributeError: module 'broken' has no attribute 'Part'"),
        ("absent:Part", "", "ModuleNotFoundError: No module named 'absent'"),
        ("broken:Part", "Part = 3", "must be a class or function, got broken:Part, a int"),
    ],
)
def test_a_broken_package_is_one_line_that_names_it_and_what_to_do(shelf, value, source, reason):
    shelf.offer("starling-broken", "bad", value, broken=source)
    with pytest.raises(ConfigError) as caught:
        selector("bad")
    message = str(caught.value)
    assert reason in message
    assert "'bad' of starling-broken" in message
    assert "pip install --upgrade starling-broken" in message
    assert "\n" not in message
    assert selector("top_k") == SELECTORS["top_k"](0.1)  # a package that is not named is not imported


def test_a_package_cannot_replace_a_built_in_part(shelf):
    """Otherwise installing a package would change the meaning of a name on this machine only."""
    shelf.offer("starling-impostor", "top_k", "impostor:Part", impostor="Part = dict")
    with pytest.raises(ConfigError, match="'top_k' is built in, but starling-impostor offers another"):
        SELECTORS.check("top_k")
    assert SELECTORS["top_k"](0.1) == TopK(0.1)


def test_two_packages_cannot_share_a_name(shelf):
    shelf.offer("starling-b", "both", "b:Part", b="Part = dict")
    shelf.offer("starling-a", "both", "a:Part", a="Part = dict")
    for look_up in (lambda: SELECTORS["both"], lambda: SELECTORS.check("both")):
        with pytest.raises(ConfigError, match="offered by starling-a and starling-b; keep one: `pip uninstall starling-b`"):
            look_up()


def test_an_entry_point_group_offers_only_its_own_parts(documented):
    assert "fp24" not in SELECTORS
    with pytest.raises(ConfigError, match="'fp24'"):
        SELECTORS.check("fp24")


def test_a_name_that_is_not_installed_is_an_error_that_says_so(shelf):
    """A received manifest may name anything, and code is never fetched from peers."""
    shelf.offer("starling-other", "other", "other:Part")
    with pytest.raises(ConfigError) as caught:
        Catalogue("compress.select", "starling.selectors", {"full": Entry(""), "mask": Entry("")}).check("every_nth")
    said = "compress.select: 'every_nth' is unknown, choose one of {}; `pip install` the package that offers it (starling.selectors)"
    assert str(caught.value) == said.format("full, mask, other") + ": peers send names, never code"
    assert said.format("…") in " ".join(PAGE.read_text().split())


@pytest.mark.parametrize("code", [5, 127, 256, -1])
def test_a_packages_quantizer_has_a_code_of_its_own_range(shelf, code):
    """Otherwise a later built-in code could mean something else to older peers."""
    shelf.offer("starling-coarse", "coarse", "coarse:Coarse", "starling.quantizers", coarse=f"class Coarse:\n    code = {code}")
    with pytest.raises(ConfigError, match=rf"code of 'coarse' must be in \[128, 255\], got {code}"):
        quantizer("coarse", torch.float32)


def test_built_in_codes_are_outside_the_packages_range():
    built_in = [quantizer(name, torch.float32) for name in QUANTIZERS]
    assert not {made.code for made in built_in} & set(PLUGIN_CODES)


def test_checking_a_name_imports_no_torch():
    """The daemon and the command line do it, and never import torch."""
    code = (
        "import sys; from starling.gossip.compress.catalogue import SELECTORS;"
        "SELECTORS.check('top_k'); SELECTORS.parameters('top_k'); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_manifest_cannot_use_two_packages_with_one_code(documented):
    """Requests and answers would look alike on the wire."""
    documented.offer("starling-also", "also", "also:Also", "starling.quantizers", also="class Also:\n    code = 128")
    for request, response in (("fp24", "fp24"), ("fp24", "int4")):
        exchange_codec(Manifest(compress=CompressSection(request=request, response=response)), torch.float32)
    with pytest.raises(ConfigError, match="'fp24' and 'also' have the same code 128"):
        exchange_codec(Manifest(compress=CompressSection(request="fp24", response="also")), torch.float32)


def test_two_quantizers_with_one_code_are_refused():
    class Mine:
        code = 3

    assert by_code({"fp16": Fp16(), "half": Fp16(), "float32": Float32()}) == {3: Fp16(), 1: Float32()}
    with pytest.raises(ConfigError, match="'fp16' and 'mine' have the same code 3"):
        by_code({"fp16": Fp16(), "mine": Mine()})
