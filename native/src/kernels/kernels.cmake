# Sources of the kernels, each instruction set in its own translation unit with its own flags.
set(here ${CMAKE_CURRENT_LIST_DIR})
set(EDGEKV_KERNEL_SOURCES ${here}/isa.cpp ${here}/attend/attend_reference.cpp ${here}/select/sample_reference.cpp
    ${here}/sketch/sketch_reference.cpp ${here}/sketch/sketch_layout.cpp ${here}/simd/tiles.cpp ${here}/prompt/prompt_choice.cpp
    ${here}/prompt/prompt_reference.cpp)
set(edgekv_kernels attend/attend products/products prompt/prompt select/sample sketch/sketch)
# Every instruction set must build the same sketch from the same keys, so a multiplication and an addition stay two operations.
set(edgekv_sketch_flags $<$<CXX_COMPILER_ID:GNU,Clang,AppleClang>:-ffp-contract=off>)

set(edgekv_avx2_flags -mavx2 -mfma -mf16c)
# gcc 12 takes the undefined vectors in its own AVX-512 headers for uses of uninitialised variables.
set(edgekv_avx512_flags ${edgekv_avx2_flags} -mavx512f -mavx512bw -mavx512vl -mavx512dq
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>)
set(edgekv_avx512vnni_flags ${edgekv_avx512_flags} -mavx512vnni)
set(edgekv_avx512bf16_flags ${edgekv_avx512_flags} -mavx512bf16)
set(edgekv_amx_flags ${edgekv_avx512_flags})  # its tile instructions are written out
foreach(path IN LISTS edgekv_kernels)
    get_filename_component(kernel ${path} NAME)
    list(APPEND EDGEKV_KERNEL_SOURCES ${here}/${path}.cpp ${here}/${path}_portable.cpp)
    foreach(isa avx2 avx512 avx512vnni avx512bf16 amx)
        set(source ${here}/${path}_${isa}.cpp)
        if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND EXISTS ${source})
            list(APPEND EDGEKV_KERNEL_SOURCES ${source})
            set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${edgekv_${isa}_flags};${edgekv_${kernel}_flags}")
        endif()
    endforeach()
    # on x86-64 they serve processors before AVX2 only: not worth the minute that -O3 takes to compile them
    set(edgekv_portable_flags ${edgekv_${kernel}_flags})
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
        list(APPEND edgekv_portable_flags $<$<CXX_COMPILER_ID:GNU,Clang,AppleClang>:-O2>)
    endif()
    set_source_files_properties(${here}/${path}_portable.cpp PROPERTIES COMPILE_OPTIONS "${edgekv_portable_flags}")
endforeach()
