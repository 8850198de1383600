# The kernels that Python launches, as one file of GPU code beside the libraries.

# edgekv_cuda_codes(ARCHITECTURES OUT): what nvcc is to make, of architectures in CMake's numbers (86-real: no PTX; 86-virtual: PTX alone). PTX of the
# newest is always among it: the driver compiles that for a newer card.
function(edgekv_cuda_codes architectures out)
    set(newest 0)
    set(codes "")
    foreach(arch IN LISTS architectures)
        if(NOT arch MATCHES "^([0-9]+)([af]?)(-real|-virtual|)$")
            message(FATAL_ERROR "the CUDA architecture ${arch} is no number like 86, 86-real or 86-virtual")
        endif()
        set(number ${CMAKE_MATCH_1})
        set(target ${CMAKE_MATCH_1}${CMAKE_MATCH_2})
        set(kind "${CMAKE_MATCH_3}")
        if(NOT kind STREQUAL "-virtual")
            list(APPEND codes "-gencode=arch=compute_${target},code=sm_${target}")
        endif()
        if(NOT kind STREQUAL "-real")
            list(APPEND codes "-gencode=arch=compute_${target},code=compute_${target}")
        endif()
        if(number GREATER newest)
            set(newest ${number})
        endif()
    endforeach()
    list(APPEND codes "-gencode=arch=compute_${newest},code=compute_${newest}")
    list(REMOVE_DUPLICATES codes)
    set(${out} "${codes}" PARENT_SCOPE)
endfunction()

# edgekv_cuda_arrays(NVCC ARCHITECTURES FLAGS FATBIN): the target edgekv-arrays makes the file FATBIN of arrays.cu
function(edgekv_cuda_arrays nvcc architectures flags fatbin)
    set(native ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/..)
    set(sources ${native}/cuda/arrays.cu ${native}/cuda/kernels/move_pages.cuh ${native}/cuda/kernels/scores.cuh)
    edgekv_cuda_codes("${architectures}" codes)
    add_custom_command(
        OUTPUT ${fatbin}
        COMMAND ${nvcc} -fatbin -std=c++17 -O3 ${codes} ${flags} -I${native} -o ${fatbin} ${native}/cuda/arrays.cu
        DEPENDS ${sources}
        VERBATIM)
    add_custom_target(edgekv-arrays DEPENDS ${fatbin})
endfunction()
