"""What a schema costs answers of a server, beside no form and the grammar that llama.cpp would enforce."""

import statistics
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.clients import post
from support.serve_process import serving

SCHEMA = {"type": "array", "minItems": 99, "items": {
    "type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"], "additionalProperties": False}}
GRAMMAR = r"""
root ::= "[" space item ("," space item){98,} "]" space
item ::= "{" space "\"name\"" space ":" space string "," space "\"age\"" space ":" space integer "}" space
string ::= "\"" char* "\"" space
char ::= [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4})
integer ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) space
space ::= | " " | "\n"{1,2} [ \t]{0,20}
"""
FORMS = {"none": {"ignore_eos": True}, "schema": {"json_schema": SCHEMA}, "grammar": {"grammar": GRAMMAR}}
N_TOKENS = 96


def speeds(model: str, n_rounds: int) -> dict[tuple[int, str], float]:
    """Tokens a second of one answer, by clients at once and form: the median over rounds, of which each has all forms in turn."""
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as home, serving(Path(home), model, "--parallel", "4", "--spec-type", "none") as served, \
            ThreadPoolExecutor(4) as clients:
        def answer(form: str, client: int) -> float:
            body = {"prompt": f"{client} people, with their names and ages, as JSON:\n", "n_predict": N_TOKENS, "temperature": 0}
            return float(post(served.url, "/completion", body | FORMS[form])["timings"]["predicted_per_second"])

        for n_round in range(n_rounds + 1):  # the first reads the vocabulary
            for n_clients in (1, 4):
                for form in FORMS:
                    told = list(clients.map(answer, [form] * n_clients, range(n_clients)))
                    if n_round:
                        found[n_clients, form].append(statistics.mean(told))
    return {of: statistics.median(values) for of, values in found.items()}
