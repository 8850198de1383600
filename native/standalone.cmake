# What the builds without llama.cpp share: the tests of the kernels, and the emulated device.
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
find_program(CCACHE ccache)
if(CCACHE)
    # all paths count as relative to the build folder: another one beside it finds the same objects
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=/ CCACHE_NOHASHDIR=1 ${CCACHE})
endif()
get_filename_component(EDGEKV_NATIVE ${CMAKE_CURRENT_LIST_DIR} ABSOLUTE) # each with the same names for the same files
