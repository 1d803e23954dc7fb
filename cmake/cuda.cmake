# The CUDA backend: kernels, and the module that libquire opens at run time, lib/quire/libquire_cuda.so.
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_EXTENSIONS OFF)
find_package(CUDAToolkit 13 REQUIRED)
find_path(nccl_include nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})  # the library itself is opened at run time
if(NOT nccl_include)
  message(FATAL_ERROR "nccl.h is missing; it is in NVIDIA's package libnccl-dev")
endif()

file(GLOB kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backends/cuda/kernels/*.cu
     ${PROJECT_SOURCE_DIR}/src/backends/cuda/kernels/*.cpp)
add_library(quire_cuda_kernels STATIC ${kernels})
target_include_directories(quire_cuda_kernels PUBLIC ${PROJECT_SOURCE_DIR}/src)
target_compile_options(quire_cuda_kernels PRIVATE
                       $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>
                       $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<NOT:$<CONFIG:Release>>>:-lineinfo>
                       $<$<AND:$<BOOL:${QUIRE_WERROR}>,$<COMPILE_LANGUAGE:CUDA>>:-Werror=all-warnings>)
target_link_libraries(quire_cuda_kernels PUBLIC CUDA::cudart_static)

file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backends/cuda/*.cpp)
add_library(quire_cuda MODULE ${sources})
set_target_properties(quire_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/quire
                      # In a wheel also beside the package, where NVIDIA's put cuBLASLt and NCCL.
                      INSTALL_RPATH "$ORIGIN/..;$ORIGIN/../../../nvidia/cu13/lib;$ORIGIN/../../../nvidia/nccl/lib")
target_include_directories(quire_cuda PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
list(JOIN CMAKE_CUDA_ARCHITECTURES " " architectures)
target_compile_definitions(quire_cuda PRIVATE QUIRE_CUDA_ARCHITECTURES="${architectures}")
target_include_directories(quire_cuda SYSTEM PRIVATE ${nccl_include})
target_link_options(quire_cuda PRIVATE -Wl,--no-undefined)
target_link_libraries(quire_cuda PRIVATE quire quire_cuda_kernels quire_options CUDA::cublasLt)
install(TARGETS quire_cuda DESTINATION ${CMAKE_INSTALL_LIBDIR}/quire)

# Timing programs of bench/cuda for developers: the target cuda_kernel_bench makes bin/*_bench.
file(GLOB benches CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/cuda/*_bench.cpp
     ${PROJECT_SOURCE_DIR}/bench/cuda/*_bench.cu)
add_custom_target(cuda_kernel_bench)
foreach(bench ${benches})
  get_filename_component(name ${bench} NAME_WE)
  add_executable(${name} EXCLUDE_FROM_ALL ${bench} $<TARGET_OBJECTS:quire_cuda>)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE quire quire_cuda_kernels CUDA::cublasLt)
  add_dependencies(cuda_kernel_bench ${name})
endforeach()
