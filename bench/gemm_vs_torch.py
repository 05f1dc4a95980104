#!/usr/bin/env python3
"""bf16 GEMM on one GPU against torch.mm, round by round.

Rounds alternate between tessl (`bench_gemm_sweep serve`, a process of its own) and torch in this process; who goes
first alternates too. Both replay a graph of calls over operands that rotate through more memory than the L2 holds, and
both are timed alike: wall clock around enough replays for --round-ms of work and one wait. Data is random; tessl
checks its results against f64 at a sample of places before it measures, torch's are compared with float64 products at
a sample of rows. ratio = torch time / tessl time, of each round; above 1, tessl is faster.

    python3 bench/gemm_vs_torch.py --binary target/ci/bench_gemm_sweep --out gemm.json
    python3 bench/gemm_vs_torch.py --tune --shapes ladder,rows_64 --layouts NN --out tune.json

--tune measures every plan that could run each shape, and tells which would be faster than the table's choice.
A peer whose time drifted by more than 10 % over the rounds prints EXCEEDS 10% and yields no ratio.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
LADDER = {
    "square_512": (512, 512, 512),
    "square_1024": (1024, 1024, 1024),
    "square_2048": (2048, 2048, 2048),
    "square_4096": (4096, 4096, 4096),
    "qkv_proj": (2048, 768, 768),
    "mlp_up": (8192, 3072, 768),
    "mlp_down": (8192, 768, 3072),
    "tall_k1024": (4096, 4096, 1024),
}
MORE = {
    "square_8192": (8192, 8192, 8192),
    "llama_kv": (4096, 1024, 4096),
    "llama_up": (4096, 14336, 4096),
    "llama_down": (4096, 4096, 14336),
    "rows_1": (1, 4096, 4096),
    "rows_16": (16, 4096, 4096),
    "rows_64": (64, 4096, 4096),
    "wide_1": (1, 28672, 4096),
    "wide_64": (64, 28672, 4096),
    "long_k_128": (128, 128, 8192),
    "long_k_768": (768, 768, 8192),
}
DRIFT = 0.10
# As crates/tessl-cli/src/bench/data.rs: bytes of all copies together, at least, and the number of copies.
COPIES_BYTES, MOST_COPIES, CALLS = 120 << 20, 128, 16


def say(text):
    print(text, file=sys.stderr, flush=True)


class Server:
    """A serving process; one line asked, one answered."""

    def __init__(self, command):
        self.name = Path(command[0]).name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.hello = self._read()

    def _read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended; its own message is above")
        return json.loads(line)

    def send(self, words):
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)


class Tessl(Server):
    """Products."""

    def __init__(self, binary):
        super().__init__([binary, "--lane", "tessl-cuda", "--device", "cuda", "serve"])

    def ask(self, shape, dtype, layout, iters, plan=None):
        m, n, k = shape
        words = [f"{m}x{n}x{k}", dtype, str(max(1, min(iters, 100_000))), layout, "graph"]
        return self.send(words + ([] if plan is None else [f"plan={plan}"]))


class Torch:
    """torch.mm over the same shape, captured."""

    def __init__(self, torch, shape, dtype, layout):
        self.torch, (m, n, k) = torch, shape
        kind = {"bf16": torch.bfloat16, "f16": torch.float16}[dtype]
        one = 2 * (m * k + k * n + m * n)
        self.copies = min(max(-(-COPIES_BYTES // one), 2), MOST_COPIES)
        self.calls = self.copies * -(-CALLS // self.copies)

        def operand(rows, columns, turned):
            size = (columns, rows) if turned else (rows, columns)
            t = torch.rand(size, device="cuda", dtype=torch.float32).mul_(2).sub_(1).to(kind)
            return t.t() if turned else t

        self.a = [operand(m, k, layout[0] == "T") for _ in range(self.copies)]
        self.b = [operand(k, n, layout[1] == "T") for _ in range(self.copies)]
        self.c = [torch.full((m, n), float("nan"), device="cuda", dtype=kind) for _ in range(self.copies)]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                torch.mm(self.a[0], self.b[0], out=self.c[0])
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for i in range(self.calls):
                j = i % self.copies
                torch.mm(self.a[j], self.b[j], out=self.c[j])
        self.graph.replay()
        torch.cuda.synchronize()
        rows = [0, m // 2, m - 1]
        wanted = self.a[-1][rows].double() @ self.b[-1].double()
        error = ((self.c[-1][rows].double() - wanted).norm() / wanted.norm()).item()
        assert error < 1e-2, f"torch is off by {error}"

    def run(self, iters):
        """Microseconds of a call."""
        replays = -(-iters // self.calls)
        start = time.perf_counter()
        for _ in range(replays):
            self.graph.replay()
        self.torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e6 / (replays * self.calls)


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def tune(tessl, shape, dtype, layout, round_us):
    """Microseconds of every candidate, in three passes, so that clocks disturb all alike."""
    first = tessl.ask(shape, dtype, layout, 1, 0)
    if "error" in first:
        return [], first["error"]
    count = first["candidates"]
    iters = [max(1, int(round_us / tessl.ask(shape, dtype, layout, 16, i)["us"])) for i in range(count)]
    answers = [[tessl.ask(shape, dtype, layout, iters[i], i) for i in range(count)] for _ in range(3)]
    rows = []
    for i in range(count):
        last = answers[-1][i]
        rows.append({"plan": i, "us": median(a[i]["us"] for a in answers), "reason": last["reason"], "tile": last["tile"],
                     "split": last["split"]})
    return sorted(rows, key=lambda r: r["us"]), None


def rounds_of(ours, peer, rounds, round_us):
    """Microseconds of both sides, the sorted ratios, and how far the peer drifted. Both are asked for numbers of calls."""
    # Warm both, and size the rounds.
    our_iters = max(1, int(round_us / ours(1)))
    peer_iters = max(1, int(round_us / peer(1)))
    ours(our_iters), peer(peer_iters)
    times = []
    for i in range(rounds):
        if i % 2:
            b = peer(peer_iters)
            a = ours(our_iters)
        else:
            a = ours(our_iters)
            b = peer(peer_iters)
        times.append((a, b))
    mine, theirs = [t[0] for t in times], [t[1] for t in times]
    half = len(theirs) // 2
    drift = abs(median(theirs[:half]) / median(theirs[half:]) - 1)
    return mine, theirs, sorted(b / a for a, b in times), drift


def pair(torch, tessl, name, shape, dtype, layout, rounds, round_us):
    m, n, k = shape
    peer = Torch(torch, shape, dtype, layout)
    first = tessl.ask(shape, dtype, layout, 1)
    if "error" in first:
        say(f"{name:<12} {layout} tessl: {first['error']}")
        return None
    mine, theirs, ratios, drift = rounds_of(lambda n: tessl.ask(shape, dtype, layout, n)["us"], peer.run, rounds, round_us)
    ratio = median(ratios) if drift <= DRIFT else None
    row = {
        "suite": "gemm", "name": name, "m": m, "n": n, "k": k, "dtype": dtype, "out": dtype, "layout": layout,
        "precision": "exact", "mode": "graph", "backend": "tensorops", "packed": False, "lane": "tessl", "threads": 0,
        "kernel": first["kernel"], "reason": first["reason"], "copies": first["copies"], "batch": first["batch"],
        "median_us": median(mine), "min_us": min(mine), "max_us": max(mine),
        "tflops": 2e-6 * m * n * k / median(mine),
        "gbps": 2e-3 * (m * k + k * n + m * n) / median(mine), "percent_of_limit": None,
        "ratio": {} if ratio is None else {"torch": ratio},
        "spread": [ratios[0], ratios[-1]], "drift": drift, "peer_us": {"torch": median(theirs)}, "rounds": rounds,
    }
    told = "EXCEEDS 10%" if ratio is None else f"{ratio:5.3f} ({ratios[0]:.3f}..{ratios[-1]:.3f})"
    tile = "x".join(map(str, first["tile"][:2])) + (f" /{first['split']}" if first["split"] > 1 else "")
    say(f"{name:<12} {layout} {row['median_us']:9.2f} us {row['tflops']:6.1f} | torch {median(theirs):9.2f} us | {told} {tile}")
    return row


def summary(rows):
    groups = {}
    for row in rows:
        if "torch" in row["ratio"]:
            ladder = "ladder" if row["name"] in LADDER else "more"
            groups.setdefault((row["dtype"], row["layout"], ladder), []).append(row["ratio"]["torch"])
    return [
        {"suite": "gemm", "group": group, "dtype": dtype, "precision": "exact", "layout": layout, "mode": "graph",
         "threads": 0, "peer": "torch", "geomean": geomean(v), "worst": min(v), "best": max(v),
         "below_1": sum(r < 1 for r in v), "rows": len(v)}
        for (dtype, layout, group), v in sorted(groups.items())
    ]


def chosen(text):
    known = {**LADDER, **MORE}
    result = {}
    for part in text.split(","):
        match part:
            case "ladder": result.update(LADDER)
            case "all": result.update(known)
            case "more": result.update(MORE)
            case _ if part in known: result[part] = known[part]
            case _: result[part] = tuple(int(x) for x in part.split("x"))
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "target/release/bench_gemm_sweep"))
    parser.add_argument("--shapes", default="ladder", help="names, MxNxK, ladder, more, all; with commas")
    parser.add_argument("--layouts", default="NN,NT,TN")
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "f16"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--round-ms", type=float, default=20.0, help="work of one side in one round")
    parser.add_argument("--budget-s", type=float, default=220.0, help="begin no further shape after this many seconds")
    parser.add_argument("--tune", action="store_true", help="measure every candidate instead; no torch needed")
    parser.add_argument("--out", help="write JSON there")
    args = parser.parse_args()

    begun = time.monotonic()
    tessl = Tessl(args.binary)
    say(f"device: {tessl.hello['device']} ({tessl.hello['driver']})")
    torch = None
    if not args.tune:
        import torch  # noqa: PLC0415 - tuning works without it

        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
        say(f"torch {torch.__version__}; ratio = torch time / tessl time")
    rows = []
    for name, shape in chosen(args.shapes).items():
        for layout in args.layouts.split(","):
            if time.monotonic() - begun > args.budget_s:
                say(f"{name:<12} {layout} not measured: the budget of {args.budget_s:.0f} s is spent")
                continue
            if args.tune:
                found, error = tune(tessl, shape, args.dtype, layout, args.round_ms * 1e3)
                table = tessl.ask(shape, args.dtype, layout, 1)
                now = next((r["us"] for r in found if r["reason"] == table.get("reason")), None)
                say(f"{name} {layout}: " + (error or f"the table takes {table['reason'][:40]}: {now:.2f} us"))
                for row in found[:6]:
                    say(f"    {row['us']:9.2f} us  plan {row['plan']:2} {row['reason']}")
                rows.append({"name": name, "shape": shape, "layout": layout, "table": table.get("reason"), "plans": found})
            else:
                row = pair(torch, tessl, name, shape, args.dtype, layout, args.rounds, args.round_ms * 1e3)
                rows += [row] if row else []
                torch.cuda.empty_cache()
    tessl.close()
    report = {"schema": 1, "device": tessl.hello["device"], "driver": tessl.hello["driver"], "commit": commit()}
    if args.tune:
        report["tune"] = rows
    else:
        report |= {"torch": torch.__version__, "rows": rows, "summary": summary(rows)}
        for s in report["summary"]:
            say(f"{s['group']:<6} {s['layout']}: geomean {s['geomean']:.3f}, worst {s['worst']:.3f}, best {s['best']:.3f}, "
                f"{s['below_1']} of {s['rows']} below 1")
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=1) + "\n")
    say(f"{time.monotonic() - begun:.0f} s")


def commit():
    try:
        found = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
        return found.stdout.strip() or None
    except OSError:
        return None


if __name__ == "__main__":
    main()
