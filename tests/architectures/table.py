"""The table of models/README.md: architectures that EdgeKV treats alike stand in one row."""

import re
from collections import defaultdict
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "models" / "README.md"
BEGIN, END = "<!-- architectures: python tests/architectures --write -->", "<!-- /architectures -->"
ALLOCATIONS = "<!-- allocations: python tests/architectures --allocations --write -->", "<!-- /allocations -->"
SERVED = "attended by EdgeKV"
HEAD = ("| its layers keep | attended by EdgeKV | by stock llama.cpp, because | comes back from the prefix cache | architectures |",
        "|---|---|---|---|---|")


def text(all_found: list[dict]) -> str:
    """All that stands between the two markers."""
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    refused: dict[str, list[str]] = defaultdict(list)
    unmade = sorted(found["architecture"] for found in all_found if found.get("unmade"))
    for found in all_found:
        if found.get("unmade"):
            continue
        if found.get("refused"):
            refused[why_refused(found)].append(found["architecture"])
        else:
            groups[row(found)].append(found["architecture"])
    rows = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    lines = [*HEAD, *(f"| {' | '.join(cells)} | {', '.join(sorted(names))} |" for cells, names in rows)]
    lines += ["", *(f"- Refused, because {why}: {', '.join(sorted(names))}." for why, names in sorted(refused.items()))]
    lines += [f"- Not measured, because the pinned test makes no model of them: {', '.join(unmade)}. `edgekv doctor MODEL` tells of any file."] * bool(unmade)
    return "\n".join(lines)


def row(found: dict) -> tuple[str, ...]:
    """The cells of one architecture, but for its name."""
    if found.get("crashed"):
        return ("", "", "", f"ends the process: {found['crashed']}")
    kept, served, stock = [], [], []
    for keeps, reason in found["layers"]:
        if keeps not in kept:
            kept.append(keeps)
        into, said = (served, keeps) if reason.startswith(SERVED) else (stock, reason)
        if said not in into:
            into.append(said)
    everything = not stock
    return (", ".join(sorted(kept)), "all" if everything else ", ".join(sorted(served)) or "none", "; ".join(sorted(stock)), back(found))


def back(found: dict) -> str:
    """What a new server has of a prompt: a share of its tokens, in words."""
    share = found["n_back"] / found["n_prompt"]
    return "all" if share > 0.95 else "nothing" if share == 0 else f"{share:.0%} of a prompt"


def why_refused(found: dict) -> str:
    """The middle of the sentence that the user sees."""
    if "embedding model" in found["refused"]:
        return "they make vectors"
    said = re.search(r"which (.*?)(?:, as .*)?; give", found["refused"])
    return f"each {said[1]}" if said else found["refused"]


def line(found: dict) -> str:
    """One architecture, with its figures."""
    name = found["architecture"]
    if found.get("unmade"):
        return f"{name}: no model"
    if found.get("crashed") or found.get("refused"):
        return f"{name}: {found.get('crashed') or found.get('refused')}"
    if "contexts" in found:
        return f"{name}, {found['odd']}: {'; '.join(found['wrong']) or 'as llama.cpp allocates'}"
    return (f"{name}: {sum(found['hooked'])}/{len(found['layers'])} layers; KLD exact {found['exact']:.1e} (stock from itself {found['spread']:.1e}, "
            f"another text {found['control']:.1e}); sparse, all certain {found['certain']:.1e}, {found['share_read']:.0%} read "
            f"{found['sampled']:.1e}; back {found['n_back']}/{found['n_prompt']}, KLD {found['back']:.1e}; {found['seconds']:.1f} s")


def in_readme() -> str:
    return README.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()


def put(written: str, begin: str = BEGIN, end: str = END) -> None:
    before, rest = README.read_text(encoding="utf-8").split(begin)
    README.write_text(f"{before}{begin}\n{written}\n{end}{rest.split(end)[1]}", encoding="utf-8")


# ---- what the plan says, and what llama.cpp allocates ---------------------------------------------------------------------------


def allocations(all_found: list[dict]) -> str:
    """A row for each oddity, and a line for each architecture that differs."""
    of: dict[str, list[dict]] = defaultdict(list)
    for found in all_found:
        if "contexts" in found:
            of[found["odd"]].append(found)
    lines = ["| keys of the header | architectures | contexts | refused by both | K and V | work buffers | states | weights |", "|---|" + "---:|" * 7]
    for odd, found in of.items():
        off = {part: max(one["off"][part] for one in found) for part in ("KV home", "compute", "recurrent state", "weights")}
        lines.append(f"| {odd} | {len(found)} | {sum(one['contexts'] for one in found)} | {sum(one['refusals'] for one in found)} | "
                     + " | ".join("equal" if share == 0 else f"{share:.1%}" for share in off.values()) + " |")
    differ: dict[str, list[dict]] = defaultdict(list)
    for found in all_found:
        if found.get("wrong"):
            differ[found["architecture"]].append(found)
    lines += ["", *(f"- {name}, {one['odd']}{f', and {len(more)} others' * bool(more)}: {one['wrong'][0]}" for name, (one, *more) in differ.items())]
    return "\n".join(lines).strip()
