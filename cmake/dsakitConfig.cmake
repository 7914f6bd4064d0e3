# SPDX-License-Identifier: Apache-2.0
# dsakit::c: the C interface, a shared library. dsakit::dsakit: the C++ interface (and the C one), a static library, for
# projects that have C++.
include(${CMAKE_CURRENT_LIST_DIR}/dsakitCTargets.cmake OPTIONAL)
get_property(dsakit_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
if("CXX" IN_LIST dsakit_languages)
  include(CMakeFindDependencyMacro)
  find_dependency(Threads)
  include(${CMAKE_CURRENT_LIST_DIR}/dsakitTargets.cmake)
endif()
unset(dsakit_languages)
