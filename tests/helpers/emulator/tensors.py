"""Tensors on a separate device, `torch.device("emulated")`, with bytes in host memory.

Mixing them with CPU tensors fails as on a GPU, reading their values counts as a synchronization,
and kernels run on them in the emulator. Any thread may use them.
"""

import linecache
import sys
import threading
import weakref
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils import backend_registration

from helpers.emulator.streams import overwrite

TYPE = "emulated"
_SETS_UP = "_setup_privateuseone_for_python_backend"
IS_THERE = hasattr(backend_registration, _SETS_UP) and not torch.cuda.is_available()
"""Whether PyTorch supports devices in Python (2.10 or later) and has no GPU; with both, autograd
takes this one for the streams of the other."""

_RESIZING = ("arange", "arange.start", "arange.start_step", "randperm", "eye", "linspace")
_ANY_DEVICE = (
    "aten::copy_",
    "aten::_to_copy",
    "aten::set_",
    "aten::_has_compatible_shallow_copy_type",
)
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
_READ_BACK = (  # operations that synchronize the host
    "aten::_local_scalar_dense",
    "aten::_unique2",
    "aten::bincount",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
    "aten::unique_consecutive",
    "aten::unique_dim",
)


@dataclass
class Watch:
    """Counters of torch operations on the device."""

    operations: Counter[str] = field(default_factory=Counter)
    """Those with work for the device: neither views nor allocations."""
    waits: list[str] = field(default_factory=list)
    """Operations that synchronized the host, and their calling lines."""
    num_bytes: int = 0
    """Bytes of the operations' arguments and results, each read or written once; not of late ones.
    """


class Sink(Protocol):
    """Takes work instead of running it: the current stream, or a capture of it."""

    def put(self, work):
        """Queue work, or capture it."""

    def settle(self):
        """Run the work so far: the host waits for it."""

    def own(self, memory):
        """Return the owner of new memory, whose end frees it."""


class Late:
    """Where operations go: `of_all` of any thread, or `of_thread.sink` of one."""

    of_all: Sink | None = None
    of_thread = threading.local()

    @classmethod
    def sink(cls):
        return getattr(cls.of_thread, "sink", None) or cls.of_all


class EmulatedTensor(Tensor):
    """A tensor on the emulated device; `held` contains its bytes."""

    held: Tensor
    owner: object
    """Of its memory, if operations are late; shared with its views."""

    @staticmethod
    def __new__(cls, held, owner=None):
        made = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=emulated_device(),
        )
        made.held, made.owner = held, owner
        return made

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        return _run(op, *args, **(kwargs or {}))

    def data_ptr(self):
        return self.held.data_ptr()

    def untyped_storage(self):
        return self.held.untyped_storage()

    def tolist(self):
        return self.cpu().tolist()

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), self.detach().clone().requires_grad_(self.requires_grad))

    def __repr__(self):
        return f"{self.held!r} on {self.device}"


@cache
def emulated_device():
    """Return the device; the first call registers it with PyTorch for the rest of the process.

    Autograd counts devices at its first use, so this module calls it when it is imported.
    """
    getattr(backend_registration, _SETS_UP)(TYPE, _BackendModule())
    anything = torch.library.Library("_", "IMPL")
    anything.fallback(_run, "PrivateUse1")
    own = torch.library.Library("aten", "IMPL")
    for name in (*_RESIZING, "copy_"):
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        own.impl(op, partial(_run, op), "PrivateUse1")
    _libraries.extend((anything, own))
    return torch.device(TYPE, 0)


class _BackendModule:
    """The `torch.emulated` module that PyTorch requires; the device has no generator."""

    def is_initialized(self):
        return True

    def is_available(self):
        return True

    def current_device(self):
        return 0

    def device_count(self):
        return 1

    def _is_in_bad_fork(self):
        return False

    def manual_seed_all(self, seed):
        pass

    def get_rng_state(self, device=None):
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state, device=None):
        pass


@contextmanager
def watching():
    """Count operations and waits of the enclosed calls, on any thread."""
    watch = Watch()
    with _lock:
        _watches.append(watch)
    try:
        yield watch
    finally:
        with _lock:
            _watches.remove(watch)


