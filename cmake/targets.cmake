# quire_library(FOLDER DEPS ... PRIVATE_DEPS ...): the static library quire_FOLDER of every .cpp in src/FOLDER.
# A folder of headers alone makes an interface library.
function(quire_library folder)
  cmake_parse_arguments(arg "" "" "DEPS;PRIVATE_DEPS" ${ARGN})
  string(REPLACE "/" "_" name quire_${folder})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${folder}/*.cpp)
  if(folder MATCHES "backends/")  # a backend's folder is its own, with its sub-folders
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${folder}/*.cpp)
  endif()
  if(NOT sources)  # headers only
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${arg_DEPS})
    return()
  endif()
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PUBLIC ${arg_DEPS} PRIVATE quire_options ${arg_PRIVATE_DEPS})
  set_property(GLOBAL APPEND PROPERTY quire_libraries ${name})
endfunction()

# quire_tests(FOLDER LIBRARIES...): the test program of every tests/FOLDER/*_test.cpp.
function(quire_tests folder)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*_test.cpp)
  if(NOT sources)
    return()
  endif()
  set(name ${folder}_tests)
  add_executable(${name} ${sources})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE QUIRE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARGN} quire_options GTest::gtest GTest::gmock GTest::gtest_main)
  gtest_discover_tests(${name} TEST_PREFIX ${folder}: DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT 600)
endfunction()

# The product: libquire with everything, and the command-line program on top of it.
function(quire_product)
endfunction()
