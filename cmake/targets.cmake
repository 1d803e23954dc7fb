# quire_part(NAME WHAT): a part that can be left out, by the option QUIRE_NAME.
macro(quire_part name what)
  string(TOUPPER QUIRE_${name} quire_option)
  option(${quire_option} "${what}" ON)
  list(APPEND quire_parts ${name})
  if(NOT ${quire_option})
    message(STATUS "Left out, with its tests: ${name} (${quire_option}=OFF)")
  endif()
endmacro()

# quire_sources(OUT FOLDER PATTERN): the files of a folder, and what it has for each part: of one that is built those in
# FOLDER/PART/, of one that is left out FOLDER/absent/PART, which stands in for it.
function(quire_sources out folder pattern)
  set(patterns ${folder}/${pattern})
  foreach(part ${quire_parts})
    string(TOUPPER QUIRE_${part} option)
    if(${option})
      list(APPEND patterns ${folder}/${part}/${pattern})
    else()
      string(REPLACE * ${part} file ${pattern})
      list(APPEND patterns ${folder}/absent/${file})
    endif()
  endforeach()
  list(TRANSFORM patterns PREPEND ${PROJECT_SOURCE_DIR}/)
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

# quire_unity(TARGET SIZE): with QUIRE_UNITY so many of its files are compiled as one, which reads headers once.
function(quire_unity target size)
  if(QUIRE_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${size})
    # Of a file that another includes, GCC takes what is private for what is not.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# quire_library(FOLDER DEPS ... PRIVATE_DEPS ...): the static library quire_FOLDER of every .cpp in src/FOLDER.
