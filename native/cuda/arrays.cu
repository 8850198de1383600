// The kernels of edgekv/arrays/cupy_ops.py: device code alone, which a CUDA build makes into edgekv-arrays.fatbin (arrays.cmake). CuPy loads that
// file by its path and finds kernels by their names, so that nothing is compiled where EdgeKV runs.
#define EDGEKV_ARRAYS
#include "cuda/kernels/move_pages.cuh"
#include "cuda/kernels/scores.cuh"
