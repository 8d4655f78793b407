"""The files of CIFAR-10: read as they are published, checked, or downloaded whole."""
# mypy: disable-error-code="arg-type, index, union-attr"

import io
import os
import tarfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from asng.experiments.cifar10 import data
from asng.experiments.cifar10.data import load_cifar10
from tests.helpers.small_cifar10 import archive_of, md5, random_files, release_of, server, write

IMAGES = 40  # in each file of the small release


@pytest.fixture
def contents(monkeypatch) -> dict[str, bytes]:
    """The files of a release with 40 random images each, in place of the official one."""
    files = random_files(IMAGES)
    monkeypatch.setattr(data, "RELEASE", release_of(files))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return files


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Files


def test_a_record_is_a_label_and_three_planes(tmp_path, contents):
    write(tmp_path / "cifar-10-batches-bin", contents)
    train, test = load_cifar10(tmp_path, "cpu")
    assert (len(train), len(test)) == (5 * IMAGES, IMAGES)
    assert train.images.dtype == torch.uint8
    assert train.labels.dtype == torch.int64
    for images, number, file, record in ((train, 83, "data_batch_3.bin", 3), (test, 7, "test_batch.bin", 7)):
        content = contents[file][record * 3073 : (record + 1) * 3073]
        assert images.labels[number] == content[0]
        for channel, y, x in ((0, 0, 0), (1, 2, 31), (2, 30, 5)):
            assert images.images[number, channel, y, x] == content[1 + channel * 1024 + y * 32 + x]


def test_the_folder_itself_may_be_named_whatever_it_is_called(tmp_path, contents, monkeypatch):
    above = write(tmp_path / "cifar-10-batches-bin", contents).parent
    renamed = write(tmp_path / "elsewhere", contents)
    expected = load_cifar10(above, "cpu")[0].images
    assert torch.equal(load_cifar10(above / "cifar-10-batches-bin", "cpu")[0].images, expected)
    assert torch.equal(load_cifar10(renamed, "cpu")[0].images, expected)
    monkeypatch.setenv("ASNG_DATA", str(above))
    assert torch.equal(load_cifar10(None, "cpu")[0].images, expected)


def damage(contents: dict[str, bytes], kind: str) -> tuple[dict[str, bytes], str]:
    """Files with something wrong, and what has to be said about it."""
    content = contents["data_batch_2.bin"]
    if kind == "missing":
        return {k: v for k, v in contents.items() if not k.startswith("data_batch_2")}, "lacks data_batch_2.bin"
    if kind == "truncated":
        return contents | {"data_batch_2.bin": content[:-1]}, "data_batch_2.bin has 122,919 bytes, not 122,920"
    if kind == "empty":
        return contents | {"data_batch_2.bin": b""}, "data_batch_2.bin has 0 bytes"
    if kind == "changed":
        other = content[:1000] + bytes([content[1000] ^ 1]) + content[1001:]
        return contents | {"data_batch_2.bin": other}, f"MD5 sum is {md5(other)}, not {md5(content)}"
    assert kind == "foreign"
    return {"notes.txt": b"mine"}, "without any file of CIFAR-10"


@pytest.mark.parametrize("kind", ["missing", "truncated", "empty", "changed", "foreign"])
def test_damaged_files_are_named_with_the_cure_and_left_alone(tmp_path, contents, kind):
    files, message = damage(contents, kind)
    folder = write(tmp_path / "cifar-10-batches-bin", files)
    before = everything_in(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        load_cifar10(tmp_path, "cpu")
    assert f"move {folder} away" in str(caught.value)
    assert all(word in str(caught.value) for word in (str(folder), data.RELEASE.url, "--data", "ASNG_DATA"))
    assert everything_in(tmp_path) == before


def test_a_pipe_in_place_of_a_file_is_refused_without_waiting(tmp_path, contents):
    folder = write(tmp_path / "cifar-10-batches-bin", contents)
    (folder / "data_batch_3.bin").unlink()
    os.mkfifo(folder / "data_batch_3.bin")
    with pytest.raises(ValueError, match=r"data_batch_3\.bin is not a regular file; remove it"):
        load_cifar10(tmp_path, "cpu")


def test_an_archive_is_not_a_folder(tmp_path, contents):
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(archive_of(contents))
    with pytest.raises(ValueError, match=r"cifar-10-binary.tar.gz is a file; name the folder"):
        load_cifar10(tmp_path / "cifar-10-binary.tar.gz", "cpu")
    with pytest.raises(ValueError, match=r"cifar-10-binary.tar.gz is a file; name the folder"):
        data.describe_source(tmp_path / "cifar-10-binary.tar.gz")


# Download


@pytest.mark.parametrize("below", [".", "new/folder", "cifar-10-batches-bin"])
def test_where_nothing_is_it_is_downloaded_once_and_nothing_else_stays(tmp_path, contents, monkeypatch, below):
    heard: list[float] = []
    with server(monkeypatch, archive_of(contents)) as requests:
        train, _ = load_cifar10(tmp_path / below, "cpu", heard.append)
        again, _ = load_cifar10(tmp_path / below, "cpu")
    assert requests == ["/cifar-10-binary.tar.gz"]
    assert torch.equal(train.images, again.images)
    inside = "" if below == "cifar-10-batches-bin" else "cifar-10-batches-bin"
    expected = {str(Path(below) / inside / name): content for name, content in contents.items()}
    assert everything_in(tmp_path) == expected
    assert not list(tmp_path.rglob(".*"))
    assert heard == sorted(heard)
    assert len(heard) > 2
    assert heard[-1] == 1


def test_a_download_may_end_in_an_empty_folder(tmp_path, contents, monkeypatch):
    (tmp_path / "cifar-10-batches-bin").mkdir()
    with server(monkeypatch, archive_of(contents)):
        load_cifar10(tmp_path, "cpu")
    assert set(everything_in(tmp_path)) == {f"cifar-10-batches-bin/{name}" for name in contents}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"content": b"not the archive" * 1000}, "the MD5 sum of the archive is .*, not "),
        ({"content": bytes(10**8)}, "there are more than the [0-9,]+ bytes of the archive"),
        ({"sent": 300_000}, "IncompleteRead|MD5 sum of the archive"),
        ({"status": 404}, "404"),
        (None, "127.0.0.1 cannot be reached"),  # refused: nobody listens
    ],
)
def test_a_failed_download_leaves_nothing_and_says_what_to_do(tmp_path, contents, monkeypatch, wrong, message):
    serving = server(monkeypatch, **{"content": archive_of(contents), **wrong}) if wrong else nullcontext()
    with serving, pytest.raises(OSError, match=message) as caught:
        load_cifar10(tmp_path / "new", "cpu")
    folder = str(tmp_path / "new" / "cifar-10-batches-bin")
    assert all(word in str(caught.value) for word in (folder, data.RELEASE.url, "--data", "ASNG_DATA"))
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_in_the_middle_leaves_nothing(tmp_path, contents, monkeypatch):
    def interrupt(done: float) -> None:
        assert list(tmp_path.iterdir())  # something was on its way
        raise KeyboardInterrupt

    with server(monkeypatch, archive_of(contents)), pytest.raises(KeyboardInterrupt):
        load_cifar10(tmp_path, "cpu", interrupt)
    assert list(tmp_path.iterdir()) == []


