"""Model files: which tensors are written and which files are read, with tied tensors, prefixes, extra state and packed bases."""

import copy

import pytest
import safetensors.torch
import torch
from torch import nn

from starling.gossip.errors import ConfigError
from starling.node.engine import formats, model_file
from starling.node.engine.quantised import pieces, quantised


class Tied(nn.Module):
    """An embedding that is also the output layer, and a buffer under two names."""

    def __init__(self, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embed, self.body = nn.Embedding(6, 4), nn.Linear(4, 4)
            self.head = nn.Linear(4, 6, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("table", torch.randn(3))
        self.body.register_buffer("table", self.table)


class Wrapped(nn.Module):
    """The same model inside another module, as wrappers of training libraries do."""

    def __init__(self, seed=0):
        super().__init__()
        self.module = Tied(seed)


def equal(one, other):
    ours, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_tied_tensors_are_written_once_under_their_first_name():
    names = set(model_file.entries(Tied()))
    assert names == {"embed.weight", "body.weight", "body.bias", "table"}


def test_equal_or_empty_tensors_are_not_taken_for_tied():
    model = nn.ParameterDict({"a": torch.zeros(2), "b": torch.zeros(2), "c": torch.zeros(0), "d": torch.zeros(0)})
    model["e"] = nn.Parameter(model["a"].data.view(2, 1), requires_grad=False)  # the same memory in another tensor object
    assert set(model_file.entries(model)) == {"a", "b", "c", "d", "e"}


def test_a_save_model_file_loads_under_any_tied_name(tmp_path):
    safetensors.torch.save_model(Tied(1), tmp_path / "m")
    fresh = Tied()
    model_file.fill(fresh, safetensors.torch.load_file(tmp_path / "m"))
    assert equal(fresh, Tied(1))
    assert fresh.head.weight is fresh.embed.weight
    kept = {"head.weight" if name == "embed.weight" else name: each for name, each in model_file.entries(Tied(2)).items()}
    model_file.fill(fresh, kept)
    assert equal(fresh, Tied(2))


def test_exports_are_read_by_load_model(tmp_path):
    safetensors.torch.save_file(model_file.entries(Tied(1)), tmp_path / "m")
    fresh = Tied()
    assert safetensors.torch.load_model(fresh, tmp_path / "m", strict=True) == (set(), [])
    assert equal(fresh, Tied(1))


def test_two_values_for_one_tied_tensor_are_refused():
    given = {name: each.clone() for name, each in Tied(1).state_dict().items()}
    model_file.fill(Tied(), given)
    given["head.weight"] += 1
    with pytest.raises(ValueError, match=r"has other values in 'head.weight' than in 'embed.weight', which are one"):
        model_file.fill(Tied(), given)


@pytest.mark.parametrize(("source", "target"), [(Wrapped, Tied), (Tied, Wrapped)])
def test_one_added_or_missing_prefix_on_all_names_is_accepted(source, target):
    """The prefixes of DataParallel and torch.compile, or of the body of a language model saved alone."""
    fresh = target()
    model_file.fill(fresh, model_file.entries(source(1)))
    assert equal(getattr(fresh, "module", fresh), Tied(1))


def test_a_prefix_on_some_names_is_refused():
    given = model_file.entries(Tied(1))
    given["module.table"] = given.pop("table")
    with pytest.raises(ValueError, match=r"has a foreign tensor 'module\.table'"):
        model_file.fill(Tied(), given)


class Scaled(nn.Module):
    """A layer with state that is not a tensor."""

    def __init__(self, state=1.5):
        super().__init__()
        self.o, self.state = nn.Linear(2, 1), state

    def get_extra_state(self):
        return self.state

    def set_extra_state(self, state):
        self.state = state


def test_extra_state_is_neither_written_to_files_nor_loaded():
    """A module may unpickle the state it is given, and files may come from others."""
    given = model_file.entries(Scaled(torch.ones(1)))
    assert set(given) == {"o.weight", "o.bias"}
    fresh = Scaled()
    model_file.fill(fresh, given | {"_extra_state": torch.ones(1)})
    assert fresh.state == 1.5


@pytest.mark.parametrize("state", [2.5, {"scale": [1, torch.ones(2)]}])
def test_torchs_format_has_extra_state_and_loads_strictly(tmp_path, state):
    formats.write("torch", Scaled(state), None, None, tmp_path / "m.pt")
    fresh = Scaled()
    fresh.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True), strict=True)
    assert repr(fresh.state) == repr(state)


