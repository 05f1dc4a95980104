#!/usr/bin/env python3
"""Paired comparison of tessl with other libraries.

Rounds are interleaved in one process tree: tessl (through `bench_gemm_sweep serve`) and each peer measure the same
shape in turn, and who goes first alternates, so that clocks and neighbours disturb both alike. Each side gets random
data, operands in several copies larger than the caches, and outputs that are poisoned before and checked after.
A comparison whose peer drifted by more than 10 % over the rounds prints EXCEEDS 10% and no ratio.

    python3 bench/paired_cross_runtime.py --setup --venv ~/tessl-peers --lanes openblas,mkl,onednn
    python3 bench/paired_cross_runtime.py --venv ~/tessl-peers --rounds 5 --lanes openblas,mkl,onednn

ratio = peer time / tessl time: above 1, tessl is faster. docs/benchmarking.md tells the rest.
"""

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
LADDER = [
    ("square_512", (512, 512, 512)),
    ("square_1024", (1024, 1024, 1024)),
    ("square_2048", (2048, 2048, 2048)),
    ("square_4096", (4096, 4096, 4096)),
    ("qkv_proj", (2048, 768, 768)),
    ("mlp_up", (8192, 3072, 768)),
    ("mlp_down", (8192, 768, 3072)),
    ("tall_k1024", (4096, 4096, 1024)),
]
WHEELS = {
    "openblas": ["scipy-openblas64", "numpy"],
    "mkl": ["mkl", "numpy"],
    "onednn": ["onednn-cpu-gomp==2023.2.0", "onednn-devel-cpu-gomp==2023.2.0", "numpy"],
    "torch": ["torch", "numpy"],
    "mlx": ["mlx", "numpy"],
}
DRIFT = 0.10
# Work of one side over all rounds, so that a ratio does not rest on a moment.
SECONDS_PER_SIDE = 1.0


def fail(text):
    print(f"error: {text}", file=sys.stderr)
    raise SystemExit(2)


def say(text):
    print(text, file=sys.stderr, flush=True)


# --------------------------------------------------------------------------------------------------------------------
# Setup


def venv_python(venv):
    return Path(venv).expanduser() / "bin" / "python"


def setup(args):
    """Makes the virtual environment and, for oneDNN, compiles the shim."""
    venv = Path(args.venv).expanduser()
    if not venv_python(venv).exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    for lane in args.lanes:
        say(f"{lane}: {' '.join(WHEELS[lane])}")
        subprocess.run([venv_python(venv), "-m", "pip", "install", "--quiet", *WHEELS[lane]], check=True)
    if "onednn" in args.lanes:
        compiler = shutil.which("cc") or fail("the onednn lane needs a C compiler, cc")
        library = find(venv, r"libdnnl\.so(\.\d+)*$") or fail("the wheel holds no libdnnl.so")
        headers = find(venv, r"oneapi/dnnl/dnnl\.h$") or fail("the wheels hold no dnnl.h")
        command = [compiler, "-O2", "-shared", "-fPIC", f"-I{headers.parents[2]}", str(ROOT / "bench/onednn_shim.c")]
        command += [str(library), f"-Wl,-rpath,{library.parent}", "-o", str(venv / "onednn_shim.so")]
        subprocess.run(command, check=True)
    say("ready")


def find(venv, pattern):
    """The first file below the environment whose path ends in the pattern."""
    for folder, _, names in os.walk(Path(venv).expanduser(), followlinks=False):
        for name in sorted(names):
            path = os.path.join(folder, name)
            if re.search(pattern, path):
                return Path(path)
    return None


# --------------------------------------------------------------------------------------------------------------------
# Peers. Each runs in a process of its own (this file with --lane), so that thread pools do not meet.


class Blas:
    """cblas_sgemm of a shared library."""

    dtypes = {"f32"}

    def __init__(self, library, symbol, integer, threads, set_threads):
        import ctypes

        self.ctypes = ctypes
        self.handle = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        self.integer = integer
        self.call = getattr(self.handle, symbol)
        if set_threads:
            getattr(self.handle, set_threads)(ctypes.c_int(threads))

    def prepare(self, shape, dtype, sets):
        ct = self.ctypes
        m, n, k = shape
        pointer = lambda x: x.ctypes.data_as(ct.c_void_p)
        i = self.integer
        self.sets = sets
        self.calls = [
            (ct.c_int(101), ct.c_int(111), ct.c_int(111), i(m), i(n), i(k), ct.c_float(1.0), pointer(a), i(k), pointer(b),
             i(n), ct.c_float(0.0), pointer(c), i(n))
            for a, b, c in sets
        ]

    def run(self, at):
        self.call(*self.calls[at % len(self.calls)])

    def sync(self):
        pass

    def result(self, at):
        return self.sets[at % len(self.sets)][2]


