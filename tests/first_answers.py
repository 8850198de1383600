"""What the default model answers to the questions of the README, with many seeds: `python tests/first_answers.py [SEEDS]`. A person reads them."""

import json
import re
import sys
from pathlib import Path
from urllib.request import Request, urlopen

from edgekv.models.default import default_model, sampling
from edgekv.server.server import Server
from edgekv.server.server_options import ServerOptions

README = Path(__file__).resolve().parent.parent / "README.md"
ASKED = r'chat -p "([^"]+)"|"content": "([^"]+)"'


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    questions = dict.fromkeys("".join(found) for found in re.findall(ASKED, README.read_text(encoding="utf-8")))
    with Server(ServerOptions(default_model(), sampling=sampling(default_model()))) as server:
        for question in questions:
            print(f"\n{question}")
            for seed in range(seeds):
                body = {"messages": [{"role": "user", "content": question}], "seed": seed, "max_tokens": 300}
                request = Request(f"{server.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
                choice = json.load(urlopen(request))["choices"][0]
                print(f"{seed:3} {choice['finish_reason']:6} {choice['message']['content']!r}", flush=True)


if __name__ == "__main__":
    main()