def pack(files: dict[str, bytes], kind: str) -> bytes:
    """An archive with another content than published."""
    if kind == "no archive":
        return b"no archive" * 1000
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, published in files.items():
            content = published + b"more" if kind == "sizes" else published
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            if kind == "links":
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            elif kind == "paths":
                member.name = f"cifar-10-batches-bin/../../{name}"
            member.size = 0 if kind == "links" else len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


@pytest.mark.parametrize("kind", ["no archive", "links", "paths", "sizes"])
def test_an_archive_of_another_content_leaves_nothing_even_with_its_sum(tmp_path, contents, monkeypatch, kind):
    archive = pack(contents, kind)
    monkeypatch.setattr(data, "RELEASE", replace(data.RELEASE, md5=md5(archive), size=len(archive)))
    message = "not a gzip file|could not be opened" if kind == "no archive" else "the archive lacks data_batch_1.bin"
    with server(monkeypatch, archive), pytest.raises(OSError, match=message):
        load_cifar10(tmp_path / "new" / "folder", "cpu")
    assert list(tmp_path.rglob("*")) == []


def test_an_archive_that_is_cut_off_leaves_nothing_even_with_its_sum(tmp_path, contents, monkeypatch):
    archive = archive_of(contents)[:-1000]
    monkeypatch.setattr(data, "RELEASE", replace(data.RELEASE, md5=md5(archive), size=len(archive)))
    with server(monkeypatch, archive), pytest.raises(OSError, match="could not be downloaded"):
        load_cifar10(tmp_path, "cpu")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["tarfile.TarFile.extractfile", "os.replace"])
def test_an_interruption_of_unpacking_and_of_the_last_move_leaves_nothing(tmp_path, contents, monkeypatch, step):
    calls, archive = [], archive_of(contents)

    def interrupt(*arguments, **settings):
        calls.append(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(step, interrupt)
    with server(monkeypatch, archive), pytest.raises(KeyboardInterrupt):
        load_cifar10(tmp_path, "cpu")
    assert len(calls) == 1
    assert list(tmp_path.iterdir()) == []


def test_another_process_may_be_faster(tmp_path, contents, monkeypatch):
    def meanwhile(done: float) -> None:
        if not (tmp_path / "cifar-10-batches-bin").exists():
            write(tmp_path / "cifar-10-batches-bin", contents)

    with server(monkeypatch, archive_of(contents)):
        train, _ = load_cifar10(tmp_path, "cpu", meanwhile)
    assert len(train) == 5 * IMAGES
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-batches-bin"]


# The real thing


@pytest.mark.long
@pytest.mark.skipif("ASNG_DATA" not in os.environ, reason="needs CIFAR-10 in the folder ASNG_DATA")
def test_the_official_files_have_the_published_checksums():
    if data._missing_files(data._folder(Path(os.environ["ASNG_DATA"]))):
        pytest.skip("CIFAR-10 is not in the folder ASNG_DATA")
    train, test = load_cifar10(None, "cpu")
    assert torch.bincount(train.labels).tolist() == [5000] * 10
    assert torch.bincount(test.labels).tolist() == [1000] * 10
    for channel in range(3):
        counts = torch.bincount(train.images[:, channel].flatten(), minlength=256).double()
        mean = (counts @ torch.arange(256.0).double()) / counts.sum()
        deviation = (counts @ (torch.arange(256.0).double() - mean) ** 2 / counts.sum()).sqrt()
        assert mean.item() == pytest.approx(data.MEAN[channel], rel=1e-12)
        assert deviation.item() == pytest.approx(data.STD[channel], rel=1e-12)
