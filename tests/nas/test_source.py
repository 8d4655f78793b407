"""A network as Python source: recorded by one run, built of plain torch layers, equal to the bit."""
# mypy: disable-error-code="index, union-attr, assignment"

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from asng import Real, fused, nas
from asng.nas._recording import NotRecordable
from asng.nas._source import Source, constructor_of


def check_equal(network, *inputs):
    """The source builds a network with the same outputs and weights; returns its text."""
    network = network.eval()
    source = Source(network, inputs, {})
    built = source.build()
    for batch in (1, len(inputs[0]), 5):
        repeated = [each[:1].expand(batch, *each.shape[1:]).clone() for each in inputs]
        with torch.no_grad():
            torch.testing.assert_close(built(*repeated), network(*repeated), rtol=0, atol=0)
    return source.describe("A network.", "", "weights.safetensors")


class Scaled(nn.Module):
    """A parameter, a buffer and one that is not saved, sizes, an operator of each kind."""

    table: torch.Tensor

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))
        self.register_buffer("shift", torch.randn(4))
        self.register_buffer("table", torch.randn(9, 4), persistent=False)

    def forward(self, x, *, power=2):
        n, length, width = x.shape
        x = x * self.scale - self.shift + self.table[:length]
        y = (1 - x.reshape(n * length, width // 2, 2)).flatten(1)
        y = y.view(n, -1) ** power / 3
        y[:, 0] = 0.5
        mask = torch.arange(y.shape[1], device=x.device) > 2
        return torch.where(mask, y, -y)


class Branches(nn.Module):
    """Python decides: lists, dicts, defaults, a module called twice, one that is not called."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"1x1": nn.Linear(4, 4), "unused": nn.Linear(4, 4)})
        self.tail = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 3)])
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        first = self.layers["1x1"](x)
        second = self.layers["1x1"](F.relu(first)) if self.tail else None
        return {"both": [self.drop(first), second], "heads": (self.tail[1](first + second), None)}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.attention, self.lstm = nn.MultiheadAttention(8, 4, batch_first=True), nn.LSTM(8, 5, batch_first=True)

    def forward(self, x):
        x = self.encoder(x)
        output, _ = self.attention(x, x, x)
        return self.lstm(output)[0]


def with_default_scale(forward):
    @functools.wraps(forward)
    def decorated(self, *args, **kwargs):
        kwargs["scale"] = kwargs.get("scale") or 3.0
        return forward(self, *args, **kwargs)

    return decorated


class Decorated(nn.Module):
    """Its decorator looks for keywords, as those of Hugging Face's models do."""

    @with_default_scale
    def forward(self, x, scale=None):
        return x * scale


class Decorates(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Decorated()

    def forward(self, x):
        return self.inner(x, scale=None)


class Parameters(nn.Module):
    """Lists and dicts of parameters, of which some are not read, and one is read twice."""

    def __init__(self):
        super().__init__()
        self.shifts = nn.ParameterList([torch.randn(4) for _ in range(3)])
        self.scales = nn.ParameterDict({"class": torch.randn(4), "1x1": torch.randn(4), "unused": torch.randn(4)})
        self.scales["lambda"] = self.shifts[2]

    def forward(self, x):
        return (
            (x + self.shifts[1]) * self.scales["class"] / self.scales["1x1"] + self.scales["lambda"] - self.shifts[-1]
        )


class Statistics(nn.Module):
    """Only its methods are called; the names of its parts are those of methods of dicts."""

    values: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("values", torch.randn(4))
        self.scale, self.unused = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.keys = nn.Linear(4, 4)

    def normalize(self, x):
        return self.keys(x - self.values) * self.scale


class CallsMethods(nn.Module):
    def __init__(self):
        super().__init__()
        self.statistics: Any = nn.ModuleList([Statistics(), Statistics()])
        self.statistics[1].unused = self.statistics[0].unused

    def forward(self, x):
        return self.statistics[1].normalize(self.statistics[0].normalize(x))


class ScaledList(nn.Sequential):
    scale: torch.Tensor

    def __init__(self, *layers):
        super().__init__(*layers)
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x):
        for layer in self:
            x = x + self.scale * layer(x)
        return x


class ScaledDict(nn.ModuleDict):
    def __init__(self, layers):
        super().__init__(layers)
        self.register_buffer("scale", torch.randn(4))

    def forward(self, x):
        return self["1x1"](x) * self.scale


class ReadsList(nn.Module):
    """A list with a tensor, whose forward is not called."""

    def __init__(self):
        super().__init__()
        self.layers = ScaledList(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x):
        return self.layers[1](x) * self.layers.scale


class OtherDtypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.table = nn.Parameter(torch.randint(-5, 5, (4, 4), dtype=torch.int8), requires_grad=False)
        self.mask = nn.Parameter(torch.tensor([True, False, True, True]), requires_grad=False)

    def forward(self, x):
        x = torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=4)
        return torch.where(self.mask, x @ self.table.float(), x)


CASES = {
    "tensors of its own": (Scaled, (torch.randn(2, 5, 4),)),
    "containers": (Branches, (torch.randn(3, 4),)),
    "tied weights": (Tied, (torch.zeros(2, 3, dtype=torch.long),)),
    "attention": (Attention, (torch.randn(2, 3, 8),)),
    "a decorator": (Decorates, (torch.randn(2, 4),)),
    "lists and dicts of parameters": (Parameters, (torch.randn(2, 4),)),
    "modules whose methods are called": (CallsMethods, (torch.randn(2, 4),)),
    "a sequence with a tensor": (lambda: ScaledList(nn.Linear(4, 4), nn.ReLU()), (torch.randn(2, 4),)),
    "a dict with a tensor": (lambda: ScaledDict({"1x1": nn.Linear(4, 4)}), (torch.randn(2, 4),)),
    "a list with a tensor, which is not called": (ReadsList, (torch.randn(2, 4),)),
    "complex, integer and boolean parameters": (OtherDtypes, (torch.randn(2, 4),)),
}


@pytest.mark.parametrize(("make", "inputs"), CASES.values(), ids=CASES)
def test_source_computes_what_the_network_computes(make, inputs):
    torch.manual_seed(0)
    check_equal(make(), *inputs)


def test_weights_that_are_shared_stay_shared():
    built: Any = Source(Tied().eval(), (torch.zeros(2, 3, dtype=torch.long),), {}).build()
    assert built.head.weight is built.embedding.weight


def test_modules_that_do_not_run_are_left_out_and_names_stay():
    network = Branches().eval()
    built = Source(network, (torch.randn(3, 4),), {}).build()
    names = set(built.state_dict())
    assert names == {"layers.1x1.weight", "layers.1x1.bias", "tail.1.weight", "tail.1.bias"}
    assert names < set(network.state_dict())


def test_tensors_that_are_not_read_are_left_out_and_names_stay():
    built = Source(Parameters().eval(), (torch.randn(3, 4),), {}).build()
    assert set(built.state_dict()) == {"shifts.1", "shifts.2", "scales.class", "scales.1x1", "scales.lambda"}
    built = Source(CallsMethods().eval(), (torch.randn(3, 4),), {}).build()
    assert not any("unused" in name for name in built.state_dict())


def test_equal_modules_share_a_class_and_others_get_numbers():
    class Block(nn.Module):
        def __init__(self, width, factor):
            super().__init__()
            self.linear, self.factor = nn.Linear(4, width), factor

        def forward(self, x):
            return self.linear(x) * self.factor

    text = check_equal(nn.Sequential(Block(4, 1.5), Block(4, 2.5), Block(9, 1.5)), torch.randn(2, 4))
    assert text.count("class ") == 2
    assert "class Block(nn.Module):" in text
    assert "class Block2(nn.Module):" in text
    assert "return linear * 2.5" in text


def test_extracted_decisions_leave_nothing_of_asng():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            blocks = [nn.Bilinear(4, 4, 4) for _ in range(3)]
            self.blocks, self.source = nas.Repeat("depth", blocks), nas.Pick("source", 2)
            self.plain = nas.Repeat("plain", [nn.Linear(4, 4) for _ in range(2)])
            self.rate = nas.Value("rate", Real(0, 1))

        def forward(self, x, y):
            return self.source([x, self.plain(self.blocks(x, y)) * self.rate.value])

    text = check_equal(
        nas.extract(Net(), {"depth": 2, "source": 1, "plain": 2, "rate": 0.25}), torch.randn(2, 4), torch.randn(2, 4)
    )
    assert "self.blocks(x, y)" in text
    assert "* 0.25" in text
    assert "plain=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))" in text


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 6, (3, 5), stride=2, padding=1, dilation=2, groups=2, padding_mode="circular"),
        nn.ConvTranspose1d(4, 6, 3, output_padding=1, stride=2, bias=False),
        nn.BatchNorm2d(4, eps=0.1, momentum=None, affine=False),
        nn.BatchNorm1d(4, track_running_stats=False),
        nn.LayerNorm([2, 3], elementwise_affine=False),
        nn.LayerNorm(4, bias=False),
        nn.GroupNorm(2, 4),
        nn.RMSNorm(4),
        nn.PReLU(4),
        nn.Embedding(5, 3, padding_idx=2),
        nn.GELU(approximate="tanh"),
        nn.AdaptiveAvgPool2d((1, None)),
        nn.Upsample(scale_factor=2.0, mode="bilinear"),
        nn.GRU(3, 4, num_layers=2, bidirectional=True, bias=False),
        nn.MultiheadAttention(8, 2, bias=False, add_bias_kv=True),
        nn.Flatten(2),
        nn.Unflatten(1, (2, 2)),
        nn.Identity(),
        nn.Softmax(dim=-1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_the_constructor_of_a_layer_makes_one_with_the_same_settings_and_shapes(layer):
    text = constructor_of(layer)
    assert text is not None
    made = eval(text, {"nn": nn})
    assert repr(made) == repr(layer)
    shapes, others = ({name: value.shape for name, value in each.state_dict().items()} for each in (made, layer))
    assert shapes == others


def test_a_layer_that_no_call_makes_is_recorded_instead():
    layer = nn.Linear(4, 3, bias=False)
    layer.weight = nn.Parameter(torch.randn(5, 4))  # no longer what its settings say
    assert constructor_of(layer) is None
    assert "F.linear(input, self.weight, None)" in check_equal(layer, torch.randn(2, 4))


def test_fused_layers_become_torchs():
    network = fused.fuse(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2)))
    text = check_equal(fused.unfuse(network), torch.randn(2, 3, 8, 8))
    assert "fused" not in text
    assert "        nn.BatchNorm2d(4),\n        nn.MaxPool2d(2, stride=2),\n    )" in text


