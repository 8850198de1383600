# The architectures of a CUDA build, in CMake's numbers: 89 is compute capability 8.9.
set(EDGEKV_SERVED_ARCHITECTURES 75 80 86 89 90 120) # CI compiles our kernels for these

# edgekv_cuda_architectures(WANTED CARDS KNOWN GGML OURS)
#   wanted  EDGEKV_CUDA_ARCHITECTURES: numbers, optionally with CMake's suffixes; native or empty: the cards of this machine
#   cards   this machine's compute capabilities, as nvidia-smi gives them (8.9); empty: no card
#   known   the toolkit's targets, as `nvcc --list-gpu-arch` gives them (compute_89)
# sets GGML (for ggml-cuda) and OURS (for our kernels) in the caller. Our kernels need 7.5: an older card keeps stock attention, and a new
# context says so. A card newer than the toolkit gets the newest known architecture; the driver compiles its PTX for the card.
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
            list(APPEND new ${served}) # "all" or "all-major"
        elseif(CMAKE_MATCH_0 GREATER_EQUAL 75)
            list(APPEND new ${arch})
        endif()
    endforeach()
    if(new STREQUAL "")
        list(GET served 0 new) # without the library nothing could say why the card is not served
    endif()
    list(REMOVE_DUPLICATES new)
    set(${ggml} "${all}" PARENT_SCOPE)
    set(${ours} "${new}" PARENT_SCOPE)
endfunction()
