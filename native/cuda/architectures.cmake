# Which architectures a CUDA build is for. Numbers as CMake has them: 89 is compute capability 8.9.
set(EDGEKV_SERVED_ARCHITECTURES 80 86 89 90 120) # what our kernels are written and compiled for in CI

# edgekv_cuda_architectures(WANTED CARDS KNOWN GGML OURS)
#   wanted  EDGEKV_CUDA_ARCHITECTURES: numbers, with CMake's suffixes where there are any; native or empty: the cards of this machine
#   cards   compute capabilities of those, as nvidia-smi gives them (8.9); empty: there are none
#   known   what the toolkit compiles for, as `nvcc --list-gpu-arch` gives it (compute_89)
# sets in the caller GGML, for ggml-cuda, and OURS, for our kernels, which need 8.0: an older card keeps stock attention, and is told so
# when a context is made. A card that is newer than the toolkit gets the newest architecture, whose PTX the driver compiles again.
function(edgekv_cuda_architectures wanted cards known ggml ours)
    string(REGEX MATCHALL "[0-9]+" known "${known}")
    if(NOT known) # a compiler that cannot be asked
        set(known ${EDGEKV_SERVED_ARCHITECTURES})
    endif()
    set(served "")
    foreach(arch IN LISTS EDGEKV_SERVED_ARCHITECTURES)
        if(arch IN_LIST known)
            list(APPEND served ${arch})
        endif()
    endforeach()

    if(wanted AND NOT wanted STREQUAL "native")
        string(REPLACE "," ";" all "${wanted}")
    else()
        set(all "")
        foreach(card IN LISTS cards)
            string(REPLACE "." "" arch "${card}")
            if(arch IN_LIST known)
                list(APPEND all ${arch}-real)
                continue()
            endif()
            set(newest 0)
            foreach(other IN LISTS known)
                if(other LESS arch AND other GREATER newest)
                    set(newest ${other})
                endif()
            endforeach()
            if(newest)
                list(APPEND all ${newest})
            else()
                message(STATUS "edgekv: this toolkit does not compile for compute capability ${card} any more: that card will not be used")
            endif()
        endforeach()
        if(all STREQUAL "")
            set(all ${served})
        endif()
        list(REMOVE_DUPLICATES all)
    endif()

    set(new "")
    foreach(arch IN LISTS all)
        if(NOT arch MATCHES "^[0-9]+")
            list(APPEND new ${served}) # all, all-major
        elseif(CMAKE_MATCH_0 GREATER_EQUAL 80)
            list(APPEND new ${arch})
        endif()
    endforeach()
    if(new STREQUAL "")
        list(GET served 0 new) # the library must be there to say why the card is not served
    endif()
    list(REMOVE_DUPLICATES new)
    set(${ggml} "${all}" PARENT_SCOPE)
    set(${ours} "${new}" PARENT_SCOPE)
endfunction()
