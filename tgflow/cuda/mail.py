"""Launches the kernels that keep one message per node (csrc/cuda/mail.cu)."""

from __future__ import annotations

import ctypes
from ctypes import c_int64 as _number
from ctypes import c_uint64 as _word

import torch
from torch import Tensor

from tgflow.cuda.arguments import Arguments
from tgflow.cuda.launch import Kernels
from tgflow.cuda.row_lists import lanes_width
from tgflow.cuda.structs import words

FEW_MESSAGES = 4096
"""Most messages that one thread block sorts by itself."""
_THREADS = 256
_WARPS = _THREADS // 32
_MOST_THREADS = 1024
_MOST_BLOCKS = 1 << 20


class _Columns(ctypes.Structure):
    """The messages of a batch, sorted (cuda/mail.cu)."""

    _fields_ = words("src dst t size node order row row_t is_last")


class LastMessages:
    """The last message to each node, for each message of B events, sorted by receiver.

    Message 2i goes to event i's source, 2i + 1 to its destination; nodes are below 2^31. One launch
    for up to `FEW_MESSAGES`, torch sorts larger batches first.
    """

    node: Tensor
    """int64 `[2B]`, ascending: the receiver."""
    row: Tensor
    """int64 `[2B]`: the last message to that node."""
    t: Tensor
    """int64 `[2B]`: time of that message's event."""
    is_last: Tensor
    """bool `[2B]`: whether it is the last message."""

    def __init__(self, kernels: Kernels, src: Tensor, dst: Tensor, t: Tensor) -> None:
        size, given = 2 * len(src), Arguments.beside("src", src)
        self._kernels = kernels
        if size > FEW_MESSAGES:
            receiver = torch.stack([src, dst], dim=1).flatten()
            self.node, self._order = receiver.sort(stable=True)
            self.row, self.t = src.new_empty(2, size).unbind(0)
        else:
            self.node, self._order, self.row, self.t = src.new_empty(4, size).unbind(0)
        self.is_last = src.new_empty(size, dtype=torch.bool)
        self._columns = _Columns(
            *(
                given.address(name, column, torch.int64, len(src))
                for name, column in (("src", src), ("dst", dst), ("t", t))
            ),
            size,
            *(x.data_ptr() for x in (self.node, self._order, self.row, self.t, self.is_last)),
        )
        if size > FEW_MESSAGES:
            kernels.launch("mail_last", -(-size // _THREADS), _THREADS, self._columns)
        elif size > 0:
            threads = min(-(-size // 32) * 32, _MOST_THREADS)
            kernels.launch("mail_few", 1, threads, self._columns)

    def mean(self, messages: Tensor) -> Tensor:
        """Return the mean of all messages to each message's receiver, summed in their order."""
        size = self._columns.size
        given = Arguments.beside("node", self.node)
        address = given.address("messages", messages, torch.float32, size, "D")
        out = torch.empty_like(messages)
        if out.numel() > 0:
            width = messages.shape[1]
            name = f"mail_mean_by_{lanes_width([width], [address, out.data_ptr()])}"
            blocks = min(-(-size // _WARPS), _MOST_BLOCKS)
            to = _word(out.data_ptr())
            self._kernels.launch(
                name, blocks, _THREADS, self._columns, _word(address), _number(width), to
            )
        return out


class _NewMail(ctypes.Structure):
    """The messages of events to their ends (cuda/mail.cu)."""

    _fields_ = words(
        "src_row dst_row stride target t size memory dim clock x x_dim own last_update mail"
    )


def new_mail(
    kernels: Kernels,
    src_row: Tensor,
    dst_row: Tensor,
    target: Tensor | None,
    t: Tensor,
    memory: Tensor,
    clock: Tensor,
    x: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the messages of B events to their ends, as `tgflow.nn.mail.mail_messages` does.

    `src_row` and `dst_row`, whose elements may be strided, are rows; `target` has each row's input
    row, None where rows are input rows; memory and clock are by input row. Returns the receivers'
    memory `[2B, dim]`, last updates `[2B]`, and mail `[2B, dim + x_dim]`.
    """
    given, size, dim = Arguments.beside("memory", memory), len(src_row), memory.shape[1]
    rows, stride = zip(
        *(
            given.rows(name, row.unsqueeze(1), torch.int64, size, 1)
            for name, row in (("src_row", src_row), ("dst_row", dst_row))
        ),
        strict=True,
    )
    x_dim = 0 if x is None else x.shape[1]
    own = memory.new_empty(2 * size, dim)
    mail, last_update = memory.new_empty(2 * size, dim + x_dim), t.new_empty(2 * size)
    made = _NewMail(
        *rows,
        stride[0],
        0 if target is None else given.address("target", target, torch.int64, "N"),
        given.address("t", t, torch.int64, size),
        2 * size,
        at_memory := given.address("memory", memory, torch.float32, "U", "dim"),
        dim,
        given.address("clock", clock, torch.int64, len(memory), 4),
        at_x := 0 if x is None else given.address("x", x, torch.float32, size, x_dim),
        x_dim,
        own.data_ptr(),
        last_update.data_ptr(),
        mail.data_ptr(),
    )
    if size > 0:
        lanes = lanes_width([dim, x_dim], [at_memory, at_x, own.data_ptr(), mail.data_ptr()])
        blocks = min(-(-2 * size // _WARPS), _MOST_BLOCKS)
        kernels.launch(f"mail_made_by_{lanes}", blocks, _THREADS, made)
    return own, last_update, mail


def mail_age(kernels: Kernels, clock: Tensor, seconds_per_tick: float, frequency: Tensor) -> Tensor:
    """Return cos(frequency * seconds from a row's last update to its mail), float32 `[U, T]`."""
    given = Arguments.beside("clock", clock)
    at_clock = given.address("clock", clock, torch.int64, "U", 4)
    at_frequency = given.address("frequency", frequency, torch.float32, "T")
    out = frequency.new_empty(len(clock), len(frequency))
    if out.numel():
        kernels.launch(
            "mail_age",
            min(-(-out.numel() // _THREADS), _MOST_BLOCKS),
            _THREADS,
            _word(at_clock),
            ctypes.c_double(seconds_per_tick),
            _word(at_frequency),
            _number(len(frequency)),
            _number(out.numel()),
            _word(out.data_ptr()),
        )
    return out
