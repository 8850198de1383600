"""What EdgeKV does with each architecture of the pinned llama.cpp, measured on tiny models of random weights.

`python tests/architectures` prints the table of models/README.md, `--write` puts it there. tests/runtime/test_architectures.py runs the same.
"""
