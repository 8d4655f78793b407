"""Triton kernels of SGD: gradients are clipped and applied in two passes over memory.

`norms` and `move` work on flat tensors, whose numbers lie in lines of `LINE`; all of a line belong to one parameter
(`owners`). A program works on a tile of `LINES` lines. The gradients of several backward passes are `N` rows of `size`
numbers, which are added up. In a search most weights have none in a step: flags of the tiles tell the second pass which
rows it neither has to read nor to clear.

`square_tiles` and `move_tiles` work on tensors anywhere in memory; a program has a tile of at most `TILE` numbers. A
table of int64 has a row for each tile: the addresses of its gradients, values and momentum, and how many numbers there
are from there to the end of the tensor, zero or less if it has no gradient.
"""

import triton
import triton.language as tl


@triton.jit
def _tile(tile, lines, LINES: tl.constexpr, LINE: tl.constexpr):
    """The lines of a tile, which of them there are, and the offsets of their numbers."""
    line = tile * LINES + tl.arange(0, LINES)
    return line, line < lines, line.to(tl.int64)[:, None] * LINE + tl.arange(0, LINE)[None, :]


@triton.jit
def _descend(
    value, step, moving, lr, weight_decay, momentum, DECAY: tl.constexpr, MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr
):
    """Values and momentum after a step along a gradient, with the roundings of torch's SGD."""
    if DECAY:
        step = tl.fma(value, weight_decay, step)
    if MOMENTUM:
        moving = moving * momentum + step
        step = tl.fma(moving, momentum, step) if NESTEROV else moving
    return tl.fma(step, -tl.load(lr).to(tl.float32), value), moving


@triton.jit
def norms(rows, owners, touched, flags, norms, size, lines, N: tl.constexpr, LINES: tl.constexpr, LINE: tl.constexpr):
    """The norm of each tile's summed gradients; parameters with one that is not zero become touched.

    The lowest bit of a tile's flag says whether its rows hold anything but zeros, the next one the same of the step
    before.
    """
    tile = tl.program_id(0)
    line, mask, offsets = _tile(tile, lines, LINES, LINE)
    gradient = tl.load(rows + offsets, mask[:, None], other=0.0).to(tl.float32)
    found = gradient != 0
    for row in tl.static_range(1, N):
        other = tl.load(rows + row * size.to(tl.int64) + offsets, mask[:, None], other=0.0).to(tl.float32)
        found = found | (other != 0)
        gradient += other
    is_touched = tl.max((gradient != 0).to(tl.int32), 1) > 0
    # Several programs may write here, but all of them write the same.
    tl.store(touched + tl.load(owners + line, mask, other=0), 1, mask & is_touched)
    tl.store(norms + tile, tl.sqrt(tl.sum(tl.sum(gradient * gradient, 1), 0)))
    flag = tl.max(tl.max(found.to(tl.int32), 1), 0)
    tl.store(flags + tile, (tl.load(flags + tile) & 1) * 2 + flag)