class Reads(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Caches(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = [torch.ones(4)]

    def forward(self, x):
        return x + self.cache[0]


class Hides(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(4, 4)]

    def forward(self, x):
        return self.layers[0](x) + x


class Changes(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class Named(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.add_module(name, nn.Linear(4, 4))

    def forward(self, x):
        return next(self.children())(x)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Named("self"), r"0 \(Named\) has a part 'self', which cannot be the name of an argument.*rename it"),
        (Named("class"), r"0 \(Named\) has a part 'class'"),
        (Named("1x1"), r"0 \(Named\) has a part '1x1'"),
        (Reads(), r"0 \(Reads\) reads numbers out of a tensor \(__bool__\).*torch.where"),
        (Caches(), r"0 \(Caches\) uses a tensor that is not an input.*register_buffer"),
        (Hides(), r"0 \(Hides\) uses a tensor that is not an input"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_source_cannot_say_is_refused_by_the_modules_name_and_the_cure(part, message):
    with pytest.raises(NotRecordable, match=message):
        Source(nn.Sequential(part).eval(), (torch.randn(2, 4),), {})


class Given(nn.Module):
    def forward(self, x, temperature, mask, *, options):
        x = x / temperature if mask is None else x * mask
        return x + options["shifts"][0] if options["flag"] else x


def test_numbers_that_are_given_are_those_of_the_example_and_others_are_refused():
    x, arguments = torch.randn(2, 4), {"options": {"shifts": [3], "flag": True}}
    built = Source(Given().eval(), (x, 2.0, None), arguments).build()
    assert torch.equal(built(x, 2.0, None, **arguments), x / 2 + 3)
    for others, name in [
        ((x, 1.0, None, [3], True), "temperature has to be 2.0, as in the example"),
        ((x, 2.0, x, [3], True), "mask has to be None"),
        ((x, 2.0, None, [4], True), r"options\['shifts'\]\[0\] has to be 3"),
        ((x, 2.0, None, [3], False), r"options\['flag'\] has to be True"),
        ((x, 2.0, None, [3, 4], True), r"len\(options\['shifts'\]\) has to be 1"),
    ]:
        with pytest.raises(ValueError, match=name):
            built(*others[:3], options={"shifts": others[3], "flag": others[4]})
    with pytest.raises(ValueError, match=r"set\(options\) has to be \{'shifts', 'flag'\}"):
        built(x, 2.0, None, options={"shifts": [3], "flag": True, "more": x})


class Sum(nn.Module):
    def forward(self, *xs, fill):
        return sum(x.nan_to_num(fill) for x in xs)


def test_further_tensors_are_refused_and_nan_is_a_number():
    x = torch.randn(2, 4)
    built = Source(Sum().eval(), (x, x + 1), {"fill": float("nan")}).build()
    assert torch.equal(built(x, x + 1, fill=float("nan")), x + (x + 1))
    with pytest.raises(ValueError, match=r"len\(xs\) has to be 2"):
        built(x, x, x, fill=float("nan"))
    with pytest.raises(ValueError, match=r"fill has to be float\('nan'\)"):
        built(x, x, fill=0.0)


@pytest.mark.parametrize("wrap", [lambda part: part, nn.Sequential], ids=["alone", "sequence"])
def test_sizes_are_fixed_on_request(wrap):
    network = wrap(Scaled()).eval()
    built = Source(network, (torch.randn(2, 5, 4),), {}, fixed_axes=[(1, 5)]).build()
    x = torch.randn(3, 5, 4)
    torch.testing.assert_close(built(x), network(x), rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"shape\[1\] has to be 5, as in the example"):
        built(torch.randn(2, 3, 4))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_torchscript_is_refused():
    network = nn.Sequential(torch.jit.script(nn.Linear(4, 4)))
    with pytest.raises(
        NotRecordable, match=r"0 \(RecursiveScriptModule\) is TorchScript.*use the module it was made of"
    ):
        Source(network.eval(), (torch.randn(2, 4),), {})


def test_a_module_that_changes_between_calls_is_refused():
    part = Changes()
    with pytest.raises(NotRecordable, match="something else at its second call"):
        Source(nn.Sequential(part, part).eval(), (torch.randn(2, 4),), {})


def test_a_forward_hook_is_refused():
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda module, inputs, output: output * 2)
    with pytest.raises(NotRecordable, match=r"0 \(Linear\) has a forward hook.*remove it"):
        Source(nn.Sequential(layer).eval(), (torch.randn(2, 4),), {})


def test_text_from_outside_cannot_leave_the_docstring():
    source = Source(nn.Linear(2, 2).eval(), (torch.zeros(2, 2),), {})
    hostile = 'x"""\nraise SystemExit("out")\n"""\\'
    names: dict = {"__name__": "network", "__file__": "network.py"}
    exec(source.describe(hostile, "", "w"), names)
    assert "SystemExit" in names["__doc__"]


def test_the_network_is_not_changed():
    network = Branches().eval()
    before = {name: id(tensor) for name, tensor in network.state_dict(keep_vars=True).items()}
    Source(network, (torch.randn(3, 4),), {})
    assert all("forward" not in vars(module) for module in network.modules())
    assert {name: id(tensor) for name, tensor in network.state_dict(keep_vars=True).items()} == before
