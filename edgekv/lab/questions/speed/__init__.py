"""Speed as llama-bench measures it: what `edgekv bench` runs."""
