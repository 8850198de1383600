# Sources of the kernels, each instruction set in its own translation unit with its own flags.
set(here ${CMAKE_CURRENT_LIST_DIR})
set(EDGEKV_KERNEL_SOURCES ${here}/isa.cpp ${here}/decode/attend_reference.cpp ${here}/select/sample_reference.cpp
    ${here}/sketch/sketch_reference.cpp ${here}/sketch/sketch_layout.cpp ${here}/simd/tiles.cpp ${here}/prefill/prompt_choice.cpp
    ${here}/prefill/prompt_reference.cpp ${here}/matmul/products_reference.cpp)
set(edgekv_kernels decode/attend matmul/products prefill/prompt select/sample sketch/sketch)
# The code below writes a kernel's file for each instruction set that has no file of its own. The files differ in the header with the
# functions, in the table made of them, and in the instruction set.
set(edgekv_attend_made decode/attend_rows.h "AttendKernels kAttend" "{process, finish, observe}")
set(edgekv_attend_isas portable avx2 avxvnni avx512 avx512vnni neon dotprod)
set(edgekv_products_made matmul/products_token.h "ProductKernels kProducts" "{multiply, multiply_few, quantise, rms_factor, weigh_values, gate_values}")
set(edgekv_products_isas avx2 avxvnni avx512vnni)
set(edgekv_prompt_made prefill/prompt_kernel.h "PromptKernels kPrompt" "{attend_item<KeysF32, ValuesF32>}")
set(edgekv_prompt_isas portable avx2 avx512 neon)
set(edgekv_sample_made select/sample_kernel.h "SampleFn kSample" "sample")
set(edgekv_sample_isas portable avx2 avx512 neon)
set(edgekv_sketch_made sketch/sketch_scan.h "SketchKernels kSketch" "{build, prepare, scan, scan_keys}")
set(edgekv_sketch_isas portable avx2 avxvnni avx512 avx512vnni neon dotprod)
set(edgekv_named_isas portable avx2 avxvnni avx512 avx512vnni neon dotprod)
set(edgekv_isa_names Portable Avx2 AvxVnni Avx512 Avx512Vnni Neon DotProd)
# Every instruction set must build the same sketch from the same keys, so a multiplication and an addition stay two operations.
set(edgekv_sketch_flags $<$<CXX_COMPILER_ID:GNU,Clang,AppleClang>:-ffp-contract=off>)

set(edgekv_avx2_flags -mavx2 -mfma -mf16c)
set(edgekv_avxvnni_flags ${edgekv_avx2_flags} -mavxvnni)
# gcc 12 takes the undefined vectors in its own AVX-512 headers for uses of uninitialised variables.
set(edgekv_avx512_flags ${edgekv_avx2_flags} -mavx512f -mavx512bw -mavx512vl -mavx512dq
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>)
set(edgekv_avx512vnni_flags ${edgekv_avx512_flags} -mavx512vnni)
set(edgekv_avx512bf16_flags ${edgekv_avx512_flags} -mavx512bf16)
set(edgekv_amx_flags ${edgekv_avx512vnni_flags})  # every processor with AMX has VNNI; the tiles' instructions are written out
set(edgekv_dotprod_flags -march=armv8.2-a+dotprod)
set(edgekv_isas portable)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    list(APPEND edgekv_isas avx2 avxvnni avx512 avx512vnni avx512bf16 amx)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$")
    list(APPEND edgekv_isas neon dotprod)
endif()
if(NOT edgekv_isas STREQUAL portable)
    # here portable kernels serve few or no processors: not worth the minute that each head size and -O3 take to compile
    set(edgekv_portable_flags -DEDGEKV_ANY_HEAD_DIM $<$<CXX_COMPILER_ID:GNU,Clang,AppleClang>:-O2>)
endif()
# A build for this processor alone has the kernels that serve here (isa_here.cpp), and of a variant's not the plain ones beside it
# (EDGEKV_BUILT_PLAIN): the others are two thirds of what there is to compile.
set(edgekv_avx2_variant avxvnni)
set(edgekv_avx512_variant avx512vnni)
set(edgekv_neon_variant dotprod)
set(edgekv_built "")
if(EDGEKV_CPU STREQUAL "native")
    set(program ${CMAKE_CURRENT_BINARY_DIR}/isa_here)
    try_compile(compiled ${program}.dir SOURCES ${here}/isa_here.cpp ${here}/isa.cpp ${here}/simd/tiles.cpp
        CMAKE_FLAGS -DINCLUDE_DIRECTORIES=${here}/.. OUTPUT_VARIABLE said COPY_FILE ${program} COPY_FILE_ERROR said)
    execute_process(COMMAND ${program} OUTPUT_VARIABLE edgekv_isas RESULT_VARIABLE failed)
    unset(compiled CACHE) # a kept build folder may have come to another processor
    if(failed)
        message(FATAL_ERROR "What this processor can run was not found out (build with EDGEKV_CPU=all): ${said}")
    endif()
    message(STATUS "edgekv: kernels for ${edgekv_isas}")
    string(REPLACE ";" " " edgekv_built "EDGEKV_KERNELS=\" ${edgekv_isas} \"")
endif()
set_source_files_properties(${here}/isa.cpp PROPERTIES COMPILE_DEFINITIONS "${edgekv_built}")
foreach(path IN LISTS edgekv_kernels)
    get_filename_component(kernel ${path} NAME)
    list(APPEND EDGEKV_KERNEL_SOURCES ${here}/${path}.cpp)
    set_source_files_properties(${here}/${path}.cpp PROPERTIES COMPILE_DEFINITIONS "${edgekv_built}")
    foreach(isa IN LISTS edgekv_isas)
        set(source ${here}/${path}_${isa}.cpp)
        set(variant "${edgekv_${isa}_variant}")
        if(edgekv_built AND variant IN_LIST edgekv_isas AND variant IN_LIST edgekv_${kernel}_isas)
            continue()
        endif()
        if(isa IN_LIST edgekv_${kernel}_isas)
            list(FIND edgekv_named_isas ${isa} which)
            list(GET edgekv_${kernel}_made 0 header)
            list(GET edgekv_${kernel}_made 1 table)
            list(GET edgekv_${kernel}_made 2 functions)
            list(GET edgekv_isa_names ${which} name)
            string(REGEX REPLACE "^avx512.*" avx512 vectors ${isa})
            string(REPLACE avxvnni avx2 vectors ${vectors})
            string(REPLACE dotprod neon vectors ${vectors})
            set(source ${CMAKE_CURRENT_BINARY_DIR}/kernels/${kernel}_${isa}.cpp)
            file(CONFIGURE OUTPUT ${source} @ONLY CONTENT [=[
#include "kernels/simd/simd_@vectors@.h"
// The header below uses its Simd.
#include "kernels/@header@"

namespace edgekv {
const @table@@name@ = @functions@;
}
]=])
        endif()
        if(EXISTS ${source})
            list(APPEND EDGEKV_KERNEL_SOURCES ${source})
            set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${edgekv_${isa}_flags};${edgekv_${kernel}_flags}")
        endif()
    endforeach()
endforeach()