@triton.jit
def move(
    rows,
    gradient,
    values,
    momentum_buffer,
    low,
    owners,
    touched,
    flags,
    norm,
    scale,
    lr,
    weight_decay,
    momentum,
    size,
    lines,
    N: tl.constexpr,
    LOW: tl.constexpr,
    DECAY: tl.constexpr,
    MOMENTUM: tl.constexpr,
    NESTEROV: tl.constexpr,
    LINES: tl.constexpr,
    LINE: tl.constexpr,
):
    """Move the values of touched parameters, if the norm is finite, and write the clipped sum of the gradients.

    With LOW there is a copy of the values in lower precision, and the rows are of its type; without, the sum of the
    gradients takes the place of the first row. All other rows are cleared.
    """
    tile = tl.program_id(0)
    line, mask, offsets = _tile(tile, lines, LINES, LINE)
    flag = tl.load(flags + tile)
    has_rows = (line < tl.where((flag & 1) != 0, lines, 0))[:, None]
    is_touched = tl.load(touched + tl.load(owners + line, mask, other=0), mask, other=0)
    moves = (tl.where(tl.load(norm) < float("inf"), is_touched, 0) != 0)[:, None]  # NaN is not less
    value = tl.load(values + offsets, moves, other=0.0)
    moving = tl.load(momentum_buffer + offsets, moves, other=0.0) if MOMENTUM else value
    step = tl.load(rows + offsets, has_rows, other=0.0).to(tl.float32)
    for row in tl.static_range(1, N):
        step += tl.load(rows + row * size.to(tl.int64) + offsets, has_rows, other=0.0).to(tl.float32)
    step = tl.where(has_rows, step * tl.load(scale), 0.0)  # the scale may be NaN

    tl.store(gradient + offsets, step, (line < tl.where(flag != 0, lines, 0))[:, None])
    tl.debug_barrier()  # which thread clears a number need not be the one that loaded it
    zeros = tl.zeros([LINES, LINE], rows.dtype.element_ty)
    for row in tl.static_range(0 if LOW else 1, N):
        tl.store(rows + row * size.to(tl.int64) + offsets, zeros, has_rows)

    value, moving = _descend(value, step, moving, lr, weight_decay, momentum, DECAY, MOMENTUM, NESTEROV)
    if MOMENTUM:
        tl.store(momentum_buffer + offsets, moving, moves)
    tl.store(values + offsets, value, moves)
    if LOW:
        tl.store(low + offsets, value.to(low.dtype.element_ty), moves)


@triton.jit
def _pointers(table, tile, column, TILE: tl.constexpr):
    """Pointers to the numbers of a tile."""
    return tl.load(table + 4 * tile + column).to(tl.pointer_type(tl.float32)) + tl.arange(0, TILE)


@triton.jit
def square_tiles(table, squares, tiles, PARTS: tl.constexpr, TILE: tl.constexpr):
    """The squared gradients, added up to one number per program, of which there are at most `PARTS`."""
    total = tl.zeros([TILE], tl.float32)
    for tile in range(tl.program_id(0), tiles, PARTS):
        mask = tl.arange(0, TILE) < tl.load(table + 4 * tile + 3)
        gradient = tl.load(_pointers(table, tile, 0, TILE), mask, other=0.0)
        total += gradient * gradient
    tl.store(squares + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def move_tiles(
    table,
    squares,
    max_norm,
    lr,
    weight_decay,
    momentum,
    DECAY: tl.constexpr,
    MOMENTUM: tl.constexpr,
    NESTEROV: tl.constexpr,
    PARTS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Move the values of a tile along its clipped gradients, if the norm of all gradients is finite.

    Loads of four numbers at once suit `squares`, but not tiles, which may begin anywhere: both need layouts of their
    own, which Triton gives them if `PARTS` is not `TILE`.
    """
    tile, number = tl.program_id(0), tl.arange(0, TILE)
    count = tl.load(table + 4 * tile + 3)
    values, momentum_buffer = _pointers(table, tile, 1, TILE), _pointers(table, tile, 2, TILE)
    step = tl.load(_pointers(table, tile, 0, TILE), number < count, other=0.0)
    value = tl.load(values, number < count, other=0.0)
    moving = tl.load(momentum_buffer, number < count, other=0.0) if MOMENTUM else value
    norm = tl.sqrt(tl.sum(tl.load(squares + tl.arange(0, PARTS)), 0))
    moves = number < tl.where(norm < float("inf"), count, 0)  # NaN is not less
    step = tl.where(moves, step, 0.0) * tl.minimum(max_norm / (norm + 1e-6), 1.0)
    value, moving = _descend(value, step, moving, lr, weight_decay, momentum, DECAY, MOMENTUM, NESTEROV)
    if MOMENTUM:
        tl.store(momentum_buffer, moving, moves)
    tl.store(values, value, moves)
