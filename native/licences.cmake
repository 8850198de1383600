# The licences of what the wheel contains besides our own: into its metadata, as llama.cpp has them.
if(NOT DEFINED SKBUILD_METADATA_DIR)
    set(SKBUILD_METADATA_DIR edgekv.dist-info) # built by hand
endif()
set(licences ${SKBUILD_METADATA_DIR}/licenses/llama.cpp)

file(GLOB files RELATIVE ${LLAMA_DIR} ${LLAMA_DIR}/LICENSE ${LLAMA_DIR}/licenses/* ${LLAMA_DIR}/vendor/*/LICENSE*
    ${LLAMA_DIR}/vendor/*/*/LICENSE*)
foreach(file IN LISTS files)
    get_filename_component(folder ${file} DIRECTORY)
    install(FILES ${LLAMA_DIR}/${file} DESTINATION ${licences}/${folder} COMPONENT edgekv)
endforeach()

# tinyBLAS has its licence at its head alone
set(source ggml/src/ggml-cpu/llamafile/sgemm.cpp)
file(READ ${LLAMA_DIR}/${source} head LIMIT 2000)
string(REGEX MATCH "^// Copyright[^\n]*\n(//[^\n]*\n)+" notice "${head}")
if(notice STREQUAL "")
    message(FATAL_ERROR "${source} does not begin with its licence any more; say in ${CMAKE_CURRENT_LIST_FILE} where it is")
endif()
file(WRITE ${CMAKE_BINARY_DIR}/LICENSE-llamafile "${notice}")
install(FILES ${CMAKE_BINARY_DIR}/LICENSE-llamafile DESTINATION ${licences}/licenses COMPONENT edgekv)