def pin(host):
    """Return a copy in memory that counts as pinned during its lifetime."""
    memory = np.empty(max(host.nbytes, 1), np.uint8)
    span = memory.ctypes.data, memory.ctypes.data + len(memory)
    _pinned.append(span)
    weakref.finalize(memory, _pinned.remove, span)
    bytes_ = torch.from_numpy(memory)[: host.nbytes]
    return bytes_.view(host.dtype).view(host.shape).copy_(host)


_HERE = f"{Path(__file__).parents[3]}/"
_lock = threading.Lock()
_watches = []
_pinned = []
_libraries = []  # PyTorch drops its reference with them


@dataclass
class _Signature:
    """Cached schema of an operation; PyTorch computes it slowly."""

    name: str
    arguments: list[str]
    written: list[str]
    num_returns: int
    is_view: bool
    """Whether it returns memory of its first argument, and touches no values."""


@cache
def _signature(op):
    schema = op._schema
    written = [x.name for x in schema.arguments if x.alias_info and x.alias_info.is_write]
    names = [argument.name for argument in schema.arguments]
    is_view = not written and any(argument.alias_info for argument in schema.arguments)
    return _Signature(schema.name, names, written, len(schema.returns), is_view)


def _run(op, *args, **kwargs):
    signature = _signature(op)
    name = signature.name
    _check_devices(name, args, [*_tensors(args), *_tensors(kwargs.values())])
    if not signature.is_view and "empty" not in name and name != "aten::_unsafe_view":
        _note(name, args, kwargs)
    sink = Late.sink()
    if sink is not None and not signature.is_view and not _waits(name, args, kwargs):
        return _run_late(sink, op, args, kwargs)
    if sink is not None and not signature.is_view:
        sink.settle()
    found = op(*map(_held, args), **{key: _held(x) for key, x in kwargs.items()})
    if _watches and not signature.is_view and "empty" not in name:
        moved = sum(x.nbytes for x in _tensors([*args, *kwargs.values(), found]))
        for watch in _watches:
            watch.num_bytes += moved
    if signature.written:
        return _mutated(signature, args, kwargs)
    if _is_for_host(kwargs):
        return found
    if signature.is_view:
        return _emulated(found, getattr(_tensors(args)[0], "owner", None))
    return _emulated(found, None if sink is None else sink.own)


def _is_for_host(kwargs):
    return kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu"


def _run_late(sink, op, args, kwargs):
    """Queue an operation, and return its results, which have no values until then."""
    signature = _signature(op)
    given = dict(zip(signature.arguments, args, strict=False)) | kwargs
    late = [_held(x if name in signature.written else _as_of_now(x)) for name, x in given.items()]
    names = dict(zip(given, late, strict=True))
    positional, rest = late[: len(args)], {name: names[name] for name in kwargs}
    if signature.written:
        sink.put(lambda: op(*positional, **rest))
        return _mutated(signature, args, kwargs)
    like = op(*_meta(positional), **{"device": "meta"} if "device" in rest else {}, **{
        name: _meta(x) for name, x in rest.items() if name != "device"
    })  # fmt: skip
    out = _empty_like(like)
    made = _tensors([out])

    def run():
        for target, found in zip(made, _tensors([op(*positional, **rest)]), strict=True):
            if target.numel() > found.numel() == 0:  # the bag of each row, which a CPU finds later
                rows = torch.arange(len(target))
                target.copy_(torch.bucketize(rows, positional[2], right=True) - 1)
            elif target.numel():
                target.copy_(found)

    if "empty" not in signature.name:
        sink.put(run)
    return out if _is_for_host(kwargs) else _emulated(out, sink.own)


def _as_of_now(x):
    """Return an argument with copies of what the host may change before the device reads it."""
    if isinstance(x, Tensor) and not isinstance(x, EmulatedTensor) and not _is_pinned(x):
        return x.clone()
    return type(x)(map(_as_of_now, x)) if isinstance(x, (list, tuple)) else x


