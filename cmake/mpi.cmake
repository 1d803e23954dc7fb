# Engines of several processes: the module that libquire opens at run time, lib/quire/libquire_mpi.so.
enable_language(C)  # MPI's C++ bindings, which CMake would link for C++, are obsolete
find_package(MPI REQUIRED COMPONENTS C)

add_library(quire_mpi MODULE ${PROJECT_SOURCE_DIR}/src/parallel/mpi/mpi_processes.cpp)
set_target_properties(quire_mpi PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/quire
                      INSTALL_RPATH "$ORIGIN/..")
target_include_directories(quire_mpi PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_compile_definitions(quire_mpi PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
target_link_libraries(quire_mpi PRIVATE quire quire_options MPI::MPI_C)
install(TARGETS quire_mpi DESTINATION ${CMAKE_INSTALL_LIBDIR}/quire)
