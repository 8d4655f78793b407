"""Models as other libraries write them, made small: a ResNet of torchvision, a ViT of timm; how each is searched."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asng import nas
from asng.nas import OneOf, Repeat, Width


class BasicBlock(nn.Module):
    """As torchvision.models.resnet.BasicBlock."""

    def __init__(self, inplanes: int, planes: int, stride: int = 1, downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out = out + (x if self.downsample is None else self.downsample(x))
        activated: Tensor = self.relu(out)
        return activated


class ResNet(nn.Module):
    """As torchvision.models.resnet18, of 8 channels at first and two stages."""

    def __init__(self, layers: tuple[int, ...] = (2, 3), num_classes: int = 5) -> None:
        super().__init__()
        self.inplanes = 8
        self.conv1 = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)
        self.bn1, self.relu, self.maxpool = nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.layer1 = self._make_layer(8, layers[0], 1)
        self.layer2 = self._make_layer(16, layers[1], 2)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(16, num_classes)

    def _make_layer(self, planes: int, blocks: int, stride: int) -> nn.Sequential:
        downsample = None
        if stride != 1 or self.inplanes != planes:
            downsample = nn.Sequential(nn.Conv2d(self.inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))
        first, self.inplanes = BasicBlock(self.inplanes, planes, stride, downsample), planes
        return nn.Sequential(first, *(BasicBlock(planes, planes) for _ in range(1, blocks)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(self.layer2(self.layer1(x))), 1))
        return logits


class Attention(nn.Module):
    """As timm.layers.Attention: the number of heads is an int that forward reads."""

    def __init__(self, dim: int, num_heads: int, attn_head_dim: int | None = None) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, attn_head_dim or dim // num_heads
        self.attn_dim = num_heads * self.head_dim
        self.qkv, self.proj = nn.Linear(dim, self.attn_dim * 3), nn.Linear(self.attn_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, self.attn_dim)
        projected: Tensor = self.proj(x)
        return projected


class BatchNormAct2d(nn.BatchNorm2d):
    """As timm.layers.BatchNormAct2d: a batch norm that also activates."""

    def __init__(self, num_features: int, eps: float = 1e-5, act_layer: type[nn.Module] = nn.ReLU) -> None:
        super().__init__(num_features, eps)
        self.act = act_layer()

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.act(super().forward(input))
        return output


class Mlp(nn.Module):
    """As timm.layers.Mlp."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.fc2(self.act(self.fc1(x)))
        return output


class Block(nn.Module):
    """As timm.models.vision_transformer.Block."""

    def __init__(self, dim: int, num_heads: int, mlp_ratio: float) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim), Attention(dim, num_heads)
        self.norm2, self.mlp = nn.LayerNorm(dim), Mlp(dim, int(dim * mlp_ratio))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        output: Tensor = x + self.mlp(self.norm2(x))
        return output


class VisionTransformer(nn.Module):
    """As timm's ViT, whose blocks are an nn.Sequential."""

    def __init__(self, dim: int = 16, depth: int = 3, num_heads: int = 4, num_classes: int = 5) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, 4, stride=4)
        self.pos_embed = nn.Parameter(torch.randn(1, 4, dim) * 0.02)
        self.blocks = nn.Sequential(*(Block(dim, num_heads, 4.0) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2) + self.pos_embed
        logits: Tensor = self.head(self.norm(self.blocks(x)).mean(1))
        return logits


def search_resnet(path, module):
    """Depth of the stages, inner widths of the blocks, kind of the activations."""
    if isinstance(module, BasicBlock):
        width = Width(f"{path}.width", [2, 4, module.conv1.out_channels])
        module.conv1 = nas.Conv2d.from_torch(module.conv1, out_channels=width)
        module.bn1 = nas.BatchNorm2d.from_torch(module.bn1, num_features=width)
        module.conv2 = nas.Conv2d.from_torch(module.conv2, in_channels=width)
    if path in ("layer1", "layer2"):
        return Repeat(path, module)
    return OneOf("act", {"relu": module, "silu": nn.SiLU()}) if isinstance(module, nn.ReLU) else None


class ElasticAttention(nas.ElasticLayer, Attention):
    """The first heads of an attention whose code reads their number."""

    torch_layer, elastic = Attention, ("num_heads",)

    def active_tensors(self):
        inner = self.sizes["num_heads"]() * self.head_dim
        queries_keys_values = {
            name: getattr(self.qkv, name).unflatten(0, (3, -1))[:, :inner].flatten(0, 1) for name in ("weight", "bias")
        }
        return {
            **{f"qkv.{name}": tensor for name, tensor in queries_keys_values.items()},
            "proj.weight": self.proj.weight[:, :inner],
            "proj.bias": self.proj.bias,
        }

    @classmethod
    def settings_of(cls, layer):
        return {"dim": layer.qkv.in_features, "attn_head_dim": layer.head_dim}


def search_vit(path, module):
    """Depth, the heads of each block, and one hidden width for all blocks."""
    if isinstance(module, Attention):
        return ElasticAttention.from_torch(module, num_heads=Width(f"{path}.heads", 1, module.num_heads))
    hidden = Width("hidden", [16, 32, 64])
    if path.endswith("mlp.fc1"):
        return nas.Linear(module.in_features, hidden)
    if path.endswith("mlp.fc2"):
        return nas.Linear(hidden, module.out_features)
    return Repeat("depth", module) if path == "blocks" else None
