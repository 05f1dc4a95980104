#!/usr/bin/env python3
"""Row-wise kernels and attention on the CPU against ONNX Runtime, round by round.

Rounds alternate between tessl (`bench_nn_kernels rows` or `attention`, a process of its own) and ONNX Runtime's CPU provider in this
process; who goes first alternates too. f32 on both sides, the same number of threads, operands that rotate through more memory than
the private caches hold, outputs bound beforehand. tessl checks its results against f64 before it measures; ONNX Runtime's are compared
with NumPy in f64. ratio = ONNX Runtime time / tessl time, of each round; above 1, tessl is faster. A peer whose time drifted by more
than 10 % over the rounds prints EXCEEDS 10% and yields no ratio.

    python3 -m venv ~/ort && ~/ort/bin/pip install onnxruntime onnx numpy
    ~/ort/bin/python bench/nn_vs_onnxruntime.py --threads 2 --out nn.json
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

import numpy as np
import onnxruntime
from gemm_vs_torch import DRIFT, ROOT, Server, commit, geomean, rounds_of, say
from onnx import TensorProto, helper

EPS = 1e-5
COPIES_BYTES, MOST_COPIES = 256 << 20, 64
SHAPES = [(512, 4096), (2048, 4096)]
# The operator of ONNX, its domain, and its attributes.
OPS = {
    "softmax": ("Softmax", "", {"axis": -1}),
    "layer-norm": ("LayerNormalization", "", {"axis": -1, "epsilon": EPS}),
    "rms-norm": ("SimplifiedLayerNormalization", "", {"axis": -1, "epsilon": EPS}),
    "gelu": ("Gelu", "com.microsoft", {}),
}
# Sequences, queries, keys, heads, elements of a head; causal.
ATTENTION = [(1, 4096, 4096, 4, 128), (1, 512, 512, 8, 128)]


def session(node, inputs, outputs, threads):
    tensor = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)  # noqa: E731
    graph = helper.make_graph([node], "one", [tensor(*i) for i in inputs], [tensor(*o) for o in outputs])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Peer:
    """One operator over copies of its operands."""

    def __init__(self, node, shapes, out, threads, wanted):
        bytes_of = 4 * (sum(int(np.prod(s)) for s in shapes) + int(np.prod(out)))
        self.copies = min(max(-(-COPIES_BYTES // bytes_of), 2), MOST_COPIES)
        rng = np.random.default_rng(1)
        names = list(node.input)
        self.session = session(node, list(zip(names, shapes)), [(node.output[0], out)], threads)
        self.bound = []
        for _ in range(self.copies):
            values = [(rng.random(s, dtype=np.float32) * 2 - 1) for s in shapes]
            y = np.full(out, np.nan, dtype=np.float32)
            binding = self.session.io_binding()
            for name, value in zip(names, values):
                binding.bind_cpu_input(name, value)
            binding.bind_output(node.output[0], "cpu", 0, np.float32, out, y.ctypes.data)
            self.bound.append((binding, values, y))
        self.at = 0
        self.run(1)
        _, values, y = self.bound[0]
        error = np.abs(y - wanted(*[v.astype(np.float64) for v in values])).max()
        assert error < 1e-3, f"ONNX Runtime is off by {error}"

    def run(self, iters):
        """Microseconds of a call."""
        start = time.perf_counter()
        for i in range(iters):
            self.session.run_with_iobinding(self.bound[i % self.copies][0])
        return (time.perf_counter() - start) * 1e6 / iters


def reference(op):
    def of(x, *more):
        if op == "softmax":
            e = np.exp(x - x.max(-1, keepdims=True))
            return e / e.sum(-1, keepdims=True)
        if op == "gelu":
            from math import erf  # noqa: PLC0415

            return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))
        centre = x - x.mean(-1, keepdims=True) if op == "layer-norm" else x
        y = centre / np.sqrt((centre**2).mean(-1, keepdims=True) + EPS) * more[0]
        return y + more[1] if op == "layer-norm" else y

    return of


def rows_peer(op, shape, threads):
    kind, domain, attributes = OPS[op]
    more = {"layer-norm": ["w", "b"], "rms-norm": ["w"]}.get(op, [])
    node = helper.make_node(kind, ["x", *more], ["y"], domain=domain, **attributes)
    return Peer(node, [shape] + [shape[1:]] * len(more), shape, threads, reference(op))


def attention_peer(case, threads):
    batch, queries, keys, heads, dim = case
    node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=heads,
                            unidirectional=1)
    flat = lambda n: (batch, n, heads * dim)  # noqa: E731

    def wanted(q, k, v):
        split = lambda x: x.reshape(batch, -1, heads, dim).transpose(0, 2, 1, 3)  # noqa: E731
        q, k, v = split(q), split(k), split(v)
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(dim)
        scores[..., np.triu(np.ones((queries, keys), dtype=bool), 1)] = -np.inf
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return ((e / e.sum(-1, keepdims=True)) @ v).transpose(0, 2, 1, 3).reshape(flat(queries))

    return Peer(node, [flat(queries), flat(keys), flat(keys)], flat(queries), threads, wanted)


def pair(name, ask, peer, gigabytes, args):
    first = ask(1)
    if "error" in first:
        say(f"{name:<28} tessl: {first['error']}")
        return None
    mine, theirs, ratios, drift = rounds_of(lambda n: ask(n)["us"], peer.run, args.rounds, args.round_ms * 1e3)
    us, ratio = median(mine), median(ratios) if drift <= DRIFT else None
    told = "EXCEEDS 10%" if ratio is None else f"{ratio:5.3f} ({ratios[0]:.3f}..{ratios[-1]:.3f})"
    say(f"{name:<28} {us:10.2f} us {gigabytes / us * 1e6:6.1f} GB/s | {median(theirs):10.2f} us | {told}")
    return {
        "suite": "nn", "name": name, "dtype": "f32", "mode": "graph", "lane": "tessl", "threads": args.threads,
        "median_us": us, "min_us": min(mine), "max_us": max(mine), "gbps": gigabytes / us * 1e6,
        "ratio": {} if ratio is None else {"onnxruntime": ratio}, "spread": [ratios[0], ratios[-1]], "drift": drift,
        "peer_us": {"onnxruntime": median(theirs)}, "rounds": args.rounds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "target/release/bench_nn_kernels"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--round-ms", type=float, default=60.0, help="work of one side in one round")
    parser.add_argument("--cases", default="rows,attention")
    parser.add_argument("--out", help="write JSON there")
    args = parser.parse_args()

    base = [args.binary, "--device", "cpu", "--threads", str(args.threads)]
    rows = []
    say(f"onnxruntime {onnxruntime.__version__}, {args.threads} threads; ratio = ONNX Runtime time / tessl time")
    if "rows" in args.cases:
        tessl = Server([*base, "rows"])
        for op, shape in ((op, shape) for op in OPS for shape in SHAPES):
            words = [op, "x".join(map(str, shape)), "f32"]
            ask = lambda n, words=words: tessl.send([*words, str(max(1, min(n, 1_000_000)))])  # noqa: E731
            name = f"{op}_{words[1]}"
            rows.append(pair(name, ask, rows_peer(op, shape, args.threads), 8e-9 * shape[0] * shape[1], args))
        hello = tessl.hello
        tessl.close()
    if "attention" in args.cases:
        tessl = Server([*base, "attention"])
        for case in ATTENTION:
            batch, queries, keys, heads, dim = case
            words = [f"{batch}x{queries}x{keys}x{heads}x{heads}x{dim}", "f32"]
            ask = lambda n, words=words: tessl.send([*words, str(max(1, min(n, 1_000_000))), "causal"])  # noqa: E731
            gigabytes = 8e-9 * (queries + keys) * batch * heads * dim
            rows.append(pair(f"attention_{words[0]}_causal", ask, attention_peer(case, args.threads), gigabytes, args))
        hello = tessl.hello
        tessl.close()
    rows = [row for row in rows if row]
    ratios = [row["ratio"]["onnxruntime"] for row in rows if row["ratio"]]
    summary = []
    if ratios:
        summary = [{"suite": "nn", "dtype": "f32", "threads": args.threads, "peer": "onnxruntime", "geomean": geomean(ratios),
                    "worst": min(ratios), "best": max(ratios), "below_1": sum(r < 1 for r in ratios)}]
    report = {"schema": 1, "device": hello["device"], "driver": hello["driver"], "commit": commit(),
              "onnxruntime": onnxruntime.__version__, "rows": rows, "summary": summary}
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
