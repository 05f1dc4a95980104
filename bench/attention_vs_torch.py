#!/usr/bin/env python3
"""Attention on one GPU against the best of torch's scaled_dot_product_attention, round by round.

Rounds alternate between tessl (`bench_nn_kernels attention`, a process of its own) and torch in this process; who goes
first alternates too. Both replay a graph of calls over operands [B, T, H, D] that rotate through more memory than the
L2 holds, and both are timed alike: wall clock around enough replays for --round-ms of work and one wait. Data is random;
tessl checks its results against f64 in some rows before it measures, torch's are compared with float64. The peer is
the fastest of torch's backends for the shape, found before the rounds. ratio = torch time / tessl time, of each round;
above 1, tessl is faster.

    python3 bench/attention_vs_torch.py --binary target/ci/bench_nn_kernels --out attention.json
    python3 bench/attention_vs_torch.py --tune --cases prefill_128,prefill_64 --out tune.json

--tune measures every plan that could run each case, and tells which would be faster than the table's choice.
A peer whose time drifted by more than 10 % over the rounds prints EXCEEDS 10% and yields no ratio. TFLOP/s count visible
scores only. Cases with a window have no peer: their time is compared with that of the same case without one, and the
share of scores that are left.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

from gemm_vs_torch import COPIES_BYTES, DRIFT, MOST_COPIES, ROOT, Server, commit, geomean, rounds_of, say

# B, Tq, Tkv, Hq, Hkv, D; which keys are seen; a window.
PREFILL = {}
for d, heads in [(64, 16), (128, 16), (256, 8)]:
    for batch, t in [(8, 512), (8, 1024), (4, 2048), (4, 4096), (2, 8192), (1, 16384)]:
        for mask in ["causal", "full"]:
            PREFILL[f"d{d}_{t}_{mask}"] = ((batch, t, t, heads, heads, d), mask, None)
MORE = {
    "d96_4096_causal": ((4, 4096, 4096, 16, 16, 96), "causal", None),
    "d192_4096_causal": ((4, 4096, 4096, 8, 8, 192), "causal", None),
    "gqa_4096_causal": ((4, 4096, 4096, 32, 8, 128), "causal", None),
    "d512_2048_causal": ((1, 2048, 2048, 8, 8, 512), "causal", None),
    "d512_8192_causal": ((1, 8192, 8192, 8, 8, 512), "causal", None),
}
WINDOW = {
    f"d{d}_16384_window_{w}": ((1, 16384, 16384, 16, 16, d), "causal", w) for d in (64, 128, 256) for w in (512, 1024)
}
DECODE = {
    "decode_1x1k": ((1, 1, 1024, 32, 8, 128), "full", None),
    "decode_1x4k": ((1, 1, 4096, 32, 8, 128), "full", None),
    "decode_1x32k": ((1, 1, 32768, 32, 8, 128), "full", None),
    "decode_16x4k": ((16, 1, 4096, 32, 8, 128), "full", None),
    "decode_32x4k": ((32, 1, 4096, 32, 8, 128), "full", None),
}
GROUPS = {"prefill": PREFILL, "more": MORE, "window": WINDOW, "decode": DECODE}
CALLS = 8


class Tessl(Server):
    def __init__(self, binary):
        super().__init__([binary, "--device", "cuda", "attention"])

    def ask(self, case, dtype, iters, plan=None):
        shape, mask, window = case
        words = ["x".join(map(str, shape)), dtype, str(max(1, min(iters, 1_000_000))), mask]
        words += [f"window={window}"] if window else []
        return self.send(words + ([] if plan is None else [f"plan={plan}"]))


class Torch:
    """One backend over the same shape, captured."""

    def __init__(self, torch, case, dtype, backend):
        from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: PLC0415

        (batch, queries, keys, heads, kv_heads, dim), mask, _ = case
        self.torch, kind = torch, {"bf16": torch.bfloat16, "f16": torch.float16}[dtype]
        one = 2 * batch * dim * (2 * queries * heads + 2 * keys * kv_heads)
        self.copies = min(max(-(-COPIES_BYTES // one), 2), MOST_COPIES)
        self.calls = self.copies * -(-CALLS // self.copies)

        def operand(tokens, count):
            t = torch.rand((batch, tokens, count, dim), device="cuda", dtype=torch.float32).mul_(2).sub_(1).to(kind)
            return t.transpose(1, 2)

        self.sets = [(operand(queries, heads), operand(keys, kv_heads), operand(keys, kv_heads)) for _ in range(self.copies)]
        options = {"is_causal": mask == "causal", "enable_gqa": heads != kv_heads}
        self.out = [None] * self.copies

        def call(i):
            q, k, v = self.sets[i]
            self.out[i] = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

        with sdpa_kernel(getattr(SDPBackend, backend)):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    call(0)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                for i in range(self.calls):
                    call(i % self.copies)
        self.graph.replay()
        torch.cuda.synchronize()
        self._check(mask)

    def _check(self, mask):
        torch, (q, k, v), rows = self.torch, self.sets[-1], slice(-2, None)
        keys, group = k.shape[2], q.shape[1] // k.shape[1]
        scores = q[0, -1, rows].double() @ k[0, -1].double().T / q.shape[3] ** 0.5
        if mask == "causal":
            first = torch.arange(q.shape[2], device="cuda")[rows, None]
            scores.masked_fill_(torch.arange(keys, device="cuda")[None, :] > first, float("-inf"))
        wanted = scores.softmax(-1) @ v[0, -1].double()
        error = ((self.out[-1][0, -1, rows].double() - wanted).norm() / wanted.norm()).item()
        assert error < 2e-2, f"torch is off by {error} (groups of {group})"

    def run(self, iters):
        """Microseconds of a call."""
        replays = -(-iters // self.calls)
        start = time.perf_counter()
        for _ in range(replays):
            self.graph.replay()
        self.torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e6 / (replays * self.calls)


def peer_of(torch, case, dtype):
    """The fastest backend that takes the case, and every backend's time."""
    best, times = None, {}
    for backend in ["CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION"]:
        try:
            peer = Torch(torch, case, dtype, backend)
        except (RuntimeError, AssertionError) as error:
            times[backend] = str(error).splitlines()[0][:60]
            torch.cuda.synchronize()
            continue
        peer.run(1)
        times[backend] = us = median(peer.run(max(1, int(3e3 / peer.run(1)))) for _ in range(3))
        if best is None or us < best[0]:
            best = (us, backend, peer)
    return best, times


