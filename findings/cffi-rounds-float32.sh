#!/usr/bin/env bash
# cffi 2.0.0, numpy 2.4.6: where C wants an int, 3.7 is a TypeError, and so is NumPy's float64; float32 and float16 of 3.7, Decimal and Fraction
# become 3 without a word (cffi refuses Python's own floats by their class, and asks others for __int__). And from_buffer() checks the size of
# a buffer for "double[4]", but not for "double *", and its kind of numbers never.
# Seen:  int of 3.7: {'float': 'TypeError', 'float64': 'TypeError', 'float32': 3, 'float16': 3, 'Decimal': 3, 'Fraction': 3}
#        4 bytes as double[1]: ValueError; as double *: taken; two float64 as float[]: 4 numbers
source "$(dirname "$0")/common.sh" cffi==2.0.0 numpy==2.4.6
seen - <<'PY'
from decimal import Decimal
from fractions import Fraction

import cffi
import numpy as np
from seen import check, outcome

ffi = cffi.FFI()
ffi.cdef("int abs(int);")
c = ffi.dlopen(None)
values = (3.7, np.float64(3.7), np.float32(3.7), np.float16(3.7), Decimal("3.7"), Fraction(37, 10))
expected = {"float": "TypeError", "float64": "TypeError", "float32": 3, "float16": 3, "Decimal": 3, "Fraction": 3}
check("int of 3.7", {type(value).__name__: outcome(lambda: c.abs(value)) for value in values}, expected)
check("4 bytes as double[1]", outcome(lambda: ffi.from_buffer("double[1]", bytes(4))), "ValueError")
check("as double *", outcome(lambda: "taken" if ffi.from_buffer("double *", bytes(4)) else ""), "taken")
check("numbers of two float64 as float[]", len(ffi.from_buffer("float[]", np.ones(2))), 4)
PY
