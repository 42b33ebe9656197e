# find_package(mixgrad CONFIG): the headers as target mixgrad::headers, and mixgrad_add_module(NAME sources...), which makes a
# plug-in: a shared library that mixgrad.cpp.load_library loads, or an entry point of the group mixgrad.plugins.
cmake_minimum_required(VERSION 3.21...4.0)

# Beside the extension when installed, in the sources when editable.
get_filename_component(mixgrad_INCLUDE_DIR "${CMAKE_CURRENT_LIST_DIR}/../include" ABSOLUTE)

if(NOT TARGET mixgrad::headers)
  add_library(mixgrad::headers INTERFACE IMPORTED)
  set_target_properties(mixgrad::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${mixgrad_INCLUDE_DIR}"
                                                    INTERFACE_COMPILE_FEATURES cxx_std_20)
endif()

function(mixgrad_add_module name)
  add_library(${name} MODULE ${ARGN})
  target_link_libraries(${name} PRIVATE mixgrad::headers)
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX ".so" CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_compile_options(${name} PRIVATE -ffp-contract=off -fno-math-errno -fno-trapping-math)
endfunction()
