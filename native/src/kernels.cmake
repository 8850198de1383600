# Sources of the attention kernels, each instruction set in its own translation unit with its own flags.
set(EDGEKV_KERNEL_SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/attend.cpp
    ${CMAKE_CURRENT_LIST_DIR}/attend_portable.cpp
    ${CMAKE_CURRENT_LIST_DIR}/attend_reference.cpp)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    list(APPEND EDGEKV_KERNEL_SOURCES
        ${CMAKE_CURRENT_LIST_DIR}/attend_avx2.cpp
        ${CMAKE_CURRENT_LIST_DIR}/attend_avx512.cpp
        ${CMAKE_CURRENT_LIST_DIR}/attend_avx512vnni.cpp)
    # gcc 12 takes the undefined vectors in its own AVX-512 headers for uses of uninitialised variables.
    set(edgekv_avx512_quiet $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    set(edgekv_avx2_flags -mavx2 -mfma -mf16c)
    set(edgekv_avx512_flags ${edgekv_avx2_flags} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
    set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/attend_avx2.cpp
        PROPERTIES COMPILE_OPTIONS "${edgekv_avx2_flags}")
    set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/attend_avx512.cpp
        PROPERTIES COMPILE_OPTIONS "${edgekv_avx512_flags};${edgekv_avx512_quiet}")
    set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/attend_avx512vnni.cpp
        PROPERTIES COMPILE_OPTIONS "${edgekv_avx512_flags};${edgekv_avx512_quiet};-mavx512vnni")
endif()