def _meta(x):
    """Return an argument without its values."""
    if isinstance(x, Tensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    return type(x)(map(_meta, x)) if isinstance(x, (list, tuple)) else x


def _empty_like(x):
    """Return memory for a result; it is filled until it is written."""
    if isinstance(x, Tensor):
        made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
        overwrite(made)
        return made
    return type(x)(map(_empty_like, x)) if isinstance(x, (list, tuple)) else x


def _tensors(values):
    """Return the tensors among values and in lists and tuples of them."""
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors(value)
    return found


def _held(x):
    """Return an argument on the CPU; tensors may be in lists and tuples."""
    if isinstance(x, EmulatedTensor):
        return x.held
    if isinstance(x, (list, tuple)):
        return type(x)(map(_held, x))
    if isinstance(x, torch.device) and x.type == TYPE:
        return torch.device("cpu")
    return x


def _emulated(x, owner=None):
    """Return a CPU result on the device; tensors may be in lists and tuples.

    `owner`: Of its memory, or a function that returns it.
    """
    if isinstance(x, Tensor):
        return EmulatedTensor(x, owner(x) if callable(owner) else owner)
    if isinstance(x, (list, tuple)):
        return type(x)(_emulated(each, owner) for each in x)
    return x


def _mutated(signature, args, kwargs):
    """Return the arguments that an operation has written to and returns."""
    given = dict(zip(signature.arguments, args, strict=False)) | kwargs
    written = [given[name] for name in signature.written]
    for each in _tensors(written):
        if isinstance(each, EmulatedTensor) and each.shape != each.held.shape:
            text = f"{signature.name} changes the shape of a tensor, which is not emulated"
            raise NotImplementedError(text)
    count = signature.num_returns
    return None if count == 0 else written[0] if count == 1 else tuple(written)


def _check_devices(name, args, tensors):
    """Raise like PyTorch for tensors of different devices; scalars may be anywhere."""
    if name in _ANY_DEVICE or (name in _INDEXING and isinstance(args[0], EmulatedTensor)):
        return
    strangers = [x for x in tensors if not isinstance(x, EmulatedTensor) and x.dim() > 0]
    if strangers and len(strangers) < len(tensors):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{torch.device(TYPE, 0)} and {strangers[0].device}! ({name})"
        )


def _note(name, args, kwargs):
    if not _watches:
        return
    waits = _waits(name, args, kwargs)
    line = _line() if waits else ""
    with _lock:
        for watch in _watches:
            watch.operations[name.removeprefix("aten::")] += 1
            if waits:
                watch.waits.append(f"{name.removeprefix('aten::')}: {line}")


def _waits(name, args, kwargs):
    if name in _READ_BACK:
        return True
    if name == "aten::repeat_interleave":
        return kwargs.get("output_size") is None
    if name in _INDEXING:
        asked = [x for x in args[1] if x is not None]
        return any(not isinstance(x, EmulatedTensor) or x.dtype == torch.bool for x in asked)
    if name == "aten::_to_copy":
        device = kwargs.get("device")
        leaves = device is not None and torch.device(device).type != TYPE
        return leaves and not kwargs.get("non_blocking", False)
    if name == "aten::copy_":
        return _copy_waits(
            args[0], args[1], args[2] if len(args) > 2 else kwargs.get("non_blocking")
        )
    return False


def _copy_waits(target, source, non_blocking):
    if isinstance(target, EmulatedTensor) == isinstance(source, EmulatedTensor):
        return False
    return not non_blocking or not _is_pinned(_held_by_host(target, source))


def _held_by_host(target, source):
    """Return the tensor that is not on the device."""
    return source if isinstance(target, EmulatedTensor) else target


def _is_pinned(host):
    return any(begin <= host.data_ptr() < end for begin, end in _pinned)


def _line():
    """Return the innermost repository line of the call stack."""
    frame = sys._getframe()
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_HERE) and path != __file__ and "site-packages" not in path:
            line = linecache.getline(path, frame.f_lineno).strip()
            return f"{path.removeprefix(_HERE)}:{frame.f_lineno} {line}"
        frame = frame.f_back
    return "nowhere of ours"


if IS_THERE:
    emulated_device()