function(quire_library folder)
  cmake_parse_arguments(arg "" "" "DEPS;PRIVATE_DEPS" ${ARGN})
  string(REPLACE "/" "_" name quire_${folder})
  quire_sources(sources src/${folder} *.cpp)
  if(folder MATCHES "^(ops|checkpoint)$")  # with its sub-folders
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${folder}/*.cpp)
  endif()
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PUBLIC ${arg_DEPS} PRIVATE quire_options ${arg_PRIVATE_DEPS})
  if(NOT folder STREQUAL models)  # its files all have the same names
    quire_unity(${name} 16)
  endif()
  set_property(GLOBAL APPEND PROPERTY quire_libraries ${name})
  set_property(GLOBAL APPEND PROPERTY quire_dependencies ${arg_PRIVATE_DEPS})
endfunction()

# quire_embed(TARGET FILE): its sources may include "FILE.inc", a string literal of what src/FILE holds.
function(quire_embed target file)
  file(READ ${PROJECT_SOURCE_DIR}/src/${file} text)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/embedded/${file}.inc CONTENT "R\"text(${text})text\"\n" @ONLY)
  target_include_directories(${target} PRIVATE ${CMAKE_BINARY_DIR}/embedded)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${file})
endfunction()

# quire_embed_page(TARGET FOLDER): its sources may include "FOLDER.inc", which has a line {"/NAME", "TEXT"}, of each file
# in src/FOLDER but an editor's own (.main.js.swp, main.js~). The path of index.html is "".
function(quire_embed_page target folder)
  set(dir ${PROJECT_SOURCE_DIR}/src/${folder})
  file(GLOB files CONFIGURE_DEPENDS ${dir}/[a-z]*.html ${dir}/[a-z]*.css ${dir}/[a-z]*.js)
  foreach(file ${files})
    file(READ ${file} text)
    get_filename_component(name ${file} NAME)
    string(REGEX REPLACE "^/index.html$" "" path "/${name}")
    string(APPEND entries "{\"${path}\", R\"text(${text})text\"},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/embedded/${folder}.inc CONTENT "${entries}" @ONLY)
  target_include_directories(${target} PRIVATE ${CMAKE_BINARY_DIR}/embedded)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
endfunction()

# quire_tests(FOLDER LIBRARIES...): the test program of every tests/FOLDER/*_test.cpp.
function(quire_tests folder)
  quire_sources(sources tests/${folder} *_test.cpp)
  set(name ${folder}_tests)
  add_executable(${name} ${sources})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src)
  target_compile_definitions(${name} PRIVATE QUIRE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  foreach(part ${quire_parts})
    string(TOUPPER ${part} part)
    target_compile_definitions(${name} PRIVATE QUIRE_HAS_${part}=$<BOOL:${QUIRE_${part}}>)
  endforeach()
  # Tests take longer to be optimised than to run, and longer to be checked than what they test.
  if(QUIRE_SANITIZE)
    target_compile_options(${name} PRIVATE -O0 -fno-sanitize=undefined)
  else()
    target_compile_options(${name} PRIVATE -O1)
  endif()
  target_link_libraries(${name} PRIVATE ${ARGN} quire_options GTest::gtest GTest::gmock GTest::gtest_main)
  if(NOT folder MATCHES "^(cuda|kvcache)$")  # whose files have names in common
    quire_unity(${name} 16)
  endif()
  # GoogleTest's headers are compiled once, not in every file.
  if(TARGET base_tests AND NOT name STREQUAL base_tests)
    target_precompile_headers(${name} REUSE_FROM base_tests)
  else()
    target_precompile_headers(${name} PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
  endif()
  gtest_discover_tests(${name} TEST_PREFIX ${folder}: DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT 600)
endfunction()

# The product: libquire, which holds every folder, and the command-line program on top of it.
function(quire_product)
  get_property(libraries GLOBAL PROPERTY quire_libraries)
  get_property(dependencies GLOBAL PROPERTY quire_dependencies)
  list(REMOVE_DUPLICATES dependencies)
  list(TRANSFORM libraries REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
  add_library(quire SHARED ${objects})
  set_target_properties(quire PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0)
  target_include_directories(quire INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(quire PRIVATE quire_options Threads::Threads ${CMAKE_DL_LIBS} ${dependencies})
  # What these archives bring is ours alone. (Not all archives: the C++ library may come as one.)
  target_link_options(quire PRIVATE -Wl,--exclude-libs,libxxhash.a:libpcre2-8.a:libutf8proc.a)

  quire_sources(sources src/cli *.cpp)
  add_executable(quire_program ${sources})
  set_target_properties(quire_program PROPERTIES OUTPUT_NAME quire INSTALL_RPATH $ORIGIN/../${CMAKE_INSTALL_LIBDIR})
  target_include_directories(quire_program PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_definitions(quire_program PRIVATE QUIRE_VERSION="${PROJECT_VERSION}")
  target_link_libraries(quire_program PRIVATE quire quire_options CLI11::CLI11
                        nlohmann_json::nlohmann_json $<TARGET_NAME_IF_EXISTS:quire::yaml_cpp>)
  target_precompile_headers(quire_program PRIVATE <CLI/CLI.hpp>)
  quire_unity(quire_program 16)
  if(QUIRE_SANITIZE)  # its many options are long to optimise
    target_compile_options(quire_program PRIVATE -O0)
  endif()

  # The bundled model lies beside the library, in the build tree by a link.
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/share/quire/models)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/models/toy ${CMAKE_BINARY_DIR}/share/quire/models/toy SYMBOLIC)

  install(TARGETS quire EXPORT quire DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(TARGETS quire_program DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/quire DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/toy DESTINATION share/quire/models)
  install(EXPORT quire NAMESPACE quire:: FILE quireConfig.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/quire)
  include(CMakePackageConfigHelpers)
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/quireConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/quireConfigVersion.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/quire)
endfunction()

# quire_dependency(NAME MODULE ARCHIVE): the target quire::NAME of a library that pkg-config knows as MODULE. Its
# archive is preferred, so that an installed tree runs where the package is absent.
function(quire_dependency name module archive)
  pkg_check_modules(${name} REQUIRED IMPORTED_TARGET ${module})
  find_library(${name}_archive NAMES ${archive} HINTS ${${name}_LIBDIR})
  mark_as_advanced(${name}_archive)
  add_library(quire::${name} INTERFACE IMPORTED)
  if(${name}_archive)
    set_target_properties(quire::${name} PROPERTIES INTERFACE_LINK_LIBRARIES "${${name}_archive}"
                          INTERFACE_INCLUDE_DIRECTORIES "${${name}_INCLUDE_DIRS}")
  else()
    set_target_properties(quire::${name} PROPERTIES INTERFACE_LINK_LIBRARIES PkgConfig::${name})
  endif()
endfunction()
