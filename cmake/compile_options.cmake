# Flags every target is compiled with, as the interface target quire_options.
add_library(quire_options INTERFACE)
target_compile_options(quire_options INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
  # False alarms: of GCC 12 about std::string's operator+ (its bug 105329), of GCC 13 about views returned by value.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>>:-Wno-dangling-reference>
  -ffp-contract=off  # a multiply and an add stay two roundings: sums are part of the contract
  -fstack-protector-strong)
target_compile_definitions(quire_options INTERFACE _GLIBCXX_ASSERTIONS)
if(QUIRE_WERROR)
  target_compile_options(quire_options INTERFACE -Werror)
endif()
if(QUIRE_SANITIZE)
  target_compile_options(quire_options INTERFACE -fsanitize=${QUIRE_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  if(QUIRE_SANITIZE MATCHES undefined)
    # Mostly what ASan finds, too; a fifth of the time to compile.
    target_compile_options(quire_options INTERFACE -fno-sanitize=null,object-size,vptr)
  endif()
  target_link_options(quire_options INTERFACE -fsanitize=${QUIRE_SANITIZE})
  # Clang 14 cannot compile coroutines with this check.
  target_compile_options(quire_options INTERFACE $<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
  # GCC's TSan does not follow the fences of Boost.Asio, which nothing relies on.
  target_compile_options(quire_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
  target_compile_definitions(quire_options INTERFACE _FORTIFY_SOURCE=2)
endif()
