# What stands behind gpu.h in its two builds. EDGEKV_DEVICE_SOURCES are compiled by nvcc together with EDGEKV_CUDA_SOURCES, or by the
# host's compiler (`-x c++ -ffp-contract=off`) together with EDGEKV_EMULATOR_SOURCES.
set(here ${CMAKE_CURRENT_LIST_DIR})
set(EDGEKV_CUDA_SOURCES ${here}/gpu_cuda.cu)
file(GLOB EDGEKV_DEVICE_SOURCES CONFIGURE_DEPENDS ${here}/*.cu)
list(REMOVE_ITEM EDGEKV_DEVICE_SOURCES ${EDGEKV_CUDA_SOURCES})
set(EDGEKV_EMULATOR_SOURCES ${here}/gpu_emulated.cpp ${here}/emulator_block.cpp ${here}/emulator_collective.cpp
    ${here}/emulator_context.cpp ${here}/emulator_fault.cpp ${here}/emulator_graph.cpp ${here}/emulator_memory.cpp
    ${here}/emulator_order.cpp ${here}/emulator_stream.cpp)
