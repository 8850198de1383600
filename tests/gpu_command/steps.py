"""Steps run one after the other, each once, as far as the minutes go."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .state import FAILED, OK, SKIPPED, UNFINISHED, State

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_NO_GPU, EXIT_UNFINISHED = 0, 1, 2, 5, 75
"""75 says that not everything is done: the same command again goes on."""


@dataclass(frozen=True)
class Outcome:
    status: str
    note: str = ""


@dataclass(frozen=True)
class Step:
    """`run(seconds)` does the step's work within so many seconds. `key` names the inputs of the result: a step that was done with another
    key is done again."""

    stage: str
    name: str
    run: Callable[[float], Outcome] = field(compare=False)
    limit_s: float = 300
    least_s: float = 5
    """A step does not begin where less time is left."""
    needs: tuple[str, ...] = ()
    key: str = ""
    resumes: bool = False
    """The step keeps its progress when its time is over, and may be called again for the rest."""

    @property
    def id(self) -> str:
        return f"{self.stage}/{self.name}"


@dataclass
class Ran:
    """The outcome of a call: step ids by status. `earlier` were done by a call before."""

    earlier: list[str] = field(default_factory=list)
    by_status: dict[str, list[str]] = field(default_factory=dict)

    def add(self, step: Step, status: str) -> None:
        self.by_status.setdefault(status, []).append(step.id)

    @property
    def exit_code(self) -> int:
        if self.by_status.get(FAILED):
            return EXIT_FAILED
        return EXIT_UNFINISHED if self.by_status.get(UNFINISHED) else EXIT_OK


def run_steps(
    steps: Sequence[Step], state: State, deadline: float, say: Callable[[str], None] = print,
    after: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic,
) -> Ran:
    """Run the steps that are not done yet, until `deadline` on `clock`. A step whose needs failed is skipped. A step whose time is over is
    unfinished: the next call goes on with it. `after` runs after each step, so that a kill loses at most one."""
    ran, missing = Ran(), set()
    for step in steps:
        if state.done(step.id, step.key):
            ran.earlier.append(step.id)
            continue
        if lacking := [need for need in step.needs if need in missing]:
            missing.add(step.id)
            say(f"{step.id}: left out, for {lacking[0]} is not done")
            # a step that needs an unfinished one comes with the next call
            waits = any(need in ran.by_status.get(UNFINISHED, ()) for need in lacking)
            ran.add(step, UNFINISHED if waits else SKIPPED)
            continue
        left = deadline - clock()
        if left < step.least_s:
            missing.add(step.id)
            ran.add(step, UNFINISHED)
            say(f"{step.id}: no time left in this call")
            continue
        say(f"{step.id}: begins, at most {min(left, step.limit_s):.0f} s")
        began = clock()
        try:
            outcome = step.run(min(left, step.limit_s))
        except Exception as error:  # one broken step must not cost the others
            outcome = Outcome(FAILED, f"{type(error).__name__}: {error}")
        if outcome.status == UNFINISHED and not step.resumes and left >= step.limit_s:
            outcome = Outcome(FAILED, f"not done within its {step.limit_s:.0f} s; {outcome.note}")
        state.record(step.id, step.key, outcome.status, clock() - began, outcome.note)
        ran.add(step, outcome.status)
        if outcome.status != OK:
            missing.add(step.id)
        say(f"{step.id}: {outcome.status} after {clock() - began:.0f} s{'; ' + outcome.note if outcome.note else ''}")
        after()
    return ran
