"""ggml's types, as files number and name them. The package gguf has these tables too, and takes as long to import as a small model to load."""

from typing import NamedTuple


class GgmlType(NamedTuple):
    name: str
    block: int  # numbers that are stored together; 1: each by itself
    block_bytes: int


_TYPES = {
    0: GgmlType("F32", 1, 4), 1: GgmlType("F16", 1, 2), 2: GgmlType("Q4_0", 32, 18), 3: GgmlType("Q4_1", 32, 20), 6: GgmlType("Q5_0", 32, 22),
    7: GgmlType("Q5_1", 32, 24), 8: GgmlType("Q8_0", 32, 34), 9: GgmlType("Q8_1", 32, 36), 10: GgmlType("Q2_K", 256, 84),
    11: GgmlType("Q3_K", 256, 110), 12: GgmlType("Q4_K", 256, 144), 13: GgmlType("Q5_K", 256, 176), 14: GgmlType("Q6_K", 256, 210),
    15: GgmlType("Q8_K", 256, 292), 16: GgmlType("IQ2_XXS", 256, 66), 17: GgmlType("IQ2_XS", 256, 74), 18: GgmlType("IQ3_XXS", 256, 98),
    19: GgmlType("IQ1_S", 256, 50), 20: GgmlType("IQ4_NL", 32, 18), 21: GgmlType("IQ3_S", 256, 110), 22: GgmlType("IQ2_S", 256, 82),
    23: GgmlType("IQ4_XS", 256, 136), 24: GgmlType("I8", 1, 1), 25: GgmlType("I16", 1, 2), 26: GgmlType("I32", 1, 4), 27: GgmlType("I64", 1, 8),
    28: GgmlType("F64", 1, 8), 29: GgmlType("IQ1_M", 256, 56), 30: GgmlType("BF16", 1, 2), 34: GgmlType("TQ1_0", 256, 54),
    35: GgmlType("TQ2_0", 256, 66), 39: GgmlType("MXFP4", 32, 17), 40: GgmlType("NVFP4", 64, 36), 41: GgmlType("Q1_0", 128, 18),
}
"""By number: `enum ggml_type`."""

_BY_NAME = {kind.name: kind for kind in _TYPES.values()}

FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S",
    15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S",
    25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0",
    38: "MXFP4_MOE", 39: "NVFP4", 40: "Q1_0", 1024: "GUESSED",
}
"""The mixes of types that `general.file_type` numbers: `enum llama_ftype`."""


def numbered(number: int) -> GgmlType:
    """The type with this number in files. Raises ValueError."""
    if number not in _TYPES:
        raise ValueError(f"there is no type {number} of weights")
    return _TYPES[number]


def named(name: str) -> GgmlType:
    """The type of this name, in any case. Raises KeyError."""
    return _BY_NAME[name.upper()]