def test_extra_state_that_would_have_to_be_unpickled_is_refused_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"get_extra_state.*Scaled; let it give numbers.*--format safetensors") as caught:
        formats.write("torch", Scaled(Tied), None, None, tmp_path / "m.pt")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_torch_s_format_stores_tied_tensors_once(tmp_path):
    formats.write("torch", Tied(1), None, None, tmp_path / "m.pt")
    read = torch.load(tmp_path / "m.pt", weights_only=True)
    fresh = Tied()
    fresh.load_state_dict(read, strict=True)
    assert equal(fresh, Tied(1))
    assert read["head.weight"].data_ptr() == read["embed.weight"].data_ptr()


class Packed(nn.Module):
    """Imitates layers of GPTQ: four-bit values stored in integers, with scales, beside a trained bias."""

    def __init__(self):
        super().__init__()
        self.register_buffer("qweight", torch.ones(4, 4, dtype=torch.int32))
        self.register_buffer("scales", torch.ones(4))
        self.bias = nn.Parameter(torch.zeros(4))


class WholeNumbers(nn.Module):
    """A frozen parameter of integers, whose scale is a buffer that the layer adds to its state_dict."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4, dtype=torch.int8), requires_grad=False)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight.scale"] = torch.ones(4)


@pytest.mark.parametrize(
    ("layer", "left_out", "held"),
    [
        (Packed, {"0.qweight", "0.scales"}, {"0.bias", "1.weight", "2.running_mean", "2.running_var", "2.num_batches_tracked"}),
        (WholeNumbers, {"0.weight", "0.weight.scale"}, {"1.weight", "2.running_mean", "2.running_var", "2.num_batches_tracked"}),
    ],
)
def test_files_of_a_packed_base_have_trained_tensors_only(layer, left_out, held):
    model = nn.Sequential(layer(), nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False))
    model[1].bias.requires_grad_(False)  # frozen but not packed, so it belongs to the base
    assert quantised(model) == left_out
    assert set(model_file.entries(model)) == held
    assert model_file.facts(model) == {"holds": "trained"}
    fresh = copy.deepcopy(model)
    fresh[1].weight.data += 1
    model_file.fill(fresh, model_file.entries(model))
    assert torch.equal(fresh[1].weight, model[1].weight)
    with pytest.raises(ValueError, match="foreign tensor"):
        model_file.fill(fresh, model.state_dict())


def test_a_plain_model_is_written_whole_though_parts_are_frozen():
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))
    assert quantised(model) == frozenset()
    assert set(model_file.entries(model)) == set(model.state_dict())
    assert model_file.facts(model) == {}


@pytest.mark.parametrize("form", ["hf", "onnx"])
def test_formats_with_the_whole_model_are_refused_for_a_packed_base(form, tmp_path):
    with pytest.raises(ConfigError, match=f"--format: {form} holds the whole model, .*packed; try `--format peft`"):
        formats.write(form, WholeNumbers(), None, None, tmp_path / "x")


def test_bitsandbytes_parameters_and_their_attributes_count_as_packed(recwarn):
    bnb = pytest.importorskip("bitsandbytes", reason="needs bitsandbytes")
    four = bnb.nn.Linear4bit(64, 64, compute_dtype=torch.float32, quant_type="nf4")
    four.weight = bnb.nn.Params4bit(torch.randn(64, 64), requires_grad=False, quant_type="nf4")
    model = nn.Sequential(four.to("cpu"), bnb.nn.Linear8bitLt(64, 64, has_fp16_weights=False).to("cpu"), nn.Linear(64, 2))
    left_out = quantised(model)
    assert {"0.weight", "0.weight.absmax", "1.weight"} <= left_out
    assert not left_out & {"0.bias", "1.bias", "2.weight"}
    assert set(model_file.entries(model)) == {"0.bias", "1.bias", "2.weight", "2.bias"}
    assert all(type(each) is torch.Tensor for parameter in model.parameters() for each in pieces(parameter))