class OneDnn:
    """Matmul primitive with weights reordered beforehand to the layout the library prefers."""

    dtypes = {"f32", "bf16", "i8"}
    codes = {"f32": 0, "bf16": 1, "i8": 2}

    def __init__(self, venv, threads):
        import ctypes

        os.environ["OMP_NUM_THREADS"] = str(threads)
        self.ctypes = ctypes
        path = Path(venv).expanduser() / "onednn_shim.so"
        if not path.exists():
            fail(f"{path} is missing; run with --setup first")
        self.shim = ctypes.CDLL(str(path))
        self.shim.shim_new.restype = ctypes.c_void_p
        self.shim.shim_new.argtypes = [ctypes.c_long] * 3 + [ctypes.c_int] * 2 + [ctypes.c_void_p]
        self.shim.shim_run.argtypes = [ctypes.c_void_p] * 3
        self.shim.shim_free.argtypes = [ctypes.c_void_p]
        self.calls = []

    def prepare(self, shape, dtype, sets):
        ct = self.ctypes
        m, n, k = shape
        pointer = lambda x: x.ctypes.data_as(ct.c_void_p)
        self.sets = sets
        for handle, _, _ in self.calls:
            self.shim.shim_free(handle)
        self.calls = []
        for a, b, c in sets:
            handle = self.shim.shim_new(m, n, k, self.codes[dtype], 1, pointer(b))
            if not handle:
                fail(f"oneDNN refused {shape} {dtype}")
            self.calls.append((handle, pointer(a), pointer(c)))

    def run(self, at):
        if self.shim.shim_run(*self.calls[at % len(self.calls)]) != 0:
            fail("oneDNN failed to run")

    def sync(self):
        pass

    def result(self, at):
        return self.sets[at % len(self.sets)][2]


