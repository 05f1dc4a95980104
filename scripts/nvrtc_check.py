#!/usr/bin/env python3
"""Compile every CUDA-facing kernel with NVRTC, without a GPU and without toolkit headers.

Sources are assembled as the library does it: prelude/cuda.h, args.h, pack.h, rows.h, activation.h, turn.h,
weights.h, for kernels/cuda its *.cuh (ptx.cuh first), kernel text. Each file of kernels/simt and kernels/cuda is compiled for each architecture, once per variant of its
function constants, on sm_90 and later with -DGPU_PDL, as the library does. Kernels behind #ifdef ENTRY_<name> are all
compiled together. One line is printed per file and architecture. The exit status is 1 when any compilation fails,
spills registers, serialises wgmma (C75xx), has fewer wide loads than WIDE asks for, touches memory before it has waited
for its predecessors (with GPU_PDL), or, where nvdisasm is found, has not the instructions that SASS asks for; 2 when NVRTC
is missing.

Marks that a kernel file may carry:
    // arch: sm_90a                 compile for these architectures only
    // after: simt/attention.metal  the functions of that file (its kernels are left out) come before this one
    // variant: TILE=0 STAGES=4     compile with these constants; one line per variant. Without such lines a file is
                                    compiled twice, with each constant 0 and with each constant 1.

NVRTC comes with `pip install nvidia-cuda-nvrtc`, the disassembler with nvidia-cuda-nvdisasm; --nvrtc names the library
where it is not found by itself.
"""

import argparse
import ctypes
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OPTIONS = ["-std=c++17", "-default-device", "--diag-suppress=177", "--ptxas-options=-v"]
PRELUDE = ["cuda.h", "args.h", "pack.h", "rows.h", "activation.h", "turn.h", "weights.h"]

# stem -> (constants that must be 1, least number of 128-bit global loads and stores in the PTX of each entry point)
WIDE = {
    "norm": ({"VEC16"}, 3, 1),
    "mlp": ({"VEC16"}, 1, 1),
    "elementwise": ({"VEC16"}, 1, 1),
    "reduce": ({"VEC16"}, 1, 0),
    "rope": ({"VEC16"}, 1, 1),
    "embed": ({"VEC16"}, 1, 1),
    "cache": ({"VEC16"}, 1, 1),
}
# Entry points of these files that read elements one by one on purpose.
NARROW = ("kv_store_coded",)

# stem -> [(constants that must hold, instruction, its number in each entry point)]. Four wgmma a step and no more waits
# than the kernel wrote (the fifth of attention is that of its branch); no fence for the whole device in a block that
# publishes nothing.
SASS = {
    "gemm_wgmma": [
        ({}, r"HGMMA\.", 4),
        ({}, r"WARPGROUP\.DEPBAR", 2),
        ({}, r"USETMAXREG", 2),
        ({"SPLIT": "1"}, r"MEMBAR\.\w+\.GPU", 0),
    ],
    "attention_wgmma": [({}, r"USETMAXREG", 2), ({}, r"MEMBAR\.\w+\.GPU", 0), ({}, r"WARPGROUP\.DEPBAR", 5)],
}

# What makes a kernel slow without making it wrong; matched in the log of the compiler and its assembler.
BAD_LOG = re.compile(r"C75\d\d|wgmma.*serializ|serializ.*wgmma|[1-9]\d* bytes spill", re.I)


