"""The space of the digits experiment, as a supernet, and a handcrafted architecture in it."""

from typing import Any

from torch import Tensor, nn

from asng import nas

BLOCKS = 3  # in each of the two stages
HANDCRAFTED: dict[str, Any] = {
    "width": 24,
    **{f"depth{stage}": 2 for stage in (1, 2)},
    **{f"op{stage}{block}": "conv3" for stage in (1, 2) for block in range(BLOCKS)},
    **{f"act{stage}{block}": "relu" for stage in (1, 2) for block in range(BLOCKS)},
}


class Block(nn.Module):
    """An operation and an activation, each among several, at one width."""

    def __init__(self, name: str, width: nas.Width) -> None:
        super().__init__()
        depthwise = nas.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
        self.op = nas.OneOf(
            f"op{name}",
            {
                "identity": nn.Identity(),
                "average": nn.AvgPool2d(3, 1, 1),
                "max": nn.MaxPool2d(3, 1, 1),
                "conv1": nas.Conv2d(width, width, 1, bias=False),
                "conv3": nas.Conv2d(width, width, 3, padding=1, bias=False),
                "separable": nn.Sequential(depthwise, nas.Conv2d(width, width, 1, bias=False)),
            },
        )
        self.norm = nas.BatchNorm2d(width)
        self.act = nas.OneOf(f"act{name}", {"none": nn.Identity(), "relu": nn.ReLU(), "tanh": nn.Tanh()})

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.act(self.norm(self.op(x)))
        return result


class Net(nn.Module):
    """Two stages of up to three blocks at one width between 4 and 32 channels; 15 decisions."""

    def __init__(self) -> None:
        super().__init__()
        width = nas.Width("width", 4, 32)
        self.stem = nas.Conv2d(1, width, 3, padding=1)
        self.stages = nn.Sequential(
            nas.Repeat("depth1", [Block(f"1{block}", width) for block in range(BLOCKS)], low=1),
            nn.MaxPool2d(2),
            nas.Repeat("depth2", [Block(f"2{block}", width) for block in range(BLOCKS)], low=1),
        )
        self.head = nas.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.head(self.stages(self.stem(images)).mean((2, 3)))
        return result
