# How a CUDA build finds NVIDIA's libraries, and does without them; and the driver that it needs.

# edgekv_opens_backend(GGML BACKEND): ggml does not link to the backend, which load_backends() (src/attention/backends.cpp) opens. Where
# its libraries or the driver are missing, everything else works.
function(edgekv_opens_backend ggml backend)
    string(REPLACE "-" "_" definition "${backend}")
    string(REPLACE "ggml_" "GGML_USE_" definition "${definition}")
    string(TOUPPER "${definition}" definition)
    foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES COMPILE_DEFINITIONS INTERFACE_COMPILE_DEFINITIONS)
        get_target_property(items ${ggml} ${property})
        if(items)
            list(REMOVE_ITEM items ${backend} ${definition})
            set_property(TARGET ${ggml} PROPERTY ${property} "${items}")
        endif()
    endforeach()
    target_compile_definitions(${backend} PRIVATE GGML_BACKEND_DL) # it exports what ggml_backend_load() looks for
endfunction()

# edgekv_opens_cublas(BACKEND): the backend is not linked to cuBLAS, which cublas.cpp opens when the backend first calls it. A backend that calls a
# function of it which cublas.cpp lacks is not linked at all.
function(edgekv_opens_cublas backend)
    get_target_property(items ${backend} LINK_LIBRARIES)
    list(REMOVE_ITEM items CUDA::cublas)
    set_property(TARGET ${backend} PROPERTY LINK_LIBRARIES "${items}")
    target_sources(${backend} PRIVATE ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/cublas.cpp)
    target_link_libraries(${backend} PRIVATE ${CMAKE_DL_LIBS})
    target_link_options(${backend} PRIVATE -Wl,--no-undefined)
endfunction()

# edgekv_cuda_rpath(VERSION TOOLKIT OUT): where a library in PACKAGES/edgekv/lib looks for CUDA's beside itself
#   version  of the toolkit
#   toolkit  folder of this machine's toolkit, which the loader need not know; empty: the build is for other machines too
# sets OUT in the caller: pip's packages of that version in the same environment, then the toolkit. In a plug-in's folder ggml's libraries are the
# package's.
function(edgekv_cuda_rpath version toolkit out)
    string(REGEX MATCH "^[0-9]+" major "${version}")
    if(major GREATER_EQUAL 13)
        set(folders nvidia/cu${major})
    else()
        set(folders nvidia/cuda_runtime nvidia/cublas)
    endif()
    set(found "$ORIGIN" "$ORIGIN/../../edgekv/lib")
    foreach(folder IN LISTS folders)
        list(APPEND found "$ORIGIN/../../${folder}/lib")
    endforeach()
    set(${out} ${found} ${toolkit} PARENT_SCOPE)
endfunction()

# edgekv_cuda_compression(VERSION OUT): nvcc's -compress-mode for a toolkit; empty: it has none. Kernels in mode size, by Zstandard, need the
# driver of CUDA 12.4 (550); CUDA 13 needs a newer one in any case, and a build with CUDA 12 must run on 525 (edgekv/planning/devices.py).
function(edgekv_cuda_compression version out)
    if(version VERSION_GREATER_EQUAL 13)
        set(${out} size PARENT_SCOPE)
    elseif(version VERSION_GREATER_EQUAL 12.8)
        set(${out} speed PARENT_SCOPE)
    else()
        set(${out} "" PARENT_SCOPE)
    endif()
endfunction()
