"""One tensor of a model of random weights: its name, size and distribution."""

from functools import cache

from msgspec import Struct


class Weights(Struct, frozen=True):
    """One tensor: `n_out` rows of `n_in` numbers of standard deviation `std`; for n_out 0 a vector of `n_in` numbers around `mean`."""

    name: str
    n_out: int
    n_in: int
    std: float
    mean: float = 0.0
    shared: float = 0.0
    """The share of a matrix row's blocks that all rows have in common."""
    any_sign: bool = False
    """A random half of a vector's numbers is negative."""
    n_stacked: int = 0
    """Matrices of this size in one tensor, one for each expert or head; 0: one matrix."""
    is_f32: bool = False
    """A matrix that no model quantises."""

    @property
    def is_vector(self) -> bool:
        return self.n_out == 0

    @property
    def n_rows(self) -> int:
        """Rows of all stacked matrices together; 1 for a vector."""
        return max(1, self.n_stacked) * max(1, self.n_out)

    @property
    def n_elements(self) -> int:
        return self.n_rows * self.n_in

    @property
    def dims(self) -> tuple[int, ...]:
        """NumPy's shape: the row length comes last."""
        return (*([self.n_stacked] if self.n_stacked else []), *([self.n_out] if self.n_out else []), self.n_in)

    def type_in(self, weight_type: str) -> str:
        """The ggml type in a file whose matrices are of `weight_type`; vectors are f32."""
        return "f32" if self.is_vector or self.is_f32 else weight_type

    def n_bytes(self, weight_type: str) -> int:
        """Bytes in a file whose matrices are of `weight_type`."""
        return row_bytes(self.n_elements, self.type_in(weight_type))


def matrix(name: str, n_out: int, n_in: int, gain: float = 1.0, n_stacked: int = 0) -> Weights:
    """A matrix that maps inputs of unit variance to outputs of standard deviation `gain`."""
    return Weights(name, n_out, n_in, gain / n_in ** 0.5, n_stacked=n_stacked)


def norm(name: str, n: int, gain: float = 1.0) -> Weights:
    return Weights(name, 0, n, 0.1 * gain, mean=gain)


def block_of(type_name: str) -> tuple[int, int]:
    """Numbers and bytes of a block of a ggml type, in any case. Raises KeyError."""
    from edgekv._native.gguf_header import block_sizes  # where the libraries are missing, only what needs them says so

    return block_sizes()[type_name.upper()]


@cache
def row_bytes(n_elements: int, type_name: str) -> int:
    """Bytes of `n_elements` numbers of a ggml type; a multiple of its block."""
    n, n_bytes = block_of(type_name)
    return n_elements * n_bytes // n
