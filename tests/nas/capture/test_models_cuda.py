"""Captured searches of the models and loops that users bring, beside plain ones.

They run on a GPU, and on the CPU all but the graph. Every test either compares losses, scores and candidates with
those of plain steps, or asserts the reason for which steps run as usual.
"""

# mypy: disable-error-code="misc, var-annotated, attr-defined"

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from asng import Categorical, nas
from asng.nas import Limit, OneOf, Repeat, Value, Width, parameters
from asng.nas._capture import trace
from tests.helpers.captures import Choosy, oneshot
from tests.helpers.foreign_models import ResNet, VisionTransformer, search_resnet, search_vit
from tests.helpers.searches import Net, batches, pairs

pytestmark = pytest.mark.slow
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_cuda)])
def device(request):
    """A GPU, or the CPU as if steps could be captured there: all but the graph."""
    torch.manual_seed(0)
    if request.param == "cpu":
        request.getfixturevalue("graphless")
    return torch.device(request.param)


def error_of(model, batch):
    return nn.functional.cross_entropy(model(*batch[:-1]), batch[-1])


def move(batches, device):
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), batches)


def draw_pairs(shape, device, *, n=8, classes=3, ids=0, dtype=torch.double):
    """Pairs of batches of random inputs, or of ids below some number, and of labels."""
    generator = torch.Generator().manual_seed(1)

    def batch():
        x = torch.randint(ids, shape, generator=generator) if ids else torch.randn(shape, generator=generator).to(dtype)
        return x, torch.randint(classes, shape[:1], generator=generator)

    return move([(batch(), batch()) for _ in range(n)], device)


