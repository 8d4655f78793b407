"""Checkpoints: always a whole one, the previous kept, damaged and foreign ones refused by name."""

import os
import pickle
import random
import zipfile
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch

from asng._files import lock_checkpoint, previous_path
from asng.nas import _checkpoints as checkpoints
from asng.nas._checkpoints import load, save


class Unsafe:
    """Not of the kind that loads with `weights_only`."""


def state(number=0):
    generator = torch.Generator().manual_seed(number)
    return {
        "model": {"weight": torch.randn(40, 30, generator=generator)},
        "generator": 2**127 + number,
        "random": random.Random(number).getstate(),
        "history": [{"loss": 0.1 * number}],
        "number": number,
    }


def test_what_is_saved_is_loaded(tmp_path):
    path = tmp_path / "new" / "folder" / "checkpoint.pt"
    save(path, state(3))
    loaded = load(path)
    assert torch.equal(loaded["model"]["weight"], state(3)["model"]["weight"])
    assert {k: v for k, v in loaded.items() if k != "model"} == {k: v for k, v in state(3).items() if k != "model"}
    assert os.listdir(path.parent) == ["checkpoint.pt"]
    torch.load(path, weights_only=True)


@pytest.mark.parametrize("links", [True, False])
def test_the_one_before_is_kept_also_where_there_are_no_links(tmp_path, monkeypatch, links):
    def link(*names):
        raise OSError("no links here")

    if not links:
        monkeypatch.setattr(os, "link", link)
    path = tmp_path / "checkpoint.pt"
    for number in range(4):
        save(path, state(number))
        assert load(path)["number"] == number
        if number:
            assert load(previous_path(path))["number"] == number - 1
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.asng-previous.pt", "checkpoint.pt"]


@pytest.mark.parametrize("call", range(5))
def test_a_save_that_fails_leaves_the_last_one_and_no_litter(tmp_path, monkeypatch, call):
    path = tmp_path / "checkpoint.pt"
    save(path, state(1))
    names = [("torch", "save"), ("os", "fsync"), ("os", "link"), ("os", "replace"), ("os", "replace")]
    module, name = names[call]
    target = {"os": os, "torch": torch}[module]
    real, calls = getattr(target, name), []

    def fail(*arguments, **named):
        calls.append(name)
        if len(calls) == (2 if call == 4 else 1):
            raise KeyboardInterrupt
        return real(*arguments, **named)

    monkeypatch.setattr(target, name, fail)
    with pytest.raises(KeyboardInterrupt):
        save(path, state(2))
    monkeypatch.undo()
    assert load(path)["number"] == 1
    assert set(os.listdir(tmp_path)) <= {"checkpoint.pt", "checkpoint.asng-previous.pt"}
    save(path, state(3))
    assert load(path)["number"] == 3


def test_a_lock_removes_what_killed_processes_left_of_this_checkpoint(tmp_path):
    pytest.importorskip("fcntl")
    path = tmp_path / "new" / "checkpoint.pt"
    save(path, state(1))
    mine = [".checkpoint.pt.asng-12-0123abcd", ".checkpoint.asng-previous.pt.asng-12-0123abcd"]
    for name in [*mine, ".other.pt.asng-12-0123abcd", "checkpoint.pt.new"]:
        (path.parent / name).write_bytes(b"half")
    lock_checkpoint(path).release()
    assert sorted(os.listdir(path.parent)) == [".other.pt.asng-12-0123abcd", "checkpoint.pt", "checkpoint.pt.new"]


def test_two_checkpoints_in_one_folder_have_a_lock_each(tmp_path):
    pytest.importorskip("fcntl")
    one, other = lock_checkpoint(tmp_path / "one.pt"), lock_checkpoint(tmp_path / "other.pt")
    with pytest.raises(
        ValueError, match=r"one\.pt is in use by process \d+ .*; wait until it ends, or use another path"
    ):
        lock_checkpoint(tmp_path / "one.pt")
    one.release()
    other.release()


def test_after_a_kill_between_two_renames_nothing_is_left(tmp_path):
    path = tmp_path / "checkpoint.pt"
    save(path, state(1))
    os.link(path, previous_path(path))  # the first rename was done, the second was not
    save(path, state(2))
    assert (load(path)["number"], load(previous_path(path))["number"]) == (2, 1)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.asng-previous.pt", "checkpoint.pt"]


# Damage --------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint_path(tmp_path):
    path = tmp_path / "checkpoint.pt"
    save(path, state(1))
    save(path, state(2))
    return path


OFFER = r"; the one before it is .*checkpoint\.asng-previous\.pt: rename it to checkpoint\.pt to continue from there$"


@pytest.mark.parametrize("share", [0, 1e-3, 0.1, 0.5, 0.9, 0.99, 0.9999])
def test_a_truncated_file_is_damaged(checkpoint_path, share):
    content = checkpoint_path.read_bytes()
    checkpoint_path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=rf"checkpoint\.pt is damaged or no checkpoint \(.+\){OFFER}"):
        load(checkpoint_path)