def pair(torch, tessl, name, case, dtype, rounds, round_us):
    first = tessl.ask(case, dtype, 1)
    if "error" in first:
        say(f"{name:<22} tessl: {first['error']}")
        return None
    best, times = peer_of(torch, case, dtype)
    if best is None:
        say(f"{name:<22} {first['us']:9.2f} us {first['tflops']:6.1f} | torch has no kernel: {times}")
        return None
    _, backend, peer = best
    ask = lambda n: tessl.ask(case, dtype, n)["us"]  # noqa: E731
    mine, theirs, ratios, drift = rounds_of(ask, peer.run, rounds, round_us)
    ratio = median(ratios) if drift <= DRIFT else None
    us = median(mine)
    row = {
        "suite": "nn", "name": name, "op": "attention", "shape": case[0], "mask": case[1], "dtype": dtype, "mode": "graph",
        "kernel": first["kernel"], "reason": first["reason"], "note": first["note"], "lane": "tessl", "median_us": us,
        "min_us": min(mine), "max_us": max(mine), "tflops": first["flop"] / us / 1e6, "gbps": first["gbps"] * first["us"] / us,
        "ratio": {} if ratio is None else {"torch": ratio}, "spread": [ratios[0], ratios[-1]], "drift": drift,
        "peer": backend, "peer_us": {"torch": median(theirs)}, "backends": times, "rounds": rounds,
    }
    told = "EXCEEDS 10%" if ratio is None else f"{ratio:5.3f} ({ratios[0]:.3f}..{ratios[-1]:.3f})"
    say(f"{name:<22} {us:9.2f} us {row['tflops']:6.1f} TF {row['gbps']:7.1f} GB/s | {backend.split('_')[0].lower():<5} "
        f"{median(theirs):9.2f} us {first['flop'] / median(theirs) / 1e6:6.1f} | {told}")
    return row


def window(tessl, name, case, dtype, rounds, round_us):
    """Against the same attention without its window, by the share of scores that are left."""
    shape, mask, _ = case
    whole = (shape, mask, None)
    n = [max(1, int(round_us / tessl.ask(c, dtype, 1)["us"])) for c in (case, whole)]
    # A change of case makes new operands: each is measured in one go.
    few, all_ = [median(tessl.ask(c, dtype, k)["us"] for _ in range(rounds)) for c, k in zip((case, whole), n)]
    share = tessl.ask(case, dtype, 1)["flop"] / tessl.ask(whole, dtype, 1)["flop"]
    say(f"{name:<22} {few:9.2f} us, whole {all_:9.2f} us: {few / (share * all_):5.3f} of its share")
    return {"suite": "nn", "name": name, "op": "attention", "shape": shape, "window": case[2], "dtype": dtype,
            "median_us": few, "whole_us": all_, "of_share": few / (share * all_)}


