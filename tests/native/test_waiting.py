"""Threads that wait for each other leave the processor to others: set before the library that waits is loaded, and not over what a person says."""

import os
import subprocess
import sys

import pytest

LOOK = "from edgekv import _native; _native.prepare(); import os; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(("given", "found"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")])
def test_what_a_person_says_counts(given, found):
    environment = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", LOOK], env=environment | given, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == found