def assert_captured_equals_plain(model, data, *, rtol=1e-6, **settings):
    """Steps from the same weights: each equals the plain one, no warning is given, and the weights are the same."""
    model, twin = model.double(), copy.deepcopy(model).double()
    settings = {"loss_fn": error_of, **settings}
    plain, captured = oneshot(model, **settings), oneshot(twin, capture=True, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps = [(plain.step(train, valid), captured.step(train, valid)) for train, valid in data]
    for expected, got in steps:
        assert got.candidates == expected.candidates
        torch.testing.assert_close(got.train_losses, expected.train_losses, rtol=rtol, atol=1e-9)
        torch.testing.assert_close(got.scores, expected.scores, rtol=rtol, atol=1e-9)
        torch.testing.assert_close(got.valid_metrics, expected.valid_metrics, rtol=rtol, atol=1e-9)
    assert captured.capture_cost
    captured.state_dict()  # which stores the weights' gradients and momentum
    torch.testing.assert_close([*twin.parameters()], [*model.parameters()], rtol=1e-5, atol=1e-8)


def assert_runs_as_usual(model, data, reason, **settings):
    """Steps equal plain ones, after one warning with the reason."""
    model, twin = model.double(), copy.deepcopy(model).double()
    make = settings.pop("weight_optimizer", lambda model: None)
    settings = {"loss_fn": error_of, **settings}
    plain, captured = (
        oneshot(m, weight_optimizer=make(m), capture=c, **settings) for m, c in ((model, False), (twin, True))
    )
    with pytest.warns(UserWarning, match=f"not captured as a CUDA graph, but runs as usual: .*{reason}") as caught:
        got = [captured.step(*pair) for pair in data]
    assert len(caught) == 1
    for step, pair in zip(got, data, strict=True):
        expected = plain.step(*pair)
        assert step.candidates == expected.candidates
        torch.testing.assert_close(step.scores, expected.scores, rtol=1e-6, atol=1e-9)
    assert not captured.capture_cost


# Elastic layers ------------------------------------------------------------------------------------


def width():
    return Width("width", [2, 4, 6])


def around(make, first=None, last=None):
    """An elastic layer between two others, and the mean of what they give over all places."""
    first, last = first or nas.Conv1d, last or nas.Conv1d
    size = width()
    # Not linear from the layer on: the mean of what an instance norm gives is 0, and rounding alone would rank widths.
    return nn.Sequential(first(2, size, 1), make(size), nn.Tanh(), last(size, 3, 1), nn.Flatten(2), Mean())


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(-1)


def kernel():
    return Value("kernel", Categorical([1, 3]))


def of_axes(n):
    """Models of layers with n axes of places: convolutions with elastic kernels and groups, norms, transposed ones."""
    conv, transposed = getattr(nas, f"Conv{n}d"), getattr(nas, f"ConvTranspose{n}d")
    batch, instance = getattr(nas, f"BatchNorm{n}d"), getattr(nas, f"InstanceNorm{n}d")
    ends = {"first": conv, "last": conv}
    shape = (4, 2, *(4, 5, 3)[:n])
    return {
        f"Conv{n}d": (lambda: around(lambda size: conv(size, size, kernel(), padding=1), **ends), shape),
        f"depthwise Conv{n}d": (
            lambda: around(lambda size: conv(size, size, 3, padding=1, groups=size), **ends),
            shape,
        ),
        f"ConvTranspose{n}d": (lambda: around(lambda size: transposed(size, size, 3, 2), **ends), shape),
        f"BatchNorm{n}d": (lambda: around(batch, **ends), shape),
        f"InstanceNorm{n}d": (lambda: around(lambda size: instance(size, affine=True), **ends), shape),
    }


class Tied(nn.Module):
    """A language model: its head has the weight of its embedding."""

    def __init__(self):
        super().__init__()
        size = width()
        self.embedding, self.norm = nas.Embedding(7, size), nas.RMSNorm(size)
        self.head = nas.Linear(size, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.norm(self.embedding(ids)).mean(1))


class GRUCell(nas.ElasticLayer, nn.GRUCell):
    """An elastic layer as a user writes it."""

    torch_layer, elastic = nn.GRUCell, ("input_size", "hidden_size")

    def active_tensors(self):
        inputs, hidden = self.sizes["input_size"](), self.sizes["hidden_size"]()

        def gates(tensor):
            return tensor.unflatten(0, (3, -1))[:, :hidden].flatten(0, 1)

        weights = {"weight_ih": gates(self.weight_ih)[:, :inputs], "weight_hh": gates(self.weight_hh)[:, :hidden]}
        return weights | {"bias_ih": gates(self.bias_ih), "bias_hh": gates(self.bias_hh)}


LAYERS: dict[str, Any] = {
    **of_axes(1),
    **of_axes(2),
    **of_axes(3),
    "RMSNorm": (lambda: nn.Sequential(nas.Linear(4, w := width()), nas.RMSNorm(w), nas.Linear(w, 3)), (4, 4)),
    "LayerNorm": (lambda: nn.Sequential(nas.Linear(4, w := width()), nas.LayerNorm(w), nas.Linear(w, 3)), (4, 4)),
    "PReLU": (lambda: nn.Sequential(nas.Linear(4, w := width()), nas.PReLU(w), nas.Linear(w, 3)), (4, 4)),
    "GroupNorm": (lambda: around(lambda size: nas.GroupNorm(1, size)), (4, 2, 5)),
    "GroupNorm of pairs": (lambda: around(lambda size: nas.GroupNorm(size // 2, size)), (4, 2, 5)),
    "sizes of two decisions": (
        lambda: nn.Sequential(nas.Linear(4, w := width() * Width("ratio", [1, 2]) + width()), nas.Linear(w, 3)),
        (4, 4),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("cases", [64, 1], ids=["switched", "masked"])
@pytest.mark.parametrize("name", LAYERS)
def test_elastic_layers_are_captured(name, cases, device, monkeypatch):
    monkeypatch.setattr(trace, "MAX_CASES", cases)
    make, shape = LAYERS[name]
    assert_captured_equals_plain(make().to(device), draw_pairs(shape, device))


@pytest.mark.parametrize("cases", [64, 1], ids=["switched", "masked"])
def test_an_embedding_tied_to_a_linear_is_captured(cases, device, monkeypatch):
    monkeypatch.setattr(trace, "MAX_CASES", cases)
    assert_captured_equals_plain(Tied().to(device), draw_pairs((4, 5), device, ids=7, classes=7))


class Attends(nn.Module):
    def __init__(self, need_weights):
        super().__init__()
        heads, head_dim = Width("heads", [1, 2]), Width("head_dim", [2, 4])
        size = heads * head_dim
        self.stem, self.head = nas.Linear(3, size), nas.Linear(size, 3)
        self.attention = nas.MultiheadAttention(size, heads, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x):
        x = self.stem(x)
        return self.head(self.attention(x, x, x, need_weights=self.need_weights)[0].mean(1))


@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_is_captured(need_weights, device):
    assert_captured_equals_plain(Attends(need_weights).to(device), draw_pairs((4, 5, 3), device))


def test_attention_with_too_many_cases_runs_as_usual(device, monkeypatch):
    monkeypatch.setattr(trace, "MAX_CASES", 1)
    data = draw_pairs((4, 5, 3), device, n=2)
    assert_runs_as_usual(Attends(need_weights=False).to(device), data, "with masks for widths, attention has more than")


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        size = width()
        self.cell, self.head = GRUCell(3, size), nas.Linear(size, 3)

    def forward(self, x):
        state = x.new_zeros(len(x), self.cell.sizes["hidden_size"]())
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state)


def test_an_elastic_layer_of_ones_own_is_captured(device):
    assert_captured_equals_plain(Steps().to(device), draw_pairs((4, 5, 3), device))


# Existing models -----------------------------------------------------------------------------------


class Layer(nn.Module):
    """A layer that takes further inputs, one of them by keyword."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, shift, *, mask=None):
        x = self.linear(x).tanh() + shift
        return x if mask is None else x * mask


class Encoder(nn.Module):
    def __init__(self, *, iterates):
        super().__init__()
        self.layers = Repeat("depth", [Layer() for _ in range(3)])
        self.head, self.iterates = nn.Linear(4, 3), iterates

    def forward(self, x):
        mask = (x > 0).to(x.dtype)
        if not self.iterates:
            return self.head(self.layers(x, x.mean(1, keepdim=True), mask=mask))
        for layer in self.layers:  # as Hugging Face's models do
            x = layer(x, x.mean(1, keepdim=True), mask=mask)
        return self.head(x)


@pytest.mark.parametrize("iterates", [False, True], ids=["called", "iterated over"])
def test_a_repeat_of_layers_with_further_inputs_is_captured(iterates, device):
    assert_captured_equals_plain(Encoder(iterates=iterates).to(device), draw_pairs((4, 4), device))


def test_a_converted_vit_is_captured(device):
    model = nas.convert(VisionTransformer(), search_vit)
    assert_captured_equals_plain(model.to(device), draw_pairs((4, 3, 8, 8), device, n=4, classes=5))


def out_of_place(path, module):
    if isinstance(module, nn.ReLU):
        module.inplace = False
    return search_resnet(path, module)


def test_a_converted_resnet_is_captured(device):
    model = nas.convert(ResNet(), out_of_place)
    assert_captured_equals_plain(model.to(device), draw_pairs((4, 3, 16, 16), device, n=4, classes=5), rtol=1e-5)


def test_a_converted_resnet_that_writes_in_place_runs_as_usual(device):
    model = nas.convert(ResNet(), search_resnet)
    data = draw_pairs((4, 3, 16, 16), device, n=2, classes=5)
    assert_runs_as_usual(model.to(device), data, r"in-place.*leave out inplace=True.*ReLU")


class PaddedEncoder(nn.Module):
    """An encoder of torch with a padding mask; in evaluation mode and without gradients it makes nested tensors."""

    def __init__(self, searched):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 4, 16, dropout=0.0, batch_first=True)
        self.stem, self.encoder, self.head = nn.Linear(3, 8), nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)
        for at, layer in enumerate(self.encoder.layers):
            if searched == "heads":
                layer.self_attn = nas.MultiheadAttention.from_torch(layer.self_attn, num_heads=Width("heads", [2, 4]))
            elif searched == "hidden":
                hidden = Width(f"hidden{at}", [4, 16])
                layer.linear1 = nas.Linear.from_torch(layer.linear1, out_features=hidden)
                layer.linear2 = nas.Linear.from_torch(layer.linear2, in_features=hidden)
        if searched == "depth":
            self.encoder.layers = Repeat("depth", self.encoder.layers)

    def forward(self, x, is_padding):
        x = self.encoder(self.stem(x), src_key_padding_mask=is_padding)
        return self.head(x.masked_fill(is_padding[..., None], 0).mean(1))


@pytest.mark.parametrize("searched", ["heads", "hidden", "depth"])
def test_an_encoder_with_padding_is_captured_with_a_judge_in_evaluation_mode(searched, device):
    def judge(model, batch):
        return error_of(model.eval(), batch)

    def pad(batch):
        x, labels = batch
        lengths = torch.randint(1, 6, (4, 1), generator=generator).to(device)
        return x, torch.arange(5, device=device) >= lengths, labels

    generator = torch.Generator().manual_seed(2)
    data = [tuple(map(pad, pair)) for pair in draw_pairs((4, 5, 3), device, n=4)]
    assert_captured_equals_plain(PaddedEncoder(searched).to(device), data, judge=judge)


# Judges, batches, optimizers -----------------------------------------------------------------------


def share_of_errors(model, batch):
    logits = model(batch[0])
    return (logits.argmax(1) != batch[1]).double().mean(), {"loss": nn.functional.cross_entropy(logits, batch[1])}


def evaluates(model, batch):
    """A judge that calls eval(), as users do."""
    model.eval()
    return share_of_errors(model, batch)


@pytest.mark.parametrize(("make", "judge"), [(Choosy, share_of_errors), (lambda: Net(dropout=0), evaluates)])
def test_judges_are_captured_with_their_metrics(make, judge, device):
    assert_captured_equals_plain(make().to(device), move(pairs(12, torch.double), device), judge=judge)


def test_a_judge_that_reads_the_values_of_its_candidate_runs_as_usual(device):
    def penalized_loss(model, batch):
        return error_of(model, batch) + 0.01 * nas.selected(model)["depth"]

    data = move(pairs(3, torch.double), device)
    reason = "decision .* is read in Python outside a choice"
    assert_runs_as_usual(Choosy().to(device), data, reason, judge=penalized_loss)


def named_error(model, batch):
    return nn.functional.cross_entropy(model(batch["input"]["x"]), batch["labels"][0])


def test_batches_of_dicts_are_captured(device):
    def name(batch):
        return {"input": {"x": batch[0]}, "labels": [batch[1]], "kind": "digits"}

    data = [tuple(map(name, pair)) for pair in move(pairs(8, torch.double), device)]
    assert_captured_equals_plain(Choosy().to(device), data, loss_fn=named_error)


def test_several_optimizers_run_as_usual(device, monkeypatch):
    monkeypatch.undo()  # the obstacle is looked for on the CPU, too

    def optimizers(model):
        return [torch.optim.SGD(model.head.parameters(), 0.1), torch.optim.SGD(model.stem.parameters(), 0.1)]

    model = Choosy().to(device)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(("head", "stem")))
    data = move(pairs(3, torch.double), device)
    assert_runs_as_usual(model, data, "there are several weight optimizers", weight_optimizer=optimizers)


def test_accumulated_gradients_run_as_usual_between_captured_steps(device):
    model, twin = (m := Choosy().double().to(device)), copy.deepcopy(m)
    plain, captured = oneshot(model), oneshot(twin, capture=True)
    data = move(pairs(6, torch.double), device)

    def run(search):
        for train, valid in data:
            micro_batches = zip(*(tensor.split(4) for tensor in train), strict=True)
            yield from (search.train_step(*micro_batches), search.judge_step(valid), search.step(train, valid))

    with pytest.warns(UserWarning, match="train_step and judge_step are not captured, only step is") as caught:
        steps = list(run(captured))
    assert len(caught) == 1
    for expected, got in zip(run(plain), steps, strict=True):
        assert got.candidates == expected.candidates
        torch.testing.assert_close(got.train_losses, expected.train_losses, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(got.scores, expected.scores, rtol=1e-6, atol=1e-9)
    assert captured.capture_cost


def test_relations_between_decisions_as_limits_are_captured(device):
    relation = Limit(lambda model, values: values["depth"], at_most=2, name="depth")
    data = move(pairs(10, torch.double), device)
    assert_captured_equals_plain(Choosy().to(device), data, limits=[Limit(parameters, 1e12), relation])


class Recomputes(nn.Module):
    def __init__(self, preserve_rng_state):
        super().__init__()
        self.linear, self.preserve_rng_state = nn.Linear(8, 8), preserve_rng_state

    def forward(self, x):
        return checkpoint(self._run, x, use_reentrant=False, preserve_rng_state=self.preserve_rng_state)

    def _run(self, x):
        return self.linear(x).tanh()


@pytest.mark.parametrize("preserve_rng_state", [False, True])
def test_an_option_that_recomputes_is_captured(preserve_rng_state, device):
    model = Choosy()
    model.last.options[1] = Recomputes(preserve_rng_state)
    assert_captured_equals_plain(model.to(device), move(pairs(8, torch.double), device))


class Spectrum(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number, self.linear = number, nn.Linear(8, 8)

    def forward(self, x):
        return self.number * torch.fft.rfft(self.linear(x))


class Amplitudes(nn.Module):
    def forward(self, x):
        return x.abs()


def test_complex_results_of_options_are_captured(device):
    choice = OneOf("op", [Spectrum(1), Spectrum(2)])
    model = nn.Sequential(nn.Linear(4, 8), choice, Amplitudes(), nn.Linear(5, 3))
    assert_captured_equals_plain(model.to(device), move(pairs(8, torch.double), device))


def test_a_loss_with_its_own_mixed_precision_is_captured(device):
    autocast = torch.autocast(device.type, dtype=torch.bfloat16)  # made here, it keeps the casts of weights

    def loss_fn(model, batch):
        with autocast:
            return error_of(model, batch)

    shared = nn.Linear(8, 8)
    choices = [OneOf("first", [shared, nn.Tanh()]), OneOf("second", [nn.ReLU(), shared])]
    model = nn.Sequential(nn.Linear(4, 8), *choices, nn.Linear(8, 3)).to(device)
    plain, captured = (
        oneshot(m, loss_fn=loss_fn, capture=c) for m, c in ((copy.deepcopy(model), False), (model, True))
    )
    for train, valid in move(pairs(4, torch.float), device):
        expected, got = plain.step(train, valid), captured.step(train, valid)
        torch.testing.assert_close(got.train_losses, expected.train_losses, rtol=3e-2, atol=3e-2)
    assert captured.capture_cost


# Whole searches ------------------------------------------------------------------------------------


def run_search(device, **settings):
    torch.manual_seed(0)
    model = Choosy().double().to(device)
    train, valid = (move(batches(6, seed, dtype=torch.double), device) for seed in (1, 2))
    return nas.search(model, train, valid, error_of, epochs=4, judge=share_of_errors, progress=False, **settings)


def assert_same_search(got, expected):
    assert got.values == expected.values
    assert len(got.history) == len(expected.history)
    for one, other in zip(got.history, expected.history, strict=True):
        for name in ("train_loss", "score", "valid_loss"):
            assert one[name] == pytest.approx(other[name], rel=1e-6)
        assert one["distribution"] == other["distribution"]


def test_a_search_with_a_callback_that_stops_it_is_captured(device):
    runs = []
    for capture in (False, True):
        steps, epochs = [], []

        def callback(record, steps=steps, epochs=epochs):
            (steps if isinstance(record, nas.Step) else epochs).append(record)
            return len(epochs) == 2

        runs.append((run_search(device, capture=capture, callback=callback), steps, epochs))
    (expected, plain_steps, _), (got, captured_steps, epochs) = runs
    assert_same_search(got, expected)
    assert len(epochs) == 2
    assert epochs[0]["capture_seconds"] > 0
    assert [step.candidates for step in captured_steps] == [step.candidates for step in plain_steps]


@pytest.mark.parametrize("interval", ["epoch", "step"])
def test_a_search_follows_a_schedule_and_more_epochs_are_captured(interval, device, tmp_path):
    def search_twice(capture):
        for epochs in (2, 4):  # the second continues the first
            torch.manual_seed(0)
            model = Choosy().double().to(device)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            settings: Any = {
                "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.8),
                "scheduler_interval": interval,
                "weight_optimizer": optimizer,
                "checkpoint": tmp_path / f"{capture}.pt",
                "progress": False,
                "capture": capture,
            }
            train, valid = (move(batches(6, seed, dtype=torch.double), device) for seed in (1, 2))
            last = nas.search(model, train, valid, error_of, epochs=epochs, judge=share_of_errors, **settings)
        return last

    assert_same_search(search_twice(capture=True), search_twice(capture=False))


def test_mixed_precision_of_attention_is_captured(device):
    model, twin = (m := Attends(need_weights=False).to(device)), copy.deepcopy(m)
    settings: Any = {"loss_fn": error_of, "amp_dtype": torch.bfloat16}
    plain, captured = oneshot(model, **settings), oneshot(twin, capture=True, **settings)
    data = draw_pairs((4, 5, 3), device, dtype=torch.float)
    for train, valid in data[:4]:
        expected, got = plain.step(train, valid), captured.step(train, valid)
        torch.testing.assert_close(got.train_losses, expected.train_losses, rtol=3e-2, atol=3e-2)
    assert captured.capture_cost


def test_a_captured_search_finds_the_right_option(device):
    def find(capture):
        torch.manual_seed(0)
        zero = nn.Threshold(1e9, 0.0)
        model = nn.Sequential(OneOf("op", {"zero": zero, "same": nn.Identity()}), nn.Linear(4, 3)).double().to(device)
        train, valid = (move(batches(8, seed, dtype=torch.double), device) for seed in (1, 2))
        return nas.search(model, train, valid, error_of, epochs=10, capture=capture, progress=False)

    expected, got = find(False), find(True)
    assert got.values == expected.values == {"op": "same"}
