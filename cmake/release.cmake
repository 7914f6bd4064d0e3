# SPDX-License-Identifier: Apache-2.0
# What optimised builds have beyond their optimisation, for every target from here on: the same bits wherever the sources
# lie, and DSAKIT_HARDENING (docs/notes/0020-releases.md: what each flag is for, and what it costs). Neither of them where
# sanitizers watch, which have their own versions of the functions that are checked here.
include(CheckCXXCompilerFlag)
include(CheckPIESupported)
check_pie_supported()

# The stack is checked in these sources, where bytes of others become arrays. In the doors of calls it would cost a small
# one 8 %.
function(protect_stack)
  if(DSAKIT_HARDENING)
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS $<$<NOT:$<CONFIG:Debug>>:-fstack-protector-strong>)
  endif()
endfunction()

if(CMAKE_CXX_FLAGS MATCHES "sanitize")
  set(DSAKIT_HARDENING OFF)
  return()
endif()

# Paths that get into objects (asserts of headers, debug information) begin at the root of the sources.
set(release_options -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(DSAKIT_HARDENING)
  list(APPEND release_options -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -D_GLIBCXX_ASSERTIONS)
  foreach(flag -fstack-clash-protection -fcf-protection=full -mbranch-protection=standard)
    string(MAKE_C_IDENTIFIER "DSAKIT_HAS${flag}" has)
    check_cxx_compiler_flag("-Werror ${flag}" ${has})  # some are for x86, one is for AArch64
    if(${has})
      list(APPEND release_options ${flag})
    endif()
  endforeach()
  add_link_options("$<$<NOT:$<CONFIG:Debug>>:LINKER:-z,relro,-z,now,-z,noexecstack,--as-needed>")
endif()
add_compile_options("$<$<NOT:$<CONFIG:Debug>>:${release_options}>")
