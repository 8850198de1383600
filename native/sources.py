"""Writes a header with the digest of all sources that compute, or change how llama.cpp does: sources.py OUTPUT.h. Beside it OUTPUT.txt has the
digest alone, for a plug-in of GPU libraries.

Rows that one version of the kernels computed are not taken for those of another, and nobody has to raise a number for that.
"""

import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("native/src", "native/llama", "native/server", "native/cuda", "patches")
KINDS = (".c", ".cpp", ".h", ".cu", ".cuh", ".cmake", ".patch")


def digest() -> str:
    """Of names and contents; whatever a folder keeps besides does not count."""
    found = sorted(path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in KINDS)
    whole = hashlib.blake2b(digest_size=16)
    for name in found:
        # as git keeps them, whatever a checkout made of the ends of their lines
        whole.update(hashlib.blake2b(name.encode() + b"\0" + (ROOT / name).read_bytes().replace(b"\r\n", b"\n")).digest())
    return whole.hexdigest()


def main(output: str) -> None:
    found = digest()
    for path, text in ((Path(output), f'#define EDGEKV_SOURCES "{found}"\n'), (Path(output).with_suffix(".txt"), f"{found}\n")):
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
