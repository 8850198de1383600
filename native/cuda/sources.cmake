# The sources of both builds of gpu.h. nvcc compiles EDGEKV_DEVICE_SOURCES with EDGEKV_CUDA_SOURCES; the host's compiler
# (`-x c++ -ffp-contract=off`) compiles them with EDGEKV_EMULATOR_SOURCES.
set(here ${CMAKE_CURRENT_LIST_DIR})
file(GLOB EDGEKV_CUDA_SOURCES CONFIGURE_DEPENDS ${here}/runtime/*.cu)
file(GLOB EDGEKV_DEVICE_SOURCES CONFIGURE_DEPENDS ${here}/engine/*.cu ${here}/kernels/*.cu)
file(GLOB EDGEKV_EMULATOR_SOURCES CONFIGURE_DEPENDS ${here}/../emulator/*.cpp)
