"""Elastic convolutions, and transposed ones, in one, two and three dimensions."""

from torch import nn

from asng.nas.layers._conv import Conv, ConvTranspose


class Conv1d(Conv, nn.Conv1d):
    """`nn.Conv1d` whose channels, groups and kernel may follow decisions: (n, in, l) to (n, out, l').

    Args:
        in_channels, out_channels, kernel_size, padding, groups: As in `Conv2d`.
        stride, dilation, bias, padding_mode, device, dtype: As in torch.

    Raises:
        ValueError: Sizes do not fit together, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> conv = Conv1d(3, Width("channels", 16, 64), kernel_size=3, padding=1)
    >>> select(conv, {"channels": 20})
    >>> conv(torch.zeros(1, 3, 8)).shape
    torch.Size([1, 20, 8])
    """

    torch_layer = nn.Conv1d
    _axes, _function = 1, "conv1d"


class Conv2d(Conv, nn.Conv2d):
    """`nn.Conv2d` whose channels, groups and kernel may follow decisions: (n, in, h, w) to (n, out, h', w').

    Of several groups, the first channels of each are used; groups that follow a width are left out.

    Args:
        in_channels: A number, a decision, arithmetic with decisions, or `AnySize`.
        out_channels: A number, a decision or arithmetic with decisions.
        kernel_size: The same, for both axes or for each; all odd or all even.
        padding: Belongs to the largest kernel and shrinks with it, so that the output keeps its size.
        groups: A number, or the decision that the channels are multiples of.
        stride, dilation, bias, padding_mode, device, dtype: As in torch.

    Raises:
        ValueError: Sizes do not fit together, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> conv = Conv2d(3, Width("channels", 16, 64), kernel_size=3, padding=1)
    >>> select(conv, {"channels": 20})
    >>> conv(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 20, 8, 8])
    """

    torch_layer = nn.Conv2d
    _axes, _function = 2, "conv2d"


class Conv3d(Conv, nn.Conv3d):
    """`nn.Conv3d` whose channels, groups and kernel may follow decisions: (n, in, d, h, w) to (n, out, d', h', w').

    Args:
        in_channels, out_channels, kernel_size, padding, groups: As in `Conv2d`.
        stride, dilation, bias, padding_mode, device, dtype: As in torch.

    Raises:
        ValueError: Sizes do not fit together, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Width, select
    >>> conv = Conv3d(3, Width("channels", 16, 64), kernel_size=3, padding=1)
    >>> select(conv, {"channels": 20})
    >>> conv(torch.zeros(1, 3, 8, 8, 8)).shape
    torch.Size([1, 20, 8, 8, 8])
    """

    torch_layer = nn.Conv3d
    _axes, _function = 3, "conv3d"


class ConvTranspose1d(ConvTranspose, nn.ConvTranspose1d):
    """`nn.ConvTranspose1d` whose channels, groups and kernel may follow decisions, as those of `Conv1d` do.

    Args:
        in_channels, out_channels, kernel_size, padding, groups: As in `Conv2d`.
        stride, output_padding, bias, dilation, padding_mode, device, dtype: As in torch.

    Raises:
        ValueError: Sizes do not fit together, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Value, select
    >>> from asng.space import Integer
    >>> conv = ConvTranspose1d(4, 3, Value("k", Integer(1, 3)) * 2 - 1, stride=2, padding=2, output_padding=1)
    >>> select(conv, {"k": 2})
    >>> conv(torch.zeros(1, 4, 8)).shape
    torch.Size([1, 3, 16])
    """

    torch_layer = nn.ConvTranspose1d
    _axes, _function = 1, "conv_transpose1d"


class ConvTranspose2d(ConvTranspose, nn.ConvTranspose2d):
    """`nn.ConvTranspose2d` whose channels, groups and kernel may follow decisions, as those of `Conv2d` do.

    Args:
        in_channels, out_channels, kernel_size, padding, groups: As in `Conv2d`.
        stride, output_padding, bias, dilation, padding_mode, device, dtype: As in torch.

    Raises:
        ValueError: Sizes do not fit together, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Value, select
    >>> from asng.space import Integer
    >>> conv = ConvTranspose2d(4, 3, Value("k", Integer(1, 3)) * 2 - 1, stride=2, padding=2, output_padding=1)
    >>> select(conv, {"k": 2})
    >>> conv(torch.zeros(1, 4, 8, 8)).shape
    torch.Size([1, 3, 16, 16])
    """

    torch_layer = nn.ConvTranspose2d
    _axes, _function = 2, "conv_transpose2d"


class ConvTranspose3d(ConvTranspose, nn.ConvTranspose3d):
    """`nn.ConvTranspose3d` whose channels, groups and kernel may follow decisions, as those of `Conv3d` do.

    Args:
        in_channels, out_channels, kernel_size, padding, groups: As in `Conv2d`.
        stride, output_padding, bias, dilation, padding_mode, device, dtype: As in torch.

    Raises:
        ValueError: Sizes do not fit together, or another argument is a decision.

    >>> import torch
    >>> from asng.nas import Value, select
    >>> from asng.space import Integer
    >>> conv = ConvTranspose3d(4, 3, Value("k", Integer(1, 3)) * 2 - 1, stride=2, padding=2, output_padding=1)
    >>> select(conv, {"k": 2})
    >>> conv(torch.zeros(1, 4, 8, 8, 8)).shape
    torch.Size([1, 3, 16, 16, 16])
    """

    torch_layer = nn.ConvTranspose3d
    _axes, _function = 3, "conv_transpose3d"
