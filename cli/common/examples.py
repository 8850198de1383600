"""The examples at the end of a command's help."""

HEADING = "Examples:"
_AS_IT_IS = "\b"  # click rewraps other paragraphs


def examples(*lines: str) -> str:
    """Shell lines for click's `epilog=`, each as a person types it."""
    return "\n".join([_AS_IT_IS, HEADING, *(f"  {line}" for line in lines)])


def examples_of(epilog: str | None) -> list[str]:
    """The lines that `examples` got."""
    _, _, lines = (epilog or "").partition(f"{HEADING}\n")
    return [line.strip() for line in lines.splitlines()]
