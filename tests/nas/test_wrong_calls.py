"""Wrong arguments of searches, layers, sizes, and scores are refused at once, with the value and the cure."""
# mypy: disable-error-code="arg-type, list-item, return-value"

import itertools
import math

import pytest
import torch
from torch import nn

from asng import ASNG, Categorical, Integer, Real, nas, report

WIDTH = nas.Width("width", [2, 4])
BATCHES = [torch.ones(4, 2)] * 2
VALUES = {"width": 2, "act": "relu"}


def loss(model, x):
    return model(x).square().mean()


def make_model():
    act = nas.OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()})
    return nn.Sequential(nas.Linear(2, WIDTH), act, nas.Linear(WIDTH, 1))


def make_oneshot(**options):
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return nas.OneShot(model, ASNG(nas.space_of(model), seed=0), sgd, loss, **options)


def search(train=BATCHES, valid=BATCHES):
    return nas.search(make_model(), train, valid, loss, epochs=1, progress=False)


def endless_modules():
    return (nn.ReLU() for _ in itertools.count())


WITHOUT_END = {
    "Pick": (lambda: nas.Pick("x", 10**29), "inputs of Pick 'x' must be at most 100,000, got 1000"),
    "OneOf": (
        lambda: nas.OneOf("x", endless_modules()),
        "OneOf 'x' .*, but they are more than 10,000, got <gen.*shorter",
    ),
    "OneOf of numbers": (lambda: nas.OneOf("x", itertools.count()), r"OneOf 'x' .* more than 10,000, got count\(0\)"),
    "Repeat": (lambda: nas.Repeat("x", itertools.repeat(nn.ReLU())), r"Repeat 'x' .* more than 10,000, got repeat"),
    "Width": (lambda: nas.Width("x", 1, 2**53), "'x' has more than 1,000,000 combinations; let .* fewer"),
    "Width of a list": (lambda: nas.Width("x", range(1, 10**29)), "choices are more than 100,000, got range"),
    "Value as a size": (lambda: nas.Linear(2, nas.Value("x", Integer(1, 2**53))), "'x' has more than 1,000,000"),
    "score": (
        lambda: nas.score(make_model(), VALUES, itertools.cycle(BATCHES), loss),
        "batches must end, .*cycle; give",
    ),
    "recalibrate": (lambda: nas.recalibrate(nn.BatchNorm1d(2), itertools.repeat(BATCHES[0])), "must end, .*repeat"),
    "train_loader": (lambda: search(train=itertools.cycle(BATCHES)), "train_loader must end, got an itertools.cycle"),
    "warmup": (lambda: nas.Latency(BATCHES[0], warmup=10**29), "warmup must be at most 10,000, got 1000"),
    "front's measures": (
        lambda: nas.front(make_oneshot(), itertools.repeat(nas.parameters), BATCHES, loss),
        "a front needs a list of measures, .* got repeat",
    ),
}
SIZES = {
    "infinite": (lambda: WIDTH * math.inf, "a size needs finite numbers, got inf"),
    "NaN": (lambda: math.nan + WIDTH, "a size needs finite numbers, got nan"),
    "overflow": (lambda: nas.Linear(2, WIDTH / 1e-320), "'width' / 1e-320 overflows .*larger divisors"),
    "rounded to nothing": (lambda: WIDTH.round_to(0), "a multiple of at least 1, got 0"),
    "rounded to a fraction": (lambda: WIDTH.round_to(2.5), "an integer or follows a decision, got 2.5"),
    "divided by nothing": (lambda: nas.Linear(2, WIDTH // 0), "'width' // 0 divides by 0 .*never 0"),
    "a tensor": (
        lambda: torch.ones(3, 3) * WIDTH,
        r"^'width' cannot be combined with a tensor; .* the decision's \.value$",
    ),
    "a tensor and a size": (
        lambda: (WIDTH * 2 - 1) / torch.ones(3),
        r"^2 \* 'width' - 1 cannot be combined with a tensor",
    ),
    "a tensor and a real number": (
        lambda: torch.ones(()) * nas.Value("rate", Real(0.0, 1.0)),
        "^'rate' cannot be combined with a tensor",
    ),
    "a tensor alone": (
        lambda: nas.Linear(torch.ones(32, 4), 2),
        r"^a size is an integer or follows a decision, got tensor[^\n]{74}$",
    ),
    "text": (lambda: WIDTH + "x", "an integer or follows a decision, got 'x'"),
    "negative": (lambda: nas.Linear(-1, 2), "in_features must be at least 0, but -1 can be -1"),
    "huge": (lambda: nas.Conv2d(2, 10**29, 3), "out_channels must be at most 2,147,483,647, but 1000"),
    "huge by a decision": (
        lambda: nas.Linear(2, WIDTH * 10**29),
        "out_features must be at most 2,147,483,647, but 1000",
    ),
    "AnySize of none": (lambda: nas.AnySize(0), "largest number of channels must be at least 1, got 0"),
    "AnySize of text": (lambda: nas.AnySize("x"), "largest number of channels must be an integer, got 'x'"),
}
LAYERS = {
    "Linear of a pair": (lambda: nas.Linear((2, 3), 2), r"in_features is an integer .*, got \(2, 3\)"),
    "Conv2d of a list": (lambda: nas.Conv2d([2], 4, 3), r"in_channels is an integer .*, got \[2\]"),
    "Conv2d of one side": (lambda: nas.Conv2d(2, 4, [3]), r"one number or 2, got \[3\]"),
    "Conv2d of three sides": (
        lambda: nas.Conv2d(2, 4, (3, 3, 3)),
        r"one number or 2, got \(3, 3, 3\); to search for one of several, give nas.Value",
    ),
    "Conv2d of a variable": (
        lambda: nas.Conv2d(2, 4, Categorical([3, 5])),
        r"follows a decision, got Categorical.*; name it: nas.Value\('size', Categorical",
    ),
    "padding": (lambda: nas.Conv2d(2, 4, 3, padding="full"), "padding must be numbers, 'valid' or 'same', got 'full'"),
    "stride": (lambda: nas.Conv2d(2, 4, 3, stride=WIDTH), "stride cannot be a decision.*Choose among layers"),
    "GroupNorm of none": (lambda: nas.GroupNorm(0, 4), "num_groups must be at least 1, got 0"),
    "GroupNorm of a pair": (lambda: nas.GroupNorm(2, (4, 4)), r"num_channels is an integer .*, got \(4, 4\)"),
    "attention of a pair": (lambda: nas.MultiheadAttention((4, 4), 2), r"embed_dim is an integer .*, got \(4, 4\)"),
    "heads": (lambda: nas.MultiheadAttention(WIDTH, 3), "embed_dim must always be divisible by num_heads.*product"),
    "Embedding of a pair": (lambda: nas.Embedding(5, (4, 4)), r"embedding_dim is an integer .*, got \(4, 4\)"),
    "from_torch": (lambda: nas.Linear.from_torch(nn.ReLU()), r"made from a torch.nn.Linear, got ReLU\(\)"),
    "from_torch of another name": (
        lambda: nas.Conv2d.from_torch(nn.Conv2d(3, 4, 3), channels=WIDTH),
        "nas.Conv2d has no argument 'channels'; decisions are for in_channels, out_channels, groups, kernel_size",
    ),
    "ASNG itself": (
        lambda: nas.OneShot(make_model(), ASNG, torch.optim.SGD([torch.zeros(1)], 0.1), loss),
        "^arch_optimizer is the class ASNG; make one, such as ASNG",
    ),
    "report of a result": (
        lambda: report.write(nas.result(make_oneshot()), "page.html"),
        r"^folders must be a list of folders, got [^\n]{80}; save it first, by its save\(folder\)$",
    ),
    "Pick without a list": (lambda: nas.Pick("x", 2)(5), "Pick 'x' chooses from a list of 2 inputs, got a int"),
    "OneOf of a number": (lambda: nas.OneOf("x", torch.tensor(1.0)), r"got tensor\(1.\); give a list or a dict"),
    "OneOf of classes": (lambda: nas.OneOf("x", [nn.ReLU]), "got <class .*ReLU'> for 0; give instances"),
    "Repeat of a number": (lambda: nas.Repeat("x", torch.tensor(1.0)), r"got tensor\(1.\); give one for each"),
    "convert nothing": (lambda: nas.convert(None, lambda path, module: None), "the model must be .*Module, got None"),
    "convert by nothing": (lambda: nas.convert(nn.ReLU(), None), "replace must be a function .*, got None"),
    "convert to a number": (lambda: nas.convert(nn.ReLU(), lambda path, module: 5), "must return a module .*, got 5"),
}
AFTER = {
    "score by nothing": (
        lambda: nas.score(make_model(), VALUES, BATCHES, None),
        "judge must be a function .*, got None",
    ),
    "score on a number": (lambda: nas.score(make_model(), VALUES, 5, loss), "batches must give batches .*, got 5"),
    "score on a tensor": (
        lambda: nas.score(make_model(), VALUES, torch.tensor(1.0), loss),
        r"batches .*, got tensor\(1",
    ),
    "score of nothing": (lambda: nas.score(None, VALUES, BATCHES, loss), "the model must be .*Module, got None"),
    "rerank by batches": (
        lambda: nas.rerank(make_oneshot(), loss, [torch.zeros(50, 50)] * 3),
        r"^judge must be a function [^\n]{60,160}\.\.\.; batches come before it$",
    ),
    "front by batches": (
        lambda: nas.front(make_oneshot(), BATCHES, [nas.parameters], loss),
        r"^a limit needs a function \(model, values\) -> number, got [^\n]{1,80}$",
    ),
    "export of a result": (lambda: nas.export(nas.result(make_oneshot()), "x"), "got a SearchResult; pass its .model$"),
    "rerank by text": (lambda: nas.rerank(make_oneshot(), BATCHES, "acc"), "judge must be a function .*, got 'acc'"),
    "front by text": (
        lambda: nas.front(make_oneshot(), [nas.parameters], BATCHES, "acc"),
        "judge must be a function .*, got 'acc'",
    ),
    "front on a number": (lambda: nas.front(make_oneshot(), [nas.parameters], 5, loss), "batches must .*, got 5"),
    "front of text": (lambda: nas.front(make_oneshot(), "parameters", BATCHES, loss), "list of measures.*'parameters'"),
    "recalibrate by text": (lambda: nas.recalibrate(nn.BatchNorm1d(2), BATCHES, "x"), "forward must be a .*, got 'x'"),
    "no batch to train on": (lambda: make_oneshot().train_step(), "train_step needs at least one batch"),
    "a judge of text": (lambda: make_oneshot(judge=lambda model, x: "x").judge_step(BATCHES[0]), "judge.* got 'x'"),
    "name of a limit": (lambda: nas.Limit(nas.parameters, 5, name=7), "the name of a limit must be text, got 7"),
    "both bounds": (lambda: nas.Limit(nas.parameters, 5, at_least=7), "at least 7 and at most 5.*parameters"),
    "at_least": (lambda: nas.Limit(nas.parameters, at_least="x"), "the limit of parameters must be .*, got 'x'"),
    "valid_loader": (lambda: search(valid=torch.tensor(1.0)), r"valid_loader must give batches .*, got tensor\(1"),
    "history": (lambda: nas.result(make_oneshot(), [5]), r"history must be a list of records.*, got \[5\]"),
}
TABLE = {**WITHOUT_END, **SIZES, **LAYERS, **AFTER}


@pytest.mark.parametrize(("call", "message"), TABLE.values(), ids=TABLE)
def test_wrong_calls_name_the_value_and_the_cure(call, message):
    assert len(TABLE) == sum(map(len, (WITHOUT_END, SIZES, LAYERS, AFTER))), "two have the same name"
    with pytest.raises(ValueError, match=message):
        call()


def test_a_batch_that_is_not_unpacked_is_told_by_the_layer():
    with pytest.raises(
        TypeError, match=r"^layer 0 takes a tensor, but got a tuple; is the batch unpacked before the model"
    ):
        make_oneshot().train_step((BATCHES[0], BATCHES[0]))
    with pytest.raises(TypeError, match=r"^layer 0 takes a tensor, but got a ndarray; convert it by torch.as_tensor\n"):
        make_oneshot().train_step(BATCHES[0].numpy())


def test_a_front_of_a_small_space_ends_however_many_are_asked_for():
    front = nas.front(make_oneshot(), [nas.parameters], BATCHES, loss, k=10**29)
    assert len(front.points) + len(front.others) == 4


def test_a_valid_loader_may_go_on_forever():
    assert search(valid=itertools.cycle(BATCHES)).values.keys() == VALUES.keys()


def test_many_choices_are_no_reason_to_refuse_a_value():
    assert nas.Value("x", Integer(1, 2**53)).variable.contains(2**52)
    assert nas.Pick("x", 1000).variable == Categorical(range(1000))
