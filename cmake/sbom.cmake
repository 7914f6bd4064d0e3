# SPDX-License-Identifier: Apache-2.0
# install_sbom(destination component target...): dsakit.cdx.json says what those of the targets that are built are made of
# (sbom.py), by the lists that their compiler and linker left, and so it is written when it is installed.
include(CheckLinkerFlag)
check_linker_flag(CXX LINKER:--dependency-file=${CMAKE_BINARY_DIR}/CMakeFiles/check.d DSAKIT_HAS_LINKER_DEPENDENCY_FILE)
find_package(Python3 COMPONENTS Interpreter)

function(install_sbom destination component)
  foreach(target IN LISTS ARGN)
    if(TARGET ${target})
      get_target_property(type ${target} TYPE)
      if(DSAKIT_HAS_LINKER_DEPENDENCY_FILE AND NOT type MATCHES "STATIC|INTERFACE")
        target_link_options(${target} PRIVATE LINKER:--dependency-file=${PROJECT_BINARY_DIR}/${target}.link.d)
      endif()
    endif()
  endforeach()
  if(Python3_FOUND)
    set(file ${PROJECT_BINARY_DIR}/dsakit.cdx.json)
    string(JOIN " " targets ${ARGN})
    install(CODE "execute_process(COMMAND \"${Python3_EXECUTABLE}\" \"${PROJECT_SOURCE_DIR}/cmake/sbom.py\"
      \"${PROJECT_SOURCE_DIR}\" \"${PROJECT_BINARY_DIR}\" ${PROJECT_VERSION} \"${CMAKE_MAKE_PROGRAM}\" ${targets}
      OUTPUT_FILE \"${file}\" COMMAND_ERROR_IS_FATAL ANY)" COMPONENT ${component})
    install(FILES ${file} DESTINATION ${destination} COMPONENT ${component})
  endif()
endfunction()
