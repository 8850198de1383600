# What stands behind gpu.h in its two builds. EDGEKV_DEVICE_SOURCES are compiled by nvcc together with EDGEKV_CUDA_SOURCES, or by the
# host's compiler (`-x c++ -ffp-contract=off`) together with EDGEKV_EMULATOR_SOURCES.
set(here ${CMAKE_CURRENT_LIST_DIR})
file(GLOB EDGEKV_CUDA_SOURCES CONFIGURE_DEPENDS ${here}/runtime/*.cu)
file(GLOB EDGEKV_DEVICE_SOURCES CONFIGURE_DEPENDS ${here}/engine/*.cu ${here}/kernels/*.cu)
file(GLOB EDGEKV_EMULATOR_SOURCES CONFIGURE_DEPENDS ${here}/../emulator/*.cpp)
