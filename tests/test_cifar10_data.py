"""CIFAR-10: files are checked or downloaded whole, and augmentation is what its slow, obvious version says."""

import hashlib
import io
import os
import tarfile
import threading
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from asng.experiments.cifar10 import data
from asng.experiments.cifar10.data import Batches, Images, augment, draws, load, normalise
from asng.experiments.data import halves

IMAGES = 40  # in each file of the small release


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@pytest.fixture
def contents(monkeypatch) -> dict[str, bytes]:
    """The files of a release with 40 random images each, in place of the official one."""
    random = np.random.default_rng(0)
    files = {}
    for name in data.RELEASE.files:
        records = random.integers(0, 256, (IMAGES, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        files[name] = records.tobytes()
    sums = {name: md5(content) for name, content in files.items()}
    small = data.Release("http://127.0.0.1:9/nobody-listens.tar.gz", md5(archive_of(files)), sums, IMAGES)
    monkeypatch.setattr(data, "RELEASE", small)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return files


def archive_of(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for name, content in {"readme.html": b"more than is needed", **files}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    content = packed.getvalue()
    return content[:4] + bytes(4) + content[8:]  # without the time, so that the sum is the same again


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Files


def test_a_record_is_a_label_and_three_planes_and_the_last_file_is_the_test_set(tmp_path, contents):
    write(tmp_path / "cifar-10-batches-bin", contents)
    train, test = load(tmp_path, "cpu")
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
    expected = load(above, "cpu")[0].images
    assert torch.equal(load(above / "cifar-10-batches-bin", "cpu")[0].images, expected)
    assert torch.equal(load(renamed, "cpu")[0].images, expected)
    monkeypatch.setenv("ASNG_DATA", str(above))
    assert torch.equal(load(None, "cpu")[0].images, expected)


def damaged(contents: dict[str, bytes], kind: str) -> tuple[dict[str, bytes], str]:
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
    files, message = damaged(contents, kind)
    folder = write(tmp_path / "cifar-10-batches-bin", files)
    before = everything_in(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path, "cpu")
    assert f"move {folder} away" in str(caught.value)
    assert all(word in str(caught.value) for word in (str(folder), data.RELEASE.url, "--data", "ASNG_DATA"))
    assert everything_in(tmp_path) == before


def test_an_archive_is_not_a_folder(tmp_path, contents):
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(archive_of(contents))
    with pytest.raises(ValueError, match=r"cifar-10-binary.tar.gz is a file; name the folder"):
        load(tmp_path / "cifar-10-binary.tar.gz", "cpu")


# Download


@contextmanager
def server(monkeypatch, content: bytes, *, sent: int | None = None, status: int = 200):
    """Serves an archive, or only the first bytes of it, and notes the requests."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(ConnectionError):  # nobody listens any more
                self.wfile.write(content[:sent])

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = False  # so that closing waits for them
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{http.server_port}/cifar-10-binary.tar.gz"
        monkeypatch.setattr(data, "RELEASE", replace(data.RELEASE, url=url))
        try:
            yield requests
        finally:
            http.shutdown()
            thread.join()


@pytest.mark.parametrize("below", [".", "new/folder", "cifar-10-batches-bin"])
def test_where_nothing_is_it_is_downloaded_once_and_nothing_else_stays(tmp_path, contents, monkeypatch, below):
    heard: list[float] = []
    with server(monkeypatch, archive_of(contents)) as requests:
        train, _ = load(tmp_path / below, "cpu", heard.append)
        again, _ = load(tmp_path / below, "cpu")
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
        load(tmp_path, "cpu")
    assert set(everything_in(tmp_path)) == {f"cifar-10-batches-bin/{name}" for name in contents}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"content": b"not the archive" * 50_000}, "what came has the MD5 sum"),
        ({"sent": 300_000}, "IncompleteRead|MD5 sum"),
        ({"status": 404}, "404"),
        (None, "onnection"),  # refused: nobody listens
    ],
)
def test_a_failed_download_leaves_nothing_and_says_what_to_do(tmp_path, contents, monkeypatch, wrong, message):
    serving = server(monkeypatch, **{"content": archive_of(contents), **wrong}) if wrong else nullcontext()
    with serving, pytest.raises(OSError, match=message) as caught:
        load(tmp_path / "new", "cpu")
    folder = str(tmp_path / "new" / "cifar-10-batches-bin")
    assert all(word in str(caught.value) for word in (folder, data.RELEASE.url, "--data", "ASNG_DATA"))
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_in_the_middle_leaves_nothing(tmp_path, contents, monkeypatch):
    def interrupt(done: float) -> None:
        assert list(tmp_path.iterdir())  # something was on its way
        raise KeyboardInterrupt

    with server(monkeypatch, archive_of(contents)), pytest.raises(KeyboardInterrupt):
        load(tmp_path, "cpu", interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("step", "call"), [("shutil.copyfileobj", 4), ("os.replace", 1)])
def test_an_interruption_while_files_are_unpacked_and_put_in_place_leaves_nothing(
    tmp_path, contents, monkeypatch, step, call
):
    calls = 0
    module, name = step.split(".")
    original = getattr(getattr(data, module), name)

    def interrupted(*arguments):
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(f"asng.experiments.cifar10.data.{step}", interrupted)
    with server(monkeypatch, archive_of(contents)), pytest.raises(KeyboardInterrupt):
        load(tmp_path, "cpu")
    assert calls == call
    assert list(tmp_path.iterdir()) == []


def test_another_process_may_be_faster(tmp_path, contents, monkeypatch):
    def meanwhile(done: float) -> None:
        if not (tmp_path / "cifar-10-batches-bin").exists():
            write(tmp_path / "cifar-10-batches-bin", contents)

    with server(monkeypatch, archive_of(contents)):
        train, _ = load(tmp_path, "cpu", meanwhile)
    assert len(train) == 5 * IMAGES
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-batches-bin"]


# Augmentation


def slowly(image: torch.Tensor, drawn: np.ndarray, cutout: int) -> np.ndarray:
    """One augmented image (3, 32, 32), pixel by pixel."""
    top, left, flip, row, column = drawn.tolist()
    pixels = image.tolist()
    half = cutout // 2
    result = np.zeros((3, 32, 32))
    for channel in range(3):
        for y in range(32):
            for x in range(32):
                source_y, source_x = y + top - 4, (31 - x if flip else x) + left - 4
                inside = 0 <= source_y < 32 and 0 <= source_x < 32
                pixel = pixels[channel][source_y][source_x] if inside else 0
                normal = (pixel - data.MEAN[channel]) / data.STD[channel]
                hidden = row - half <= y <= row + half - 1 and column - half <= x <= column + half - 1
                result[channel, y, x] = 0 if hidden else normal
    return result


@pytest.mark.parametrize(("n", "cutout"), [(32, 16), (4, 2), (1, 64), (4, 0)])
def test_augmentation_equals_its_slow_version_pixel_by_pixel(n, cutout):
    images = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8, generator=generator(n))
    before = images.clone()
    result = augment(images, generator(5), cutout=cutout)
    drawn = np.stack(draws(n, generator(5)), 1)
    expected = np.stack([slowly(image, numbers, cutout) for image, numbers in zip(images, drawn, strict=True)])
    assert result.dtype == torch.float32
    assert result.is_contiguous()
    np.testing.assert_allclose(result.numpy(), expected, rtol=0, atol=1e-6)
    assert np.array_equal(result.numpy() == 0, expected == 0)
    assert torch.equal(images, before)
    if n == 32:  # every side is padded in some image, some are flipped, some squares are clipped
        top, left, flip, row, column = drawn.T
        assert {numbers.min() < 4 < numbers.max() for numbers in (top, left)} == {True}
        assert 0 < flip.sum() < n
        assert {numbers.min() < 8 and numbers.max() > 24 for numbers in (row, column)} == {True}


def test_a_square_of_odd_side_keeps_its_side_too():
    black = torch.zeros(200, 3, 32, 32, dtype=torch.uint8)
    for side in (1, 5, 16):
        whole = (augment(black, generator(0), cutout=side) == 0).sum((1, 2, 3)).max()
        assert whole == 3 * side * side


def coded(n: int) -> torch.Tensor:
    """Images whose pixels tell where they are: the row in red, the column in green, 100 in blue."""
    line = torch.arange(32, dtype=torch.uint8)
    row, column = line[:, None].expand(32, 32), line[None, :].expand(32, 32)
    return torch.stack([row, column, torch.full_like(row, 100)]).expand(n, 3, 32, 32)


def decoded(result: torch.Tensor) -> torch.Tensor:
    mean, deviation = (torch.tensor(numbers)[:, None, None] for numbers in (data.MEAN, data.STD))
    return (result * deviation + mean).round().long()


def test_all_crops_and_flips_are_equally_likely():
    n = 16_200
    middle = decoded(augment(coded(n), generator(0), cutout=0)[:, :, 15:17, 15:17])  # reached by no padding
    top, left = middle[:, 0, 0, 0] - 11, middle[:, 1, 0].min(1).values - 11
    flip = (middle[:, 1, 0, 0] > middle[:, 1, 0, 1]).long()
    counts = torch.bincount((top * 9 + left) * 2 + flip, minlength=162)
    assert len(counts) == 162
    chi2 = ((counts - 100.0) ** 2 / 100).sum().item()
    assert abs(chi2 - 161) < 5 * (2 * 161) ** 0.5


def test_the_square_lies_around_every_pixel_equally_often_and_is_clipped():
    n = 10_000
    white = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8).expand(n, 3, 32, 32)
    hidden = (augment(white, generator(1))[:, 0] == 0).double().mean(0)
    # A row is met by squares around the rows from 7 above it to 8 below it, as far as there are any.
    met = torch.tensor([sum(0 <= centre < 32 for centre in range(y - 7, y + 9)) for y in range(32)]) / 32
    expected = met[:, None] * met[None, :]
    assert (hidden - expected).abs().max() < 5 * (expected * (1 - expected) / n).sqrt().max()
    row, column = (torch.from_numpy(numbers) for numbers in draws(n, generator(1))[3:])
    chi2 = ((torch.bincount(row * 32 + column, minlength=1024) - n / 1024) ** 2 / (n / 1024)).sum().item()
    assert abs(chi2 - 1023) < 5 * (2 * 1023) ** 0.5


def test_augmentation_stays_on_the_device_of_the_images():
    somewhere = torch.empty(4, 3, 32, 32, dtype=torch.uint8, device="meta")  # knows no values, so none can be asked
    result = augment(somewhere, generator(0))
    assert (result.device.type, result.shape) == ("meta", (4, 3, 32, 32))


def test_normalised_is_pixel_less_mean_by_deviation():
    images = torch.tensor([0, 128, 255], dtype=torch.uint8)[:, None, None, None].expand(3, 3, 32, 32)
    result = normalise(images)
    for number, pixel in enumerate((0, 128, 255)):
        for channel in range(3):
            expected = (pixel - data.MEAN[channel]) / data.STD[channel]
            assert result[number, channel].unique().tolist() == pytest.approx([expected], abs=1e-6)


# Mini-batches


def numbered(n: int) -> Images:
    """Images of one colour each, labelled by it."""
    colour = torch.arange(1, n + 1)
    return Images(colour.to(torch.uint8)[:, None, None, None].repeat(1, 3, 32, 32), colour)


def test_labels_belong_to_their_images_and_an_epoch_is_a_permutation_of_the_half():
    images = numbered(100)
    for half in halves(100, seed=0):
        batches = Batches(images, half, 10, 0, 1)
        assert batches.steps == 5
        for epoch in range(2):
            made = [batches(5 * epoch + step) for step in range(5)]
            assert sorted(torch.cat([labels for _, labels in made]).tolist()) == sorted((half + 1).tolist())
            for pictures, labels in made:
                assert torch.equal(decoded(pictures)[:, 0].flatten(1).mode().values, labels)  # most of it is seen


def test_a_mini_batch_follows_from_seed_stream_and_number_alone():
    images = numbered(60)
    first, second = (Batches(images, torch.arange(60), 8, 3, 1) for _ in range(2))
    forward = [first(number) for number in range(20)]
    for number in reversed(range(20)):
        assert all(torch.equal(a, b) for a, b in zip(second(number), forward[number], strict=True))
    for seed, stream in ((3, 2), (4, 1)):
        other = Batches(images, torch.arange(60), 8, seed, stream)
        assert not any(torch.equal(other(number)[0], forward[number][0]) for number in range(20))


def test_the_images_of_an_epoch_look_different_in_the_next():
    images = Images(coded(8).contiguous(), torch.arange(8))
    batches = Batches(images, torch.arange(8), 8, 0, 0)
    seen = {
        (int(label), picture.numpy().tobytes())
        for epoch in range(10)
        for picture, label in zip(*batches(epoch), strict=True)
    }
    assert len(seen) == 80


def test_every_image_of_a_mini_batch_has_a_square_of_16_cut_out_that_may_be_clipped():
    pictures, _ = Batches(numbered(60), torch.arange(60), 60, 0, 0)(0)
    sizes = (pictures == 0).all(1).sum((1, 2))
    assert sizes.max() == 16 * 16
    assert 8 * 8 <= sizes.min() < sizes.max()


def test_a_part_holds_the_named_images_in_their_order():
    part = numbered(20).part(torch.tensor([5, 2, 2]))
    assert part.labels.tolist() == [6, 3, 3]
    assert part.images[:, 0, 0, 0].tolist() == [6, 3, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Batches(numbered(5), torch.arange(6), 2, 0, 0), "between 0 and 4, the last image; got 0 to 5"),
        (lambda: Batches(numbered(5), torch.arange(-1, 3), 2, 0, 0), "got -1 to 2"),
        (lambda: Batches(numbered(5), torch.arange(5), 6, 0, 0), "choose a smaller batch"),
        (lambda: augment(torch.zeros(2, 3, 32, 32), generator(0)), r"uint8 of shape .*got torch.float32"),
        (lambda: augment(numbered(2).images, generator(0), cutout=-1), "at least 0 .*got -1"),
        (lambda: Images(torch.zeros(2, 3, 28, 28, dtype=torch.uint8), torch.arange(2)), r"got .*\(2, 3, 28, 28\)"),
        (lambda: Images(numbered(2).images, torch.arange(3)), r"one for each of 2 images, got .*\(3,\)"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_cure(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# The real thing


@pytest.mark.skipif("ASNG_DATA" not in os.environ, reason="needs CIFAR-10 in the folder ASNG_DATA")
def test_the_official_files_have_the_published_sums_and_the_constants_are_theirs():
    if data._missing(data._folder(Path(os.environ["ASNG_DATA"]))):
        pytest.skip("CIFAR-10 is not in the folder ASNG_DATA")
    train, test = load(None, "cpu")
    assert torch.bincount(train.labels).tolist() == [5000] * 10
    assert torch.bincount(test.labels).tolist() == [1000] * 10
    for channel in range(3):
        counts = torch.bincount(train.images[:, channel].flatten(), minlength=256).double()
        mean = (counts @ torch.arange(256.0).double()) / counts.sum()
        deviation = (counts @ (torch.arange(256.0).double() - mean) ** 2 / counts.sum()).sqrt()
        assert mean.item() == pytest.approx(data.MEAN[channel], rel=1e-12)
        assert deviation.item() == pytest.approx(data.STD[channel], rel=1e-12)
