"""Asks a server on a stub for the prompts of all shapes under one template."""

from pathlib import Path

from support.serve_process import Served, serving
from support.stub import write_stub

from .shapes import SHAPES, Shape

FATES = ("used", "merged", "400", "500", "lost", "no start")


def fate_of(served: Served, shape: Shape) -> str:
    """`lost`: a prompt came, and lacks a text. `merged`: a reply header says what was moved."""
    reply = served.ask("/apply-template", {"messages": shape.messages, "tools": shape.tools} if shape.tools else {"messages": shape.messages})
    if reply.status != 200:
        return str(reply.status)
    prompt = reply.body["prompt"]
    if any(text not in prompt for text in shape.texts):
        return "lost"
    return "merged" if "x-edgekv-messages" in reply.headers else "used"


def fates(template: Path, home: Path) -> dict[str, str]:
    """By shape. A template that no server starts with has one fate."""
    model = write_stub(home / "stub.gguf", "Yes.", template.read_text())
    try:
        with serving(home, str(model)) as served:
            return {name: fate_of(served, shape) for name, shape in SHAPES.items()}
    except AssertionError:
        return dict.fromkeys(SHAPES, "no start")

