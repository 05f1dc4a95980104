#!/usr/bin/env python3
"""Compare the tile geometry of GEMM plans with the constants in the kernels: a front of `cargo xtask audit`."""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

if __name__ == "__main__":
    sys.exit(subprocess.run(["cargo", "xtask", "audit", *sys.argv[1:]], cwd=ROOT).returncode)
