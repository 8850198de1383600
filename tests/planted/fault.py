"""What a fault is, and how it gets into a source."""

from dataclasses import dataclass
from pathlib import Path

VARIABLE = "PLANTED_FAULT"
"""The number of the native fault that is on. Its name does not begin with EDGEKV_: tests take such variables out of a server's environment."""

PRELUDE = f"""#ifndef PLANTED_NUMBER
#define PLANTED_NUMBER
#include <cstdlib>
static const int planted_number = std::getenv("{VARIABLE}") ? std::atoi(std::getenv("{VARIABLE}")) : 0;
#endif
#line 1
"""
IN_PATCH = f'([] {{ const char * n = std::getenv("{VARIABLE}"); return n ? std::atoi(n) : 0; }}() == NUMBER)'
"""A patch has no place for the prelude."""


@dataclass(frozen=True)
class Fault:
    """The file has the text `old` once, and with the fault `new` in its place. A native `old` is an expression, or statements (it ends with ;), which are
    replaced by `new` where the fault is on; or `new` names PLANTED, and is the text for both. `room`: a key of rooms.ROOMS."""

    name: str
    room: str
    file: str
    old: str
    new: str

    @property
    def is_native(self) -> bool:
        return self.file.startswith(("native/", "patches/"))

    def check(self, root: Path) -> str:
        """The text of its file. Raises SystemExit, with a sentence, where the fault does not apply."""
        path = root / self.file
        text = path.read_text() if path.is_file() else ""
        if (n := text.count(self.old)) != 1:
            raise SystemExit(f"the fault {self.name} no longer applies: {self.file} has its text {n} times, not once; mend its line in tests/planted")
        return text

    def both(self, number: int) -> str:
        """What stands in a native source for both texts."""
        condition = (IN_PATCH if self.file.startswith("patches/") else "(planted_number == NUMBER)").replace("NUMBER", str(number))
        if "PLANTED" in self.new:
            return self.new.replace("PLANTED", condition)
        if self.old.endswith(";"):
            return f"if ({condition}) {{ {self.new} }} else {{ {self.old} }}"
        return f"({condition} ? ({self.new}) : ({self.old}))"


def plant(root: Path, faults: dict[int, Fault]) -> None:
    """Write the native faults into a copy of the tree. Lines keep their numbers."""
    by_file: dict[str, list[tuple[int, Fault]]] = {}
    for number, fault in faults.items():
        fault.check(root)
        by_file.setdefault(fault.file, []).append((number, fault))
    for name, of_file in by_file.items():
        text = (root / name).read_text()
        for number, fault in of_file:
            text = text.replace(fault.old, fault.both(number))
        if not name.startswith("patches/"):
            text = PRELUDE + text
        (root / name).write_text(text)
