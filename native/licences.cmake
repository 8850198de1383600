# The licences of what the wheel contains besides our own: into its metadata, as llama.cpp has them.
if(NOT DEFINED SKBUILD_METADATA_DIR)
    set(SKBUILD_METADATA_DIR edgekv) # built by hand; a folder edgekv.dist-info would hide the version of the package
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

# the chat page is made of npm's packages: all of their licences, each text once
if(EDGEKV_UI STREQUAL "on")
    set(packages ${CMAKE_BINARY_DIR}/llama/tools/ui/ui-src/node_modules)
    install(CODE "
        cmake_policy(SET CMP0057 NEW) # IN_LIST
        file(GLOB texts \"${packages}/*/LICEN[CS]E*\" \"${packages}/@*/*/LICEN[CS]E*\")
        file(WRITE \"${CMAKE_BINARY_DIR}/LICENSES-ui\" \"\")
        foreach(path IN LISTS texts)
            file(SHA256 \"\${path}\" digest)
            if(NOT IS_DIRECTORY \"\${path}\" AND NOT digest IN_LIST seen)
                list(APPEND seen \${digest})
                file(RELATIVE_PATH name \"${packages}\" \"\${path}\")
                file(READ \"\${path}\" text)
                file(APPEND \"${CMAKE_BINARY_DIR}/LICENSES-ui\" \"== \${name}\\n\\n\${text}\\n\")
            endif()
        endforeach()
        if(NOT seen)
            message(FATAL_ERROR \"no licences of the chat page's packages in ${packages}\")
        endif()" COMPONENT edgekv)
    install(FILES ${CMAKE_BINARY_DIR}/LICENSES-ui DESTINATION ${licences}/licenses COMPONENT edgekv)
endif()
