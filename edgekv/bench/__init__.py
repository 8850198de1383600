"""`edgekv bench`: speed and fidelity beside stock llama.cpp in the same run."""
