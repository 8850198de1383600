"""The GPU command: `python tests/gpu_command pack` prepares what a bare machine needs, `python tests/gpu_command run` builds, tests,
sanitizes and measures there, in pieces of under ten minutes.

It needs Python's standard library only; what it starts runs in an environment that it makes. Modules here import each other
relatively, and nothing of edgekv: started from the checkout, `import edgekv` would find the sources and not the installed
package. rows.py and rates.py run inside the installed package, and so do tests/gpu and
tests/support."""
