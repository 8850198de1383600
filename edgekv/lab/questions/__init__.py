"""What is measured: each compares with stock llama.cpp in the same run, and gives rows that can be kept."""