class Nvrtc:
    """The few entry points needed, through ctypes."""

    def __init__(self, path):
        # A wheel has no search path to its own builtins; once loaded, they are found by name.
        for builtins in glob.glob(os.path.join(os.path.dirname(path), "libnvrtc-builtins.so.*")):
            ctypes.CDLL(builtins)
        self.lib = ctypes.CDLL(path)
        self.lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def _text(self, program, what):
        size = ctypes.c_size_t()
        getattr(self.lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        getattr(self.lib, f"nvrtcGet{what}")(program, data)
        return data.value.decode(errors="replace")

    def compile(self, source, name, options):
        """Returns (error or None, log, ptx, cubin)."""
        program = ctypes.c_void_p()
        self.lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
        array = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
        status = self.lib.nvrtcCompileProgram(program, len(options), array)
        log = self._text(program, "ProgramLog")
        ptx = self._text(program, "PTX") if status == 0 else ""
        cubin = b""
        if status == 0:
            size = ctypes.c_size_t()
            self.lib.nvrtcGetCUBINSize(program, ctypes.byref(size))
            data = ctypes.create_string_buffer(size.value)
            self.lib.nvrtcGetCUBIN(program, data)
            cubin = data.raw
        self.lib.nvrtcDestroyProgram(ctypes.byref(program))
        return (self.lib.nvrtcGetErrorString(status).decode() if status else None), log, ptx, cubin


def find_nvrtc(given):
    """The path to load: the option, TESSL_NVRTC, a wheel in this Python or in ROOT/.venv, else the system's."""
    if given or os.environ.get("TESSL_NVRTC"):
        return given or os.environ["TESSL_NVRTC"]
    places = [*sys.path, *glob.glob(os.path.join(ROOT, ".venv", "lib", "python*", "site-packages"))]
    for place in places:
        hits = sorted(glob.glob(os.path.join(place, "nvidia", "*", "lib", "libnvrtc.so.*")))
        hits = [h for h in hits if ".alt." not in h]
        if hits:
            return hits[-1]
    return "libnvrtc.so"


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def assemble(kernels, path):
    headers = [os.path.join(kernels, "prelude", header) for header in PRELUDE]
    if path.endswith(".cu"):
        own = glob.glob(os.path.join(os.path.dirname(path), "*.cuh"))
        headers += sorted(own, key=lambda p: (os.path.basename(p) != "ptx.cuh", p))
        headers += [os.path.join(kernels, after) for after in re.findall(r"^// after: (.+)$", read(path), re.M)]
    parts = []
    for file in [*headers, path]:
        text = re.sub(r"^#pragma once$", "", read(file), flags=re.M)
        parts.append(f'#line 1 "{os.path.basename(file)}"\n{text}\n')
    return "".join(parts)


def variants(text):
    """Sets of function constants to compile with, as dictionaries."""
    listed = re.findall(r"^// variant: (.+)$", text, re.M)
    if listed:
        return [dict(pair.split("=", 1) for pair in line.split()) for line in listed]
    names = re.findall(r"^FCONST\(\w+, (\w+), \d+\);", text, re.M)
    return [{name: value for name in names} for value in ("0", "1")] if names else [{}]


def wide_accesses(ptx):
    """Entry point -> (128-bit global loads, stores)."""
    counts = {}
    for part in ptx.split(".entry ")[1:]:
        loads, stores = (
            len(re.findall(rf"\b{access}\.global(?:\.[\w:]+)*\.(?:v[48]\.[ubfs]32|v[24]\.[ubfs]64)\b", part))
            for access in ("ld", "st")
        )
        counts[re.match(r"\w+", part).group()] = (loads, stores)
    return counts


def find_nvdisasm(nvrtc_path):
    """The disassembler beside NVRTC's wheel, or the system's; None when there is none."""
    beside = os.path.join(os.path.dirname(os.path.dirname(nvrtc_path)), "bin", "nvdisasm")
    return beside if os.path.exists(beside) else shutil.which("nvdisasm")


def disassemble(nvdisasm, cubin):
    """Entry point -> its instructions as text."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([nvdisasm, "-c", file.name], capture_output=True, text=True, check=True).stdout
    parts = re.split(r"^\.text\.(\w+):", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def check_sass(nvdisasm, stem, constants, cubin):
    """One line for each instruction that is there too rarely or too often."""
    wanted = [(i, n) for holds, i, n in SASS.get(stem, []) if all(constants.get(k) == v for k, v in holds.items())]
    if not nvdisasm or not wanted:
        return []
    problems = []
    for entry, text in disassemble(nvdisasm, cubin).items():
        for instruction, number in wanted:
            found = len(re.findall(instruction, text))
            if found != number:
                problems.append(f"{entry}: {found} of {instruction}, not {number}")
    return problems


# What reaches memory that a predecessor may have written or may still read, in PTX and in SASS.
TOUCHES_PTX = re.compile(r"\b(?:ld|st|atom|red|cp\.async(?!\.(?:commit|wait))|cp\.reduce)\b\S*\.global|\bcp\.async\.bulk\.tensor")
TOUCHES_SASS = re.compile(r"\b(?:LDG|STG|ATOMG|RED|LDGSTS|UBLKCP|UTMALDG|UTMASTG|LD|ST|ATOM)\b[.\w]*")


def check_wait(text, wait, touches):
    """What is wrong with the wait for predecessors in the code of one entry point, or nothing."""
    found = text.find(wait)
    if found < 0:
        return f"never waits for its predecessors ({wait})"
    early = touches.search(text[:found])
    return f"{early.group()} before it waits for its predecessors" if early else ""


def check_waits(nvdisasm, ptx, cubin):
    """One line for each entry point that may run before the data it needs is there."""
    entries = {re.match(r"\w+", part).group(): part for part in ptx.split(".entry ")[1:]}
    problems = [f"{name}: {check_wait(text, 'griddepcontrol.wait', TOUCHES_PTX)}" for name, text in entries.items()]
    if nvdisasm:
        code = disassemble(nvdisasm, cubin).items()
        problems += [f"{name}: {check_wait(text, 'ACQBULK', TOUCHES_SASS)}" for name, text in code]
    return [line for line in problems if not line.endswith(": ")]


def has_dependent_launch(arch):
    return int(re.search(r"\d+", arch).group()) >= 90


def check_file(nvrtc, nvdisasm, kernels, path, arch, keep, sample):
    """Compiles all variants, or one of them; returns (problems, summary)."""
    source = assemble(kernels, path)
    stem = os.path.splitext(os.path.basename(path))[0]
    entries = sorted(set(re.findall(r"^#ifdef (ENTRY_\w+)$", source, re.M)))
    if re.search(r"^// after: ", read(path), re.M):
        entries.insert(0, "ONE_ENTRY")
    problems, widest, compiled = [], (0, 0), 0
    pdl = has_dependent_launch(arch) and "GRID_WAIT" in read(path)
    # Those of the file itself, not of one that comes before it.
    own = read(path)
    for constants in variants(own if "\n// variant: " in own else source)[: 1 if sample else None]:
        options = [f"-arch={arch}", *OPTIONS, *(["-DGPU_PDL"] if pdl else [])]
        options += [f"-DFC_{name}={value}" for name, value in constants.items()]
        options += [f"-D{entry}" for entry in entries]
        what = " ".join([*[f"{n}={v}" for n, v in constants.items()], *(["GPU_PDL"] if pdl else [])]) or "plain"
        error, log, ptx, cubin = nvrtc.compile(source, stem + ".cu", options)
        compiled += 1
        if error:
            problems.append(f"[{what}] {error}\n" + "\n".join(log.strip().splitlines()[:40]))
            continue
        warnings = [line for line in log.splitlines() if "warning" in line.lower()]
        problems += [f"[{what}] {line}" for line in warnings]
        problems += [f"[{what}] {line}" for line in log.splitlines() if BAD_LOG.search(line)]
        problems += [f"[{what}] {line}" for line in check_sass(nvdisasm, stem, constants, cubin)]
        if pdl:
            problems += [f"[{what}] {line}" for line in check_waits(nvdisasm, ptx, cubin)]
        counts = wide_accesses(ptx)
        widest = max(widest, tuple(map(sum, zip(*counts.values()))))
        required = WIDE.get(stem)
        if required and all(constants.get(name) == "1" for name in required[0]):
            for entry, (loads, stores) in counts.items():
                if not entry.startswith(NARROW) and (loads < required[1] or stores < required[2]):
                    problems.append(f"[{what}] {entry}: {loads} wide loads, {stores} stores; least {required[1:]}")
        if keep:
            tag = "_".join([stem, arch, *[f"{n}{v}" for n, v in constants.items()], *(["pdl"] if pdl else [])])
            with open(os.path.join(keep, tag + ".ptx"), "w", encoding="utf-8") as file:
                file.write(ptx)
    return problems, f"{compiled} variants, wide loads {widest[0]}, stores {widest[1]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="kernel files (default: all, and the prelude's own test)")
    parser.add_argument("--nvrtc", metavar="PATH", help="libnvrtc.so to load")
    parser.add_argument("--arch", action="append", metavar="SM", help="architecture, repeatable (sm_80, sm_90a)")
    parser.add_argument("--kernels", default=os.path.join(ROOT, "crates", "tessl", "kernels"), metavar="DIR")
    parser.add_argument("--keep", metavar="DIR", help="write the PTX of each variant there")
    parser.add_argument("--sample", action="store_true", help="the first variant of each file only")
    options = parser.parse_args()

    path = find_nvrtc(options.nvrtc)
    try:
        nvrtc = Nvrtc(path)
    except OSError as error:
        print(f"nvrtc_check: cannot load {path}: {error}; `pip install nvidia-cuda-nvrtc`", file=sys.stderr)
        return 2
    if options.keep:
        os.makedirs(options.keep, exist_ok=True)
    files = options.files or sorted(
        glob.glob(os.path.join(options.kernels, "simt", "*.metal"))
        + glob.glob(os.path.join(options.kernels, "cuda", "*.cu"))
        + glob.glob(os.path.join(ROOT, "crates", "tessl-sim", "tests", "vocabulary.metal"))
    )
    nvdisasm = find_nvdisasm(path)
    print(f"NVRTC {nvrtc.version}, {nvdisasm or 'no nvdisasm'}: {len(files)} files")
    failed = 0
    for file in files:
        only = re.search(r"^// arch: (.+)$", read(file), re.M)
        for arch in options.arch or ["sm_80", "sm_90a"]:
            if only and arch not in only.group(1).split():
                continue
            start = time.monotonic()
            problems, summary = check_file(
                nvrtc, nvdisasm, options.kernels, file, arch, options.keep, options.sample
            )
            verdict = "FAIL" if problems else "ok"
            name = os.path.relpath(file, options.kernels)
            print(f"{verdict:4} {name} {arch}: {summary}, {time.monotonic() - start:.1f} s")
            for problem in problems:
                print("     " + problem.replace("\n", "\n     "))
            failed += bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
