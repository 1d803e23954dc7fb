# What the Python package calls: lib/libquire_python.so, a C interface on top of libquire (docs/python.md).
quire_sources(sources src/python *.cpp)
add_library(quire_python SHARED ${sources})
set_target_properties(quire_python PROPERTIES INSTALL_RPATH $ORIGIN)
target_include_directories(quire_python PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(quire_python PRIVATE quire quire_options nlohmann_json::nlohmann_json Threads::Threads)
install(TARGETS quire_python DESTINATION ${CMAKE_INSTALL_LIBDIR})
