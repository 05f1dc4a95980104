#!/usr/bin/env python3
"""tessl and PyTorch (or NumPy) on the same memory, without a copy in either direction.

    cargo build --release -p tessl --example dlpack --features dlpack
    python3 crates/tessl/examples/dlpack.py target/release/examples/libdlpack.so [cpu|cuda:0]

NumPy is used on the CPU when PyTorch is not installed.
"""

import ctypes
import sys

NAME, USED = b"dltensor_versioned", b"used_dltensor_versioned"
python = ctypes.pythonapi
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Shared:
    """A tensor of tessl's, as the array API wants to see it."""

    def __init__(self, pointer, device):
        self.pointer, self.device = pointer, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_):
        # tessl has waited for its own work, so the data is there for any stream.
        pointer, self.pointer = self.pointer, None
        return python.PyCapsule_New(pointer, NAME, None)


def take(array):
    """The pointer behind another library's array; the capsule no longer owns it."""
    capsule = array.__dlpack__(max_version=(1, 0))
    pointer = python.PyCapsule_GetPointer(capsule, NAME)
    python.PyCapsule_SetName(capsule, USED)
    return pointer


def main(library, device="cpu"):
    lib = ctypes.CDLL(library)
    lib.example_open.restype = ctypes.c_void_p
    lib.example_zeros.restype = ctypes.c_void_p
    lib.example_zeros.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    lib.example_scale.restype = ctypes.c_bool
    lib.example_scale.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float]
    rt = lib.example_open(device.encode())
    if not rt:
        raise SystemExit(f"no runtime on {device}")
    kind, _, index = device.partition(":")
    place = (1, 0) if kind == "cpu" else (2, int(index or 0))
    try:
        import torch as arrays

        wait = arrays.cuda.synchronize if kind == "cuda" else lambda: None
        make = lambda: arrays.arange(6.0, dtype=arrays.float32, device=device).reshape(2, 3)
    except ImportError:
        import numpy as arrays

        wait = lambda: None
        make = lambda: arrays.arange(6.0, dtype=arrays.float32).reshape(2, 3)

    # Theirs, used by tessl: two columns of three.
    theirs = make()
    wait()
    assert lib.example_scale(rt, take(theirs[:, :2]), 3.0)
    assert theirs.tolist() == [[0.0, 3.0, 2.0], [9.0, 12.0, 5.0]], theirs

    # Ours, used by them and then by tessl again.
    ours = arrays.from_dlpack(Shared(lib.example_zeros(rt, 2, 2), place))
    ours += 1
    wait()
    assert lib.example_scale(rt, take(ours), 0.5)
    assert ours.tolist() == [[0.5, 0.5], [0.5, 0.5]], ours
    print(f"{arrays.__name__} and tessl shared memory on {device}, both ways")


if __name__ == "__main__":
    main(*sys.argv[1:])