def test_every_changed_bit_of_what_is_stored_is_noticed(checkpoint_path):
    content = checkpoint_path.read_bytes()
    places = random.Random(0)
    with zipfile.ZipFile(checkpoint_path) as archive:
        spans = []
        for member in archive.infolist():
            header = content[member.header_offset :]
            start = member.header_offset + 30 + int.from_bytes(header[26:28], "little")
            start += int.from_bytes(header[28:30], "little")
            spans.append((start, start + member.file_size))
    for start, end in spans:
        for _ in range(4 if end > start else 0):
            changed = bytearray(content)
            changed[places.randrange(start, end)] ^= 1 << places.randrange(8)
            checkpoint_path.write_bytes(changed)
            with pytest.raises(ValueError, match=rf"damaged or no checkpoint \(.+\){OFFER}"):
                load(checkpoint_path)


def test_a_bit_changed_anywhere_is_noticed_or_harmless(checkpoint_path):
    content, expected = checkpoint_path.read_bytes(), load(checkpoint_path)
    places = random.Random(1)
    noticed = 0
    for _ in range(150):
        changed = bytearray(content)
        changed[places.randrange(len(content))] ^= 1 << places.randrange(8)
        checkpoint_path.write_bytes(changed)
        try:
            loaded = load(checkpoint_path)
        except ValueError:
            noticed += 1
        else:
            assert torch.equal(loaded["model"].pop("weight"), expected["model"]["weight"])
            assert loaded == {**expected, "model": {}}
    assert noticed > 75


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_text("{}"),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(pickle.dumps({"format": checkpoints.FORMAT, "state": {}})),
        lambda path: torch.save({"format": checkpoints.FORMAT, "state": {"x": Unsafe()}}, path),
        lambda path: zipfile.ZipFile(path, "w").close(),
    ],
    ids=["text", "empty", "pickle", "unsafe", "empty archive"],
)
def test_a_file_of_another_kind_is_no_checkpoint(checkpoint_path, write):
    write(checkpoint_path)
    with pytest.raises(ValueError, match=rf"checkpoint\.pt is damaged or no checkpoint \(.+\){OFFER}"):
        load(checkpoint_path)


@pytest.mark.parametrize("content", [torch.ones(3), {"weight": torch.ones(3)}, {"format": 1}], ids=repr)
def test_a_file_of_torch_that_is_no_checkpoint_is_refused(checkpoint_path, content):
    torch.save(content, checkpoint_path)
    with pytest.raises(ValueError, match=rf"is no checkpoint of asng; this version reads an asng checkpoint 2{OFFER}"):
        load(checkpoint_path)


def test_a_checkpoint_of_another_format_is_refused_by_its_number(checkpoint_path):
    torch.save({"format": "asng checkpoint 1", "state": {}}, checkpoint_path)
    with pytest.raises(ValueError, match=rf"is an asng checkpoint 1; this version reads an asng checkpoint 2{OFFER}"):
        load(checkpoint_path)


def test_without_a_previous_one_it_says_to_delete(tmp_path):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"; use another path, or delete it to start over$"):
        load(path)


def test_a_model_that_was_saved_whole_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "model.pt"
    torch.save(torch.nn.Linear(2, 2), path)
    with pytest.raises(ValueError, match=r"model\.pt is damaged or no checkpoint \(Weights only load failed\); use"):
        load(path)


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "checkpoint.pt")


def test_numbers_of_numpy_are_saved_as_those_of_python(tmp_path):
    state = {"lr": np.float64(0.1), "lrs": [np.float32(0.5), (np.int64(3), True)], "weight": torch.ones(2)}
    save(tmp_path / "checkpoint.pt", state)
    loaded = load(tmp_path / "checkpoint.pt")
    assert repr(loaded) == repr({"lr": 0.1, "lrs": [0.5, (3, True)], "weight": torch.ones(2)})


@pytest.mark.parametrize("value", [Unsafe(), Unsafe, lambda: 0, np.zeros(2), {Unsafe()}, {Unsafe(): 1}])
def test_what_could_not_be_loaded_is_refused_when_it_is_saved(tmp_path, value):
    path = tmp_path / "checkpoint.pt"
    save(path, state(1))
    for held in ({"job": [{}, {"extra": value}]}, {"job": [{}, OrderedDict(extra=value)]}):
        with pytest.raises(ValueError, match=r"^a checkpoint cannot hold job\.1\.extra, which is a \w+; make it of"):
            save(path, held)
    assert load(path)["number"] == 1
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


def test_all_that_torch_loads_is_saved(tmp_path):
    values = [
        {1, 2},
        Counter("aab"),
        torch.Size([2]),
        torch.float16,
        torch.device("cpu"),
        b"x",
        1j,
        torch.nn.Parameter(),
    ]
    save(tmp_path / "checkpoint.pt", {"values": values})
    assert load(tmp_path / "checkpoint.pt")["values"][:-1] == values[:-1]
