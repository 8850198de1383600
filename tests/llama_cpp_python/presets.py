"""A pytest plugin in the run of llama-cpp-python's tests: the class that is asked, and local models in the place of those that the tests fetch."""

import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

import edgekv
from edgekv.models import synth
from edgekv.models.default import default_model

if os.environ["ASKED_CLASS"] != "stock":
    edgekv.install(kv=os.environ["ASKED_CLASS"])

KINDS = {"stories15M-q4_0": "llama", "bge-small-en-v1.5-q4_k_m": "bert", "mamba-130m-hf.Q2_K": "mamba", "Falcon-H1-Tiny-90M-Instruct-Q2_K": "lfm2"}


def fetch(_: str, name: str) -> str:
    """The path of a model of the same kind: a tiny synthetic one, or the default one."""
    kind = KINDS.get(Path(name).stem)
    path = Path(f"{kind}.gguf")
    if kind is not None and not path.exists():
        synth.KINDS[kind](path)
    return str(default_model() if kind is None else path.absolute())


def log_softmax(values: np.ndarray) -> np.ndarray:
    shifted = values - values.max()
    return shifted - np.log(np.exp(shifted).sum())


for module, name, function in (("huggingface_hub", "hf_hub_download", fetch), ("scipy.special", "log_softmax", log_softmax)):
    for part in (module.partition(".")[0], module):
        sys.modules[part] = ModuleType(part)
    setattr(sys.modules[module], name, function)