class Torch:
    """torch.matmul into a given output, on the device that tessl uses."""

    dtypes = {"f32", "bf16", "f16"}

    def __init__(self, kind, threads):
        import torch

        self.torch = torch
        self.device = {"cuda": "cuda", "metal": "mps"}.get(kind, "cpu")
        if self.device == "cuda" and not torch.cuda.is_available():
            fail("torch sees no CUDA device")
        # Exact f32 is compared with exact f32.
        torch.backends.cuda.matmul.allow_tf32 = False
        if self.device == "cpu":
            torch.set_num_threads(threads)

    def prepare(self, shape, dtype, sets):
        torch = self.torch
        kind = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[dtype]
        m, n, k = shape
        put = lambda rows, columns: (torch.rand(rows, columns, device=self.device) * 2 - 1).to(kind)
        empty = lambda: torch.full((m, n), float("nan"), device=self.device, dtype=kind)
        self.tensors = [(put(m, k), put(k, n), empty()) for _ in range(len(sets))]

    def run(self, at):
        a, b, c = self.tensors[at % len(self.tensors)]
        self.torch.matmul(a, b, out=c)

    def sync(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        elif self.device == "mps":
            self.torch.mps.synchronize()

    def check(self, at):
        a, b, c = self.tensors[at % len(self.tensors)]
        want = a[:1].float() @ b.float()
        return bool(((c[:1].float() - want).abs() <= 0.02 * a.shape[1] ** 0.5).all())


class Mlx:
    """mlx.core.matmul; lazy, so each call is evaluated."""

    dtypes = {"f32", "bf16", "f16"}

    def __init__(self):
        import mlx.core as mx

        self.mx = mx

    def prepare(self, shape, dtype, sets):
        mx = self.mx
        kind = {"f32": mx.float32, "bf16": mx.bfloat16, "f16": mx.float16}[dtype]
        m, n, k = shape
        put = lambda rows, columns: mx.random.uniform(-1, 1, (rows, columns)).astype(kind)
        self.tensors = [(put(m, k), put(k, n)) for _ in range(len(sets))]
        mx.eval([x for pair in self.tensors for x in pair])
        self.pending = []

    def run(self, at):
        a, b = self.tensors[at % len(self.tensors)]
        self.pending.append(self.mx.matmul(a, b))

    def sync(self):
        self.mx.eval(self.pending)
        self.pending = []

    def check(self, at):
        return True


def import_numpy():
    import numpy

    return numpy


def make_lane(lane, venv, kind, threads):
    import ctypes

    if lane == "openblas":
        library = find(venv, r"scipy_openblas64/lib/libscipy_openblas64_\.so$") or fail("openblas: run with --setup first")
        return Blas(library, "scipy_cblas_sgemm64_", ctypes.c_int64, threads, "scipy_openblas_set_num_threads64_")
    if lane == "mkl":
        library = find(venv, r"libmkl_rt\.so(\.\d+)*$") or fail("mkl: run with --setup first")
        os.environ.setdefault("MKL_INTERFACE_LAYER", "LP64")
        os.environ.setdefault("MKL_THREADING_LAYER", "GNU" if threads > 1 else "SEQUENTIAL")
        return Blas(library, "cblas_sgemm", ctypes.c_int, threads, "MKL_Set_Num_Threads")
    if lane == "onednn":
        return OneDnn(venv, threads)
    if lane == "torch":
        return Torch(kind, threads)
    if lane == "mlx":
        return Mlx()
    return fail(f"no lane {lane}")


def random_sets(shape, dtype, copies):
    np = import_numpy()
    rng = np.random.default_rng(7)
    m, n, k = shape
    size = lambda *s: rng.random(s, dtype=np.float32) * 2 - 1

    def stored(x):
        if dtype == "f32":
            return x
        if dtype == "i8":
            return (x * 128).astype(np.int8)
        # The upper half of a float, rounded to nearest even.
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

    poison = {"f32": (np.nan, np.float32), "bf16": (0x7FC0, np.uint16), "i8": (-(2**31), np.int32)}
    empty = lambda: np.full((m, n), *poison[dtype])
    return [(stored(size(m, k)), stored(size(k, n)), empty()) for _ in range(copies)]


def widen(x):
    np = import_numpy()
    if x.dtype in (np.int8, np.int32):
        return x.astype(np.float64)
    return x if x.dtype == np.float32 else (x.astype(np.uint32) << 16).view(np.float32)


def serve_lane(args):
    """Answers `MxNxK DTYPE ITERS COPIES` with microseconds, as bench_gemm_sweep does."""
    lane = make_lane(args.lane, args.venv, args.kind, args.threads)
    print(json.dumps({"lane": args.lane}), flush=True)
    prepared, at = None, 0
    for line in sys.stdin:
        words = line.split()
        shape, dtype = tuple(int(d) for d in words[0].split("x")), words[1]
        iters, copies, batched = int(words[2]), int(words[3]), words[4] == "batched"
        if dtype not in lane.dtypes:
            print(json.dumps({"error": f"{args.lane} has no {dtype}"}), flush=True)
            continue
        fresh = prepared != (shape, dtype)
        if fresh:
            own = args.lane in ("torch", "mlx")
            sets = [None] * copies if own else random_sets(shape, dtype, copies)
            lane.prepare(shape, dtype, sets)
            prepared = (shape, dtype)
            for _ in range(2):
                lane.run(at)
                lane.sync()
            right = lane.check(at) if own else check_sample(lane, sets, at)
            if not right:
                print(json.dumps({"error": f"{args.lane}: wrong result for {words[0]} {dtype}"}), flush=True)
                continue
        us = []
        if batched:
            began = time.perf_counter()
            for _ in range(iters):
                at += 1
                lane.run(at)
            lane.sync()
            us = [(time.perf_counter() - began) * 1e6 / iters]
        else:
            for _ in range(iters):
                at += 1
                began = time.perf_counter()
                lane.run(at)
                lane.sync()
                us.append((time.perf_counter() - began) * 1e6)
        print(json.dumps({"us": median(us), "min_us": min(us), "max_us": max(us)}), flush=True)


def check_sample(lane, sets, at):
    np = import_numpy()
    a, b, _ = sets[at % len(sets)]
    got = widen(lane.result(at))
    if np.isnan(got).any():
        return False
    rows = [0, a.shape[0] // 2, a.shape[0] - 1]
    want = widen(a)[rows].astype(np.float64) @ widen(b).astype(np.float64)
    if got.dtype == np.float64:
        return bool((got[rows] == want).all())
    allowed = (1e-5 if got.dtype == np.float32 and a.dtype == np.float32 else 2e-2) * math.sqrt(a.shape[1])
    return bool((abs(got[rows] - want) <= allowed + abs(want) / 100).all())


# --------------------------------------------------------------------------------------------------------------------
# Pairing


class Worker:
    """A process that answers a line with a line."""

    def __init__(self, command, env=None):
        self.process = subprocess.Popen(
            [str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        self.hello = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            fail(f"{Path(self.process.args[0]).name} ended early (exit code {self.process.wait()})")
        return json.loads(line)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def rounds_of(tessl, peer, shape, dtype, rounds, batched, packed):
    """Per round (tessl us, peer us); who goes first alternates."""
    text = "x".join(map(str, shape))
    mode = "batched" if batched else "solo"
    line = f"{text} {dtype} %d {mode}{' packed' if packed else ''}"
    first = tessl.ask(line % 1)
    if "error" in first:
        return first["error"]
    # As many copies of the operands for both.
    copies = first["copies"]

    def ask(worker, iters):
        # The other side's operands are in the caches now: an untimed turn brings this side's back.
        for count in (max(1, min(iters // 4, copies)), iters):
            answer = worker.ask(line % count if worker is tessl else f"{text} {dtype} {count} {copies} {mode}")
        return answer if "error" in answer else answer["us"]

    probe = [ask(w, 2) for w in (tessl, peer)]
    for p in probe:
        if isinstance(p, dict):
            return p["error"]
    iters = [max(2, min(2000, math.ceil(SECONDS_PER_SIDE * 1e6 / rounds / max(us, 1)))) for us in probe]
    pairs = []
    for i in range(rounds):
        order = ((tessl, 0), (peer, 1)) if i % 2 == 0 else ((peer, 1), (tessl, 0))
        times = {}
        for worker, side in order:
            # Thread pools spin for a while after their last work; the other side's threads need those cores.
            time.sleep(0.05)
            times[side] = ask(worker, iters[side])
        pairs.append((times[0], times[1]))
    return pairs


def summarise(suite, rows, peer, threads):
    groups = {}
    for row in rows:
        if peer in row["ratio"]:
            groups.setdefault((row["dtype"], row["precision"], row["layout"], row["mode"]), []).append(row["ratio"][peer])
    out = []
    for (dtype, precision, layout, mode), ratios in sorted(groups.items()):
        out.append({
            "suite": suite, "dtype": dtype, "precision": precision, "layout": layout, "mode": mode, "threads": threads,
            "peer": peer, "geomean": math.exp(sum(map(math.log, ratios)) / len(ratios)), "worst": min(ratios),
            "best": max(ratios), "below_1": sum(r < 1 for r in ratios), "shapes": len(ratios),
        })
    return out


def shapes_of(text):
    known = dict(LADDER)
    shapes = []
    for part in (text or os.environ.get("BENCH_SHAPES") or "ladder").split(","):
        part = part.strip()
        if part == "ladder":
            shapes += LADDER
        elif part in known:
            shapes.append((part, known[part]))
        elif re.fullmatch(r"[1-9]\d*x[1-9]\d*x[1-9]\d*", part):
            shapes.append((part, tuple(int(d) for d in part.split("x"))))
        else:
            fail(f"shape `{part}` is not MxNxK or a name of the ladder")
    return shapes


def slug(text):
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lanes", default="torch", help="torch, mlx, openblas, mkl, onednn, with commas")
    parser.add_argument("--shapes", help="MxNxK or names, with commas [BENCH_SHAPES, else ladder]")
    parser.add_argument("--dtype", default="f32,bf16")
    parser.add_argument("--packed", action="store_true", help="tessl too has B packed beforehand (oneDNN always has)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", help="as for tessl [TESSL_DEVICE, else the best present]")
    parser.add_argument("--venv", default="~/.cache/tessl-peers", help="virtual environment of the peers")
    parser.add_argument("--binary", default=None, help="bench_gemm_sweep [target/release/bench_gemm_sweep]")
    parser.add_argument("--out", default=None, help="JSON file [bench/results/<device>/paired.json]")
    parser.add_argument("--setup", action="store_true", help="install the peers into --venv and stop")
    parser.add_argument("--lane", help=argparse.SUPPRESS)
    parser.add_argument("--kind", default="cpu", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.lane:
        return serve_lane(args)
    args.lanes = [lane.strip() for lane in args.lanes.split(",") if lane.strip()]
    unknown = [lane for lane in args.lanes if lane not in WHEELS]
    if unknown or not args.lanes:
        fail(f"no lane {', '.join(unknown) or 'given'}; there are {', '.join(WHEELS)}")
    if args.setup:
        return setup(args)
    if args.rounds < 3:
        fail("--rounds must be at least 3, or there is no spread to see")
    return compare(args)


def compare(args):
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    binary = Path(args.binary) if args.binary else target / "release/bench_gemm_sweep"
    if not binary.exists():
        fail(f"{binary} is missing; cargo build --release -p tessl-cli --bins")
    command = [binary, "--threads", args.threads] + (["--device", args.device] if args.device else []) + ["serve"]
    tessl = Worker(command)
    kind, device = tessl.hello["kind"], tessl.hello["device"]
    batched = kind != "cpu"
    threads = args.threads if kind == "cpu" else 0
    say(f"device: {tessl.hello['id']} ({device}), {threads or 'no'} CPU threads, {args.rounds} rounds")
    python = venv_python(args.venv) if venv_python(args.venv).exists() else sys.executable
    # Huge pages for the peers' buffers, as tessl's have.
    env = dict(os.environ, OMP_NUM_THREADS=str(args.threads), GLIBC_TUNABLES="glibc.malloc.hugetlb=1")
    peers = {}
    for lane in args.lanes:
        own = [python, __file__, "--lane", lane, "--venv", args.venv, "--kind", kind, "--threads", args.threads]
        peers[lane] = Worker(own, env)
    rows = []
    say(f"{'shape':<14} {'dtype':<5} {'peer':<9} {'tessl us':>10} {'peer us':>10} {'ratio':>7}  per round")
    for dtype in args.dtype.split(","):
        for name, shape in shapes_of(args.shapes):
            rows.append(row_of(args, tessl, peers, name, shape, dtype, threads, batched))
    for worker in [tessl, *peers.values()]:
        worker.close()
    summary = [s for lane in args.lanes for s in summarise("gemm", rows, lane, threads)]
    for s in summary:
        say(f"{s['dtype']} vs {s['peer']}: geomean {s['geomean']:.2f}, worst {s['worst']:.2f}, best {s['best']:.2f}, "
            f"{s['below_1']} of {s['shapes']} below 1")
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True)
    report = {
        "schema": 1, "device": device, "driver": tessl.hello["driver"], "commit": commit.stdout.strip() or None,
        "machine": machine(), "rounds": args.rounds, "rows": rows, "summary": summary,
    }
    out = Path(args.out) if args.out else ROOT / "bench/results" / slug(device) / "paired.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(out)


def row_of(args, tessl, peers, name, shape, dtype, threads, batched):
    m, n, k = shape
    row = {
        "suite": "gemm", "name": name, "m": m, "n": n, "k": k, "dtype": dtype, "out": {"i8": "i32"}.get(dtype, dtype), "layout": "NN",
        "precision": "exact", "mode": "batched" if batched else "solo", "backend": "tensorops", "packed": args.packed,
        "lane": "tessl", "threads": threads, "ratio": {}, "spread": {}, "drift": {}, "peer_us": {},
    }
    size, out = {"f32": (4, 4), "bf16": (2, 2), "f16": (2, 2), "i8": (1, 4)}[dtype]
    moved = size * (m * k + k * n) + out * m * n
    best = []
    for lane, worker in peers.items():
        pairs = rounds_of(tessl, worker, shape, dtype, args.rounds, batched, args.packed)
        if isinstance(pairs, str):
            say(f"{name:<14} {dtype:<5} {lane:<9} {pairs}")
            continue
        ours, theirs = [p[0] for p in pairs], [p[1] for p in pairs]
        ratios = [t / o for o, t in pairs]
        best += ours
        drift = max(theirs) / min(theirs) - 1
        row["drift"][lane], row["peer_us"][lane] = drift, median(theirs)
        each = " ".join(f"{r:.2f}" for r in ratios)
        verdict = f"{median(ratios):>7.2f}"
        if drift > DRIFT:
            verdict = "      -"
            each += f"  EXCEEDS 10%: the peer drifted by {100 * drift:.0f} %, ratios above are not comparable"
        else:
            row["ratio"][lane] = median(ratios)
            row["spread"][lane] = [min(ratios), max(ratios)]
        say(f"{name:<14} {dtype:<5} {lane:<9} {median(ours):>10.1f} {median(theirs):>10.1f} {verdict}  {each}")
    if best:
        us = median(best)
        row.update(median_us=us, min_us=min(best), max_us=max(best), tflops=2 * m * n * k / us / 1e6,
                   gbps=moved / us / 1e3, percent_of_limit=None)
    return row


def machine():
    try:
        names = [l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")]
        return f"{names[0]}, {os.cpu_count()} threads" if names else None
    except OSError:
        return None


if __name__ == "__main__":
    main()