def tune(tessl, case, dtype, round_us):
    first = tessl.ask(case, dtype, 1, 0)
    if "error" in first:
        return [], first["error"]
    count = first["candidates"]
    # The shared kernels' plan is the last one and much slower.
    count = max(1, count - 1)
    iters = [max(1, int(round_us / tessl.ask(case, dtype, 4, i)["us"])) for i in range(count)]
    answers = [[tessl.ask(case, dtype, iters[i], i) for i in range(count)] for _ in range(3)]
    rows = [
        {"plan": i, "us": median(a[i]["us"] for a in answers), "tflops": median(a[i]["tflops"] for a in answers),
         "reason": answers[-1][i]["reason"]}
        for i in range(count)
    ]
    return sorted(rows, key=lambda r: r["us"]), None


def chosen(text):
    known = {name: case for group in GROUPS.values() for name, case in group.items()}
    result = {}
    for part in text.split(","):
        found = GROUPS.get(part) or {n: c for n, c in known.items() if n == part or n.startswith(part + "_")}
        if not found:
            raise SystemExit(f"no case {part}; groups: {', '.join(GROUPS)}; cases: {', '.join(known)}")
        result.update(found)
    return result


def summary(rows):
    groups = {}
    for row in rows:
        if row.get("ratio"):
            batch, queries, keys, _, _, dim = row["shape"]
            group = "decode" if queries == 1 else f"d{dim} {'short' if queries <= 2048 else 'long'}"
            groups.setdefault((row["dtype"], group), []).append(row["ratio"]["torch"])
    return [
        {"suite": "nn", "op": "attention", "group": group, "dtype": dtype, "mode": "graph", "peer": "torch",
         "geomean": geomean(v), "worst": min(v), "best": max(v), "below_1": sum(r < 1 for r in v), "rows": len(v)}
        for (dtype, group), v in sorted(groups.items())
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "target/release/bench_nn_kernels"))
    parser.add_argument("--cases", default="prefill,more,decode", help="groups or names (or their beginnings), with commas")
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "f16"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--round-ms", type=float, default=15.0, help="work of one side in one round")
    parser.add_argument("--budget-s", type=float, default=220.0, help="begin no further case after this many seconds")
    parser.add_argument("--tune", action="store_true", help="measure every candidate instead; no torch needed")
    parser.add_argument("--out", help="write JSON there")
    args = parser.parse_args()

    begun = time.monotonic()
    tessl = Tessl(args.binary)
    say(f"device: {tessl.hello['device']} ({tessl.hello['driver']})")
    torch = None
    cases = chosen(args.cases)
    if not args.tune and any(c[2] is None for c in cases.values()):
        import torch  # noqa: PLC0415 - tuning works without it

        say(f"torch {torch.__version__}, cudnn {torch.backends.cudnn.version()}; ratio = torch time / tessl time")
    rows = []
    for name, case in cases.items():
        if time.monotonic() - begun > args.budget_s:
            say(f"{name:<22} not measured: the budget of {args.budget_s:.0f} s is spent")
        elif args.tune:
            found, error = tune(tessl, case, args.dtype, args.round_ms * 1e3)
            say(f"{name}: {error or ''}")
            for row in found:
                say(f"    {row['us']:9.2f} us {row['tflops']:6.1f} TF  plan {row['plan']:2} {row['reason']}")
            rows.append({"name": name, "shape": case[0], "mask": case[1], "plans": found})
        elif case[2]:
            rows.append(window(tessl, name, case, args.dtype, args.rounds, args.round_ms * 1e3))
        else:
            row = pair(torch, tessl, name, case, args.dtype, args.rounds, args.round_ms * 1e3)
            rows += [row] if row else []
            torch.cuda.empty_cache()
    tessl.close()
    report = {"schema": 1, "device": tessl.hello["device"], "driver": tessl.hello["driver"], "commit": commit()}
    if args.tune:
        report["tune"] = rows
    else:
        report |= {"torch": getattr(torch, "__version__", None), "rows": rows, "summary": summary(rows)}
        for s in report["summary"]:
            say(f"{s['group']:<10}: geomean {s['geomean']:.3f}, worst {s['worst']:.3f}, best {s['best']:.3f}, "
                f"{s['below_1']} of {s['rows']} below 1")
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=1) + "\n")
    say(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
