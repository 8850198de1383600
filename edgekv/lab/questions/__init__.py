"""The questions that are measured: each compares with stock llama.cpp in the same run, and gives rows to keep."""
