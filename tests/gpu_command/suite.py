"""Stage tests for the installed package: every tests/gpu/test_*.py, and the tests of tests/ that run on a card. Each file is a step of its
own, so that one that hangs costs no other."""

from pathlib import Path

from .session import Session
from .state import OK
from .steps import Outcome, Step

ALSO = ("arrays/test_ops.py",)
"""Tests that compare NumPy with CuPy where there is a GPU."""

LIMITS = {"test_greedy.py": 400}
"""The limits in seconds of steps that take more than 240."""


def steps(session: Session) -> list[Step]:
    here = session.root / "tests" / "gpu"
    files = sorted(here.glob("test_*.py")) + [path for name in ALSO if (path := session.root / "tests" / name).exists()]
    key = f"{session.sources} {session.device} {_models(session)}"
    return [Step("tests", path.stem, lambda s, path=path: _run(session, path, s), LIMITS.get(path.name, 240), least_s=30,
                 needs=("build/check",), key=key) for path in files]


def _models(session: Session) -> str:
    """The step's key: a test that was skipped for want of the default model runs again once the model is there."""
    return "default" if (session.models / "default.gguf").exists() else ""


def _run(session: Session, path: Path, seconds: float) -> Outcome:
    environment = session.environment(EDGEKV_GPU_TESTS=session.device)
    if path.parent.name != "gpu":
        environment.pop("EDGEKV_ATTENTION_DEVICE")  # these tests choose a device themselves
    command = [session.python, "-m", "pytest", "-v", "-rs", "--tb=short", "-p", "no:cacheprovider", path]
    done = session.execute(path.stem, command, seconds, environment)
    outcome = session.outcome(path.stem, done)
    if outcome.status == OK and "skipped" in done.last_line:  # the report names them: a skipped test has shown nothing
        for line in done.tail.splitlines():
            if line.startswith("SKIPPED"):
                session.say(f"  {line[:200]}")
    return outcome
